"""``millstream perf``: what it counts is there, and what it prints is Kafka's line."""

from __future__ import annotations

import json
import re
import struct
import zlib
from pathlib import Path

import pytest

from millstream.testing import Kafka
from millstream.testing import broker as start_broker

LINE = re.compile(
    r"(\d+) records (\w+), [\d.]+ records/sec \([\d.]+ MB/sec\)"
    r"(, [\d.]+ ms avg latency, [\d.]+ ms max latency, [\d.]+ ms 50th, [\d.]+ ms 95th, [\d.]+ ms 99th, [\d.]+ ms 99\.9th)?\.\n"
)


@pytest.fixture
def kafka():
    with start_broker() as kafka:
        kafka.topic("load", 3)
        yield kafka


def test_produce_and_consume_with_several_processes(command, kafka: Kafka, tmp_path: Path) -> None:
    plot = tmp_path / "out.png"
    words = ("--records", "5001", "--size", "100", "--processes", "2", "--plot", str(plot))
    made = command("perf", "produce", "load", *words, bootstrap=kafka.bootstrap, text=True)
    found = LINE.fullmatch(made.stdout)
    assert found is not None, made
    assert (found[1], found[2], found[3] is not None, made.returncode) == ("5001", "sent", True, 0)
    assert sum(kafka.end_offsets("load").values()) == 5001
    assert size_of_png(plot.read_bytes()) == (1000, 700)

    words = ("--processes", "2", "--format", "json", "--timeout", "5")
    read = json.loads(command("perf", "consume", "load", *words, bootstrap=kafka.bootstrap).stdout)
    assert (read["records"], read["bytes"], read["failed"]) == (5001, 500_100, 0)


def size_of_png(data: bytes) -> tuple[int, int]:
    """Width and height of an image whose chunks are in order."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    at, size, pixels = 8, (0, 0), b""
    while at < len(data):
        (length,), kind = struct.unpack_from(">I", data, at), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", data, at + 8 + length)[0] == zlib.crc32(kind + body)
        size = struct.unpack_from(">II", body) if kind == b"IHDR" else size
        pixels += body if kind == b"IDAT" else b""
        at += 12 + length
    assert len(zlib.decompress(pixels)) == size[1] * (1 + 3 * size[0])
    return size


def test_end_to_end(command, kafka: Kafka) -> None:
    kafka.produce("load", [b"something of somebody else"])
    words = ("--records", "200", "--rate", "1000", "--format", "json")
    found = json.loads(command("perf", "e2e", "load", *words, bootstrap=kafka.bootstrap).stdout)
    assert (found["records"], found["failed"]) == (200, 0)
    assert (
        0 < found["latency_ms"]["p50"] <= found["latency_ms"]["p99"] <= found["latency_ms"]["max"]
    )


def test_latency_counts_from_when_a_record_was_due(command, kafka: Kafka) -> None:
    """One stall of a second delays what is due meanwhile, and that shows, though few requests were
    slow.
    """
    with kafka.faults.delay("Produce", 1.0, times=1):
        words = ("--records", "1000", "--rate", "1000", "--size", "16", "--format", "json")
        more = (
            "-X",
            "max.in.flight.requests.per.connection=1",
            "-X",
            "queue.buffering.max.messages=100",
        )
        found = json.loads(
            command("perf", "produce", "load", *words, *more, bootstrap=kafka.bootstrap).stdout
        )
    assert found["records"] == 1000
    assert found["latency_ms"]["p50"] > 100  # half of them were due during the stall


def test_what_is_refused_is_counted_and_told(command, kafka: Kafka) -> None:
    kafka.faults.error("Produce", "TOPIC_AUTHORIZATION_FAILED", times=None)
    made = command("perf", "produce", "load", "-n", "10", bootstrap=kafka.bootstrap, text=True)
    assert made.returncode == 1
    assert "error: 10 records failed: " in made.stderr


def test_a_topic_that_is_not_there_or_empty(command, kafka: Kafka) -> None:
    missing = command("perf", "consume", "laod", bootstrap=kafka.bootstrap, text=True)
    assert (missing.returncode, "did you mean 'load'" in missing.stderr) == (1, True)
    empty = command("perf", "consume", "load", bootstrap=kafka.bootstrap, text=True)
    assert (empty.returncode, "topic 'load' has no records" in empty.stderr) == (1, True)


@pytest.mark.parametrize("what", ["produce", "e2e"])
def test_a_topic_is_made_by_who_writes_to_it(command, kafka: Kafka, what: str) -> None:
    made = command(
        "perf", what, "new", "-n", "10", "--rate", "0", bootstrap=kafka.bootstrap, text=True
    )
    assert (made.returncode, made.stdout.split()[:2]) == (0, ["10", "records"]), made.stderr
    assert kafka.end_offsets("new") == {0: 10}
