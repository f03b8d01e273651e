"""Apache Kafka's own load tools, with its Java client, against every broker."""

import re
import subprocess
from typing import Any

from bench import fetch
from bench.measures import TOPIC, Measure, Reading
from bench.measures.produce import BALLAST, fill
from bench.model import Metric, Peer, Scenario
from bench.processes import BenchFailed
from bench.running import Broker, Workshop
from bench.topics import end_offsets

HEAP = "512M"  # the default of kafka-producer-perf-test
TIMEOUT_S = 300
# The last matching line is that of the whole run after the warm-up.
SENT = re.compile(
    r"records sent, (?P<messages_per_s>[\d.]+) records/sec .* (?P<average_ms>[\d.]+) ms avg latency, .* "
    r"(?P<p50_ms>\d+) ms 50th, .* (?P<p99_ms>\d+) ms 99th"
)
AVERAGE = re.compile(r"Avg latency: (?P<average_ms>[\d.]+) ms")
PERCENTILES = re.compile(r"50th = (?P<p50_ms>[\d.]+), 99th = (?P<p99_ms>[\d.]+)")
# Columns of ConsumerPerformance: messages, and messages per second since the group has formed.
READ, FETCH_RATE = 4, -1


def _tool(name: str, *arguments: object) -> str:
    classes = [
        "java",
        f"-Xmx{HEAP}",
        "-cp",
        f"{fetch.kafka_libs()}/*",
        f"org.apache.kafka.tools.{name}",
    ]
    command = [*classes, *(str(word) for word in arguments)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchFailed(f"{name} did not end within {TIMEOUT_S} s") from None
    if done.returncode:
        output = (done.stdout + done.stderr).strip().splitlines()
        raise BenchFailed(f"{name}: {output[-1] if output else done.returncode}")
    return done.stdout


def parse(pattern: re.Pattern[str], output: str, name: str) -> dict[str, float]:
    matches = list(pattern.finditer(output))
    if not matches:
        raise BenchFailed(f"cannot parse the output of {name}: {output.strip()[-200:]}")
    return {key: float(value) for key, value in matches[-1].groupdict().items()}


def fetch_rate(output: str, messages: int) -> float:
    """Return messages per second of ConsumerPerformance, which must have read all of them."""
    columns = output.strip().rpartition("\n")[2].split(",")
    if len(columns) < 10 or float(columns[READ]) < messages:
        raise BenchFailed(f"ConsumerPerformance did not read everything: {output.strip()[-200:]}")
    return float(columns[FETCH_RATE])


def _properties(load: Any) -> list[str]:
    """Return the factors of a scenario with the Java client's names."""
    return [
        f"acks={load['acks']}",
        f"linger.ms={load['linger_ms']}",
        f"batch.size={load['batch_bytes']}",
        f"compression.type={load['codec']}",
        "enable.idempotence=false",
    ]


def _cpu_per_mb(broker: Broker, before: float, megabytes: float) -> float:
    return (broker.cpu_s() - before) * 1e6 / megabytes


def produce(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    load, megabytes = scenario.load, scenario.amount["megabytes"]
    records = int(megabytes * 1e6 / load["message_bytes"])
    with workshop.broker(peer, scenario.settings) as broker:
        broker.create_topic(TOPIC, load["partitions"], scenario.topic_settings)
        workshop.ballast.hold(megabytes * BALLAST)
        workshop.ballast.release()
        cpu = broker.cpu_s()
        output = _tool(
            *("ProducerPerformance", "--bootstrap-server", broker.address, "--topic", TOPIC),
            *("--num-records", records, "--warmup-records", records // 5, "--throughput", -1),
            *("--record-size", load["message_bytes"], "--command-property", *_properties(load)),
        )
        values = parse(SENT, output, "ProducerPerformance")
        values["cpu_us_per_mb"] = _cpu_per_mb(broker, cpu, megabytes)
        # The tool prints the error of a failed record and continues.
        if (stored := end_offsets(broker.address, TOPIC, load["partitions"])) != records:
            raise BenchFailed(f"ProducerPerformance sent {records} records, the log has {stored}")
        return Reading(values, {"output": output.splitlines()[-2:]})


def consume(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    with workshop.broker(peer, scenario.settings) as broker:
        broker.create_topic(TOPIC, scenario.load["partitions"], scenario.topic_settings)
        job = fill(workshop, scenario, broker)
        cpu = broker.cpu_s()
        output = _tool(
            *("ConsumerPerformance", "--bootstrap-server", broker.address, "--topic", TOPIC),
            *("--num-records", job["messages"], "--hide-header", "--timeout", 20_000),
        )
        rate = fetch_rate(output, job["messages"])
        values = {
            "messages_per_s": rate,
            "megabytes_per_s": rate * job["message_bytes"] / 1e6,
            "cpu_us_per_mb": _cpu_per_mb(broker, cpu, scenario.amount["megabytes"]),
        }
        return Reading(values, {"output": output.splitlines()[-1:]})


def latency(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    load = scenario.load
    with workshop.broker(peer, scenario.settings) as broker:
        broker.create_topic(TOPIC, load["partitions"], scenario.topic_settings)
        output = _tool(
            *("EndToEndLatency", "--bootstrap-server", broker.address, "--topic", TOPIC),
            *("--num-records", scenario.amount["messages"], "--producer-acks", load["acks"]),
            *("--record-size", load["message_bytes"]),
        )
        values = parse(AVERAGE, output, "EndToEndLatency") | parse(
            PERCENTILES, output, "EndToEndLatency"
        )
        return Reading(values, {"output": output.splitlines()[-2:]})


CPU = Metric("cpu_us_per_mb", "broker CPU", "µs/MB", "lower")
LATENCIES = (
    Metric("average_ms", "average latency", "ms", "lower"),
    Metric("p50_ms", "p50, whole ms", "ms", "lower"),
    Metric("p99_ms", "p99, whole ms", "ms", "lower"),
)
MESSAGES = Metric("messages_per_s", "messages", "msg/s", "higher")
MEGABYTES = Metric("megabytes_per_s", "payload", "MB/s", "higher")
MEASURES = (
    Measure("kafka-tools-produce", (MESSAGES, *LATENCIES, CPU), produce),
    Measure("kafka-tools-consume", (MESSAGES, MEGABYTES, CPU), consume),
    Measure("kafka-tools-latency", LATENCIES, latency),
)
