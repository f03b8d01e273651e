"""Spark on a broker: rates of source and sink, the smallest micro-batch, and Python's share of a
row.

Each measurement has a separate driver process, which is the generator. Its startup is not counted.
"""

from dataclasses import replace
from typing import Any

from bench.measures import TOPIC, Measure, Reading
from bench.measures.produce import fill
from bench.model import Metric, Peer, Scenario
from bench.running import Broker, Workshop

START_TIMEOUT_S = 180.0
TIMEOUT_S = 300.0
SPARE_ROWS = 50  # a query that is being stopped may read a few more
DELIVERIES = {"at-least-once": "out-a", "exactly-once": "out-e"}


def driver(
    workshop: Workshop, name: str, job: dict[str, Any], broker: Broker | None
) -> tuple[Any, float]:
    """Return the result of a driver, and the broker's CPU seconds in that time."""
    with workshop.load(name, job) as load:
        load.wait_ready(START_TIMEOUT_S)
        cpu = broker.cpu_s() if broker else 0.0
        load.go()
        result = load.result(TIMEOUT_S)
        return result, (broker.cpu_s() if broker else 0.0) - cpu


def filled_with(scenario: Scenario, rows: int) -> Scenario:
    megabytes = rows * scenario.load["message_bytes"] / 1e6
    return replace(scenario, amount=dict(scenario.amount) | {"megabytes": megabytes})


def measure_source(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    amount = scenario.amount
    rows = amount["batch_rows"] * (amount["batches"] + amount["warmup_batches"])
    with workshop.broker(peer, scenario.settings) as broker:
        broker.create_topic(TOPIC, scenario.load["partitions"], scenario.topic_settings)
        fill(workshop, filled_with(scenario, rows), broker)
        job = {
            "address": broker.address,
            "topic": TOPIC,
            "messages": rows,
            "batch_rows": amount["batch_rows"],
            "warmup_batches": amount["warmup_batches"],
            "query": amount["query"],
        }
        result, broker_cpu_s = driver(workshop, "spark_source", job, broker)
        values = {
            "rows_per_s": result["rows"] / result["seconds"],
            "cpu_us_per_row": result["cpu_s"] * 1e6 / result["rows"],
            "python_cpu_us_per_row": result["python_cpu_s"] * 1e6 / result["rows"],
            "broker_cpu_us_per_row": broker_cpu_s * 1e6 / rows,
        }
        return Reading(values, result)


def measure_sink(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    load, amount = scenario.load, scenario.amount
    with workshop.broker(peer, scenario.settings) as broker:
        for topic in DELIVERIES.values():
            broker.create_topic(topic, load["partitions"], scenario.topic_settings)
        job = dict(amount) | {"address": broker.address, "topics": DELIVERIES}
        result, _ = driver(
            workshop, "spark_sink", job | {"message_bytes": load["message_bytes"]}, broker
        )
        exactly_once, at_least_once = result["exactly-once"], result["at-least-once"]
        values = {
            "exactly_once_rows_per_s": amount["batch_rows"] / exactly_once["seconds"],
            "at_least_once_rows_per_s": amount["batch_rows"] / at_least_once["seconds"],
            "cost_percent": 100 * (exactly_once["seconds"] / at_least_once["seconds"] - 1),
            "cpu_cost_percent": 100 * (exactly_once["cpu_s"] / at_least_once["cpu_s"] - 1),
        }
        return Reading(values, result)


def measure_one_row(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    amount = scenario.amount
    messages = amount["batches"] + amount["warmup_batches"] + SPARE_ROWS
    with workshop.broker(peer, scenario.settings) as broker:
        broker.create_topic(TOPIC, scenario.load["partitions"], scenario.topic_settings)
        broker.create_topic("out", amount["out_partitions"], scenario.topic_settings)
        fill(workshop, filled_with(scenario, messages), broker)
        job = dict(amount) | {"address": broker.address, "topic": TOPIC, "out": "out"}
        result, _ = driver(workshop, "spark_one_row", job, broker)
        values = {"floor_ms": result["floor_ms"]}
        for kind in ("source", "sink", "both"):
            values[f"{kind}_added_ms"] = result[f"{kind}_ms"] - result["floor_ms"]
        return Reading(values, result)


def measure_codec(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    load = scenario.load
    job = dict(scenario.amount) | {
        "message_bytes": load["message_bytes"],
        "partitions": load["partitions"],
    }
    result, _ = driver(workshop, "spark_codec", job, None)
    return Reading({f"{name}_ns": value for name, value in result.items()}, result)


SOURCE = (
    Metric("rows_per_s", "rows", "rows/s", "higher"),
    Metric("cpu_us_per_row", "Spark's CPU", "µs/row", "lower"),
    Metric("python_cpu_us_per_row", "its Python's share", "µs/row", "lower"),
    Metric("broker_cpu_us_per_row", "broker CPU", "µs/row", "lower"),
)
SINK = (
    Metric("exactly_once_rows_per_s", "exactly once", "rows/s", "higher"),
    Metric("at_least_once_rows_per_s", "at least once", "rows/s", "higher"),
    Metric("cost_percent", "exactly once takes longer by", "%", "lower"),
    Metric("cpu_cost_percent", "and more of Spark's CPU by", "%", "lower"),
)
ONE_ROW = (
    Metric("floor_ms", "Spark's own source, no-op", "ms", "lower"),
    Metric("source_added_ms", "our source adds", "ms", "lower"),
    Metric("sink_added_ms", "our sink adds", "ms", "lower"),
    Metric("both_added_ms", "topic to topic adds", "ms", "lower"),
)
CODEC = (
    Metric("decode_bare_ns", "decoding, without keys", "ns/row", "lower"),
    Metric("decode_keyed_ns", "decoding, with keys", "ns/row", "lower"),
    Metric("encode_bare_ns", "encoding, without keys", "ns/row", "lower"),
    Metric("encode_keyed_ns", "encoding, with keys", "ns/row", "lower"),
)
MEASURES = (
    Measure("spark-source", SOURCE, measure_source),
    Measure("spark-sink", SINK, measure_sink),
    Measure("spark-one-row", ONE_ROW, measure_one_row),
    Measure("spark-codec", CODEC, measure_codec),
)
