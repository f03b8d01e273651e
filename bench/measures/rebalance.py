"""The time until a group has reassigned the partitions of a member that leaves.

Real consumers read during the rebalance. A member learns of it with the response to its next
heartbeat, so the heartbeat interval (`heartbeat_ms`) is the larger part of the time. Classic
members choose it; members of the consumer protocol get it from the broker, whose settings are in
the scenario.
"""

from statistics import median
from typing import Any

from bench.measures import TOPIC, Measure, Reading
from bench.model import Metric, Peer, Scenario
from bench.running import Broker, Workshop


def client_settings(scenario: Scenario) -> dict[str, Any]:
    protocol = scenario.load["protocol"]
    if protocol == "consumer":
        return {"group.protocol": "consumer"}
    return {
        "group.protocol": "classic",
        "partition.assignment.strategy": protocol,
        "heartbeat.interval.ms": scenario.amount["heartbeat_ms"],
    }


def _job(scenario: Scenario, broker: Broker) -> dict[str, Any]:
    load, amount = scenario.load, scenario.amount
    return {name: amount[name] for name in ("members", "partitions", "leaves")} | {
        "address": broker.address,
        "topic": TOPIC,
        "rate": load["rate"],
        "message_bytes": load["message_bytes"],
        "settings": client_settings(scenario),
    }


def measure(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    with workshop.broker(peer, scenario.settings) as broker:
        broker.create_topic(TOPIC, scenario.amount["partitions"], scenario.topic_settings)
        with workshop.load("rebalance", _job(scenario, broker)) as load:
            load.wait_ready()
            load.go()
            result = load.result()
            samples = result["samples_s"]
            return Reading({"median_s": median(samples), "longest_s": max(samples)}, result)


METRICS = (
    Metric("median_s", "usual", "s", "lower"),
    Metric("longest_s", "longest", "s", "lower", worst=True),
)
MEASURES = (Measure("rebalance", METRICS, measure),)
