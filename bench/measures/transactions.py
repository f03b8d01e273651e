"""Transactions of one librdkafka producer.

Small ones, how many per second; and at full speed, with a commit at a fixed interval.
"""

from bench.measures import TOPIC, Measure, Reading
from bench.measures.produce import RATES, producer_settings, rates
from bench.measures.sync import LATENCIES
from bench.model import Metric, Peer, Scenario
from bench.running import Workshop


def measure(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    load, amount = scenario.load, scenario.amount
    with workshop.broker(peer, scenario.settings) as broker:
        broker.create_topic(TOPIC, load["partitions"], scenario.topic_settings)
        job = {
            "address": broker.address,
            "topic": TOPIC,
            "partitions": load["partitions"],
            "message_bytes": load["message_bytes"],
            "messages": amount["messages"],
            "transactions": amount["transactions"],
            "warmup_transactions": max(1, amount["transactions"] // 10),
            "settings": producer_settings(load) | {"acks": "all"},  # a transaction needs it
        }
        with workshop.load("transactions", job) as generator:
            generator.wait_ready()
            cpu = broker.cpu_s()
            generator.go()
            result = generator.result()
            values = {name: result[name] for name in ("p50_us", "p99_us")}
            values["transactions_per_s"] = result["transactions"] / result["seconds"]
            values["cpu_us_per_transaction"] = (broker.cpu_s() - cpu) * 1e6 / result["transactions"]
            return Reading(values, result)


def steady(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    load = scenario.load
    with workshop.broker(peer, scenario.settings) as broker:
        broker.create_topic(TOPIC, load["partitions"], scenario.topic_settings)
        job = dict(scenario.amount) | {
            "address": broker.address,
            "topic": TOPIC,
            "partitions": load["partitions"],
            "message_bytes": load["message_bytes"],
            "settings": producer_settings(load) | {"acks": "all"},
        }
        with workshop.load("transactions_steady", job) as generator:
            generator.wait_ready()
            cpu = broker.cpu_s()
            generator.go()
            result = generator.result()
            values = rates(result, broker.cpu_s() - cpu)
            return Reading(values | {name: result[name] for name in ("p50_us", "p99_us")}, result)


METRICS = (
    Metric("transactions_per_s", "transactions", "txn/s", "higher"),
    *LATENCIES,
    Metric("cpu_us_per_transaction", "broker CPU", "µs/txn", "lower"),
)
COMMITS = (
    Metric("p50_us", "p50 of a commit", "µs", "lower"),
    Metric("p99_us", "p99 of it", "µs", "lower"),
)
MEASURES = (
    Measure("transactions", METRICS, measure),
    Measure("transactions-steady", (*RATES, *COMMITS), steady),
)
