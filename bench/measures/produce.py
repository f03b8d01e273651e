"""Throughput of one librdkafka producer, and the broker's CPU per megabyte."""

from typing import Any

from bench.measures import TOPIC, Measure, Reading
from bench.model import Metric, Peer, Scenario
from bench.running import Broker, Workshop

BALLAST = 1.25  # share of the payload: batch headers and indexes are on top


def producer_settings(load: Any) -> dict[str, Any]:
    """Return the factors of a scenario with librdkafka's names."""
    return {
        "acks": load["acks"],
        "linger.ms": load["linger_ms"],
        "batch.size": load["batch_bytes"],
        "batch.num.messages": 1_000_000,  # batch.size alone decides
        "message.max.bytes": max(1_000_000, load["batch_bytes"]),
        "compression.codec": load["codec"],
        "queue.buffering.max.messages": 100_000,
        "queue.buffering.max.kbytes": 1_048_576,
    }


def producer_job(scenario: Scenario, address: str) -> dict[str, Any]:
    load, amount = scenario.load, scenario.amount
    messages = int(amount["megabytes"] * 1e6 / load["message_bytes"])
    return {
        "address": address,
        "topic": TOPIC,
        "partitions": load["partitions"],
        "message_bytes": load["message_bytes"],
        "messages": messages,
        "warmup_messages": messages // 20,
        "keys": amount.get("keys", 0),
        "verify": True,
        "settings": producer_settings(load),
    }


def produce(
    workshop: Workshop, broker: Broker, job: dict[str, Any]
) -> tuple[dict[str, Any], float]:
    """Run a producer; return its result and the broker's CPU seconds in that time."""
    if broker.peer.stores:
        workshop.ballast.hold(job["messages"] * job["message_bytes"] * BALLAST / 1e6)
    with workshop.load("produce", job, broker.peer) as load:
        load.wait_ready()
        if broker.peer.stores:
            workshop.ballast.release()
        cpu = broker.cpu_s()
        load.go()
        result = load.result()
        return result, broker.cpu_s() - cpu


def fill(workshop: Workshop, scenario: Scenario, broker: Broker) -> dict[str, Any]:
    """Produce the scenario's amount without timing; return the job."""
    job = producer_job(scenario, broker.address) | {"warmup_messages": 0}
    produce(workshop, broker, job)
    return job


def rates(result: dict[str, Any], cpu_s: float) -> dict[str, float]:
    return {
        "messages_per_s": result["messages"] / result["seconds"],
        "megabytes_per_s": result["megabytes"] / result["seconds"],
        "cpu_us_per_mb": cpu_s * 1e6 / result["megabytes"],
    }


def measure(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    with workshop.broker(peer, scenario.settings) as broker:
        broker.create_topic(TOPIC, scenario.load["partitions"], scenario.topic_settings)
        result, cpu_s = produce(workshop, broker, producer_job(scenario, broker.address))
        return Reading(rates(result, cpu_s), result)


RATES = (
    Metric("messages_per_s", "messages", "msg/s", "higher"),
    Metric("megabytes_per_s", "payload", "MB/s", "higher"),
    Metric("cpu_us_per_mb", "broker CPU", "µs/MB", "lower"),
)
MEASURES = (Measure("produce", RATES, measure),)
