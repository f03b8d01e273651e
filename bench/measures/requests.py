"""Small requests from a raw generator: the pipelined rate, and single round trips."""

from typing import Any

from bench.measures import TOPIC, Measure, Reading
from bench.measures.sync import LATENCIES
from bench.model import Metric, Peer, Scenario
from bench.running import Broker, Workshop


def _job(scenario: Scenario, broker: Broker, requests: int, depth: int) -> dict[str, Any]:
    names = ("request", "message_bytes", "connections")
    return {name: scenario.load[name] for name in names} | {
        "routes": broker.leaders(TOPIC, scenario.load["partitions"]),
        "topic": TOPIC,
        "depth": depth,
        "requests": requests,
        "warmup_requests": requests // 10,
    }


def send(
    workshop: Workshop,
    scenario: Scenario,
    broker: Broker,
    *,
    requests: int | None = None,
    depth: int | None = None,
) -> Reading:
    """Send requests; their number and depth are those of the scenario unless given."""
    job = _job(
        scenario, broker, requests or scenario.amount["requests"], depth or scenario.load["depth"]
    )
    with workshop.load("requests", job) as load:
        load.wait_ready()
        cpu = broker.cpu_s()
        load.go()
        result = load.result()
        cpu_s = broker.cpu_s() - cpu
        values: dict[str, float] = {
            name: result[name] for name in ("p50_us", "p99_us") if name in result
        }
        values["requests_per_s"] = result["requests"] / result["seconds"]
        values["cpu_us_per_request"] = cpu_s * 1e6 / result["requests"]
        return Reading(values, result)


def measure(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    with workshop.broker(peer, scenario.settings) as broker:
        broker.create_topic(TOPIC, scenario.load["partitions"], scenario.topic_settings)
        return send(workshop, scenario, broker)


METRICS = (
    Metric("requests_per_s", "requests", "req/s", "higher"),
    Metric("cpu_us_per_request", "broker CPU", "µs/req", "lower"),
)
MEASURES = (
    Measure("requests", METRICS, measure),
    Measure("round-trip", (*LATENCIES, METRICS[1]), measure),
)
