"""Parsing the output of Apache Kafka's own tools."""

import pytest
from bench.measures.kafka_tools import AVERAGE, PERCENTILES, SENT, fetch_rate, parse
from bench.model import load_scenarios
from bench.processes import BenchFailed

PRODUCED = """\
Warmup first 10 records. Steady state results will print after the complete test summary.
50 records sent, 4000.5 records/sec (0.41 MB/sec), 19.85 ms avg latency, 64.00 ms max latency, 21 ms 50th, 26 ms 95th, 27 ms 99th, 28 ms 99.9th.
40 steady state records sent, 8000.25 records/sec (0.82 MB/sec), 2.5 ms avg latency, 9.00 ms max latency, 2 ms 50th, 7 ms 95th, 8 ms 99th, 9 ms 99.9th.
"""
CONSUMED = "2026-01-01 10:17:40:130, 2026-01-01 10:17:50:392, 4.7684, 0.4647, 50000, 4872.3, 8829, 1433, 3.3275, 34891.8\n"
LATENCY = "0\t593.604078\nAvg latency: 1.9628 ms\nPercentiles: 50th = 1, 99th = 12, 99.9th = 59\n"


def test_producer_figures_exclude_the_warm_up() -> None:
    expected = {"messages_per_s": 8000.25, "average_ms": 2.5, "p50_ms": 2.0, "p99_ms": 8.0}
    assert parse(SENT, PRODUCED, "ProducerPerformance") == expected


def test_consumer_rate_requires_that_everything_was_read() -> None:
    assert fetch_rate(CONSUMED, 50_000) == 34891.8
    with pytest.raises(BenchFailed, match="did not read everything"):
        fetch_rate(CONSUMED, 50_001)
    with pytest.raises(BenchFailed, match="WARNING: Exiting"):
        fetch_rate("WARNING: Exiting before consuming the expected number of records\n", 1)


def test_latencies_are_parsed() -> None:
    assert parse(AVERAGE, LATENCY, "EndToEndLatency") == {"average_ms": 1.9628}
    assert parse(PERCENTILES, LATENCY, "EndToEndLatency") == {"p50_ms": 1.0, "p99_ms": 12.0}


def test_unparsable_output_is_reported() -> None:
    with pytest.raises(BenchFailed, match="cannot parse the output of EndToEndLatency: no broker"):
        parse(AVERAGE, "no broker\n", "EndToEndLatency")


def test_tools_require_apache_kafka() -> None:
    tools = [
        scenario for scenario in load_scenarios() if scenario.measure.startswith("kafka-tools")
    ]
    assert len(tools) == 3 and all(s.requires["fetched"] == ("kafka",) for s in tools)
