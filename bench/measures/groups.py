"""The broker's cost of heartbeats of many groups."""

from typing import Any

from bench.measures import TOPIC, Measure, Reading
from bench.model import Metric, Peer, Scenario
from bench.running import Broker, Workshop

KIB = 1 << 10
# Groups share connections; no two members of a group share one.
CONNECTIONS_PER_MEMBER = 10


def _job(scenario: Scenario, broker: Broker) -> dict[str, Any]:
    amount = scenario.amount
    return {name: amount[name] for name in ("groups", "members", "interval_ms", "seconds")} | {
        "address": broker.address,
        "topic": TOPIC,
        "partitions": amount["members"],
        "protocol": scenario.load["protocol"],
        "connections": amount["members"] * CONNECTIONS_PER_MEMBER,
    }


def measure(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    amount = scenario.amount
    with workshop.broker(peer, scenario.settings) as broker:
        broker.create_topic(TOPIC, amount["members"], scenario.topic_settings)
        with workshop.load("groups", _job(scenario, broker)) as load:
            load.wait_ready()
            before = broker.resident_bytes()
            load.go()
            load.wait_ready()  # joined
            load.go()
            load.wait_ready()  # a first heartbeat of each
            grown, cpu = broker.resident_bytes() - before, broker.cpu_s()
            load.go()
            result = load.result()
            cpu_s = broker.cpu_s() - cpu
            values = {
                "cpu_percent": 100 * cpu_s / result["seconds"],
                "requests_per_s": result["requests"] / result["seconds"],
                "cpu_us_per_request": cpu_s * 1e6 / result["requests"],
                "p99_us": result["p99_us"],
                "join_s": result["join_s"],
                "kib_per_group": grown / KIB / amount["groups"],
            }
            return Reading(values, result)


METRICS = (
    Metric("cpu_percent", "broker CPU, of one core", "%", "lower"),
    Metric("requests_per_s", "heartbeats", "req/s", "higher"),
    Metric("cpu_us_per_request", "broker CPU", "µs/req", "lower"),
    Metric("p99_us", "p99 of an answer", "µs", "lower"),
    Metric("join_s", "until all have joined", "s", "lower"),
    Metric("kib_per_group", "memory of a group", "KiB", "lower"),
)
MEASURES = (Measure("groups-heartbeat", METRICS, measure),)
