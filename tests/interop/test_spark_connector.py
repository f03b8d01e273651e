"""Spark's own Kafka connector on our broker, beside our source and sink: what one reads and writes,
the other does too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from interop import toolchain
from interop.programs import Librdkafka
from interop.rows import row, various_rows
from millstream.local.broker import LocalBroker

pyspark = pytest.importorskip("pyspark")

RATE_ROWS = 500_000
PATIENCE_S = 600
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOPICS = {
    "various": 2,
    "transactions": 1,
    "stream-kafka": 2,
    "stream-millstream": 2,
    "keyed-kafka": 5,
    "keyed-millstream": 5,
    "rate-kafka": 2,
    "rate-millstream": 2,
    "rate-read": 2,
}


@pytest.fixture(scope="module")
def connector() -> toolchain.Connector:
    return toolchain.skip_if_missing(lambda: toolchain.spark_connector(pyspark.__version__))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    running = LocalBroker(tmp_path_factory.mktemp("broker")).start()
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    for made in admin.create_topics(
        [NewTopic(name, count, 1) for name, count in TOPICS.items()]
    ).values():
        made.result(30)
    fill(running.bootstrap)
    yield running.bootstrap
    running.kill()


def fill(bootstrap: str) -> None:
    """Records of every kind in both partitions and with every codec, a transaction that is taken
    back, and many alike.
    """
    client = Librdkafka()
    client.produce(bootstrap, "various", various_rows())
    for codec in CODECS:
        rows = [row(b"k%d" % i, codec.encode() * i, partition=1) for i in range(50)]
        client.produce(bootstrap, "various", rows, compression_type=codec)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "pair"})
    producer.init_transactions()
    for number, end in enumerate(("commit", "abort", "commit")):
        producer.begin_transaction()
        for i in range(20):
            producer.produce("transactions", key=b"%d" % number, value=b"%d" % i)
        getattr(producer, f"{end}_transaction")()
    plain = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "batch.size": 1_000_000})
    for number in range(RATE_ROWS):
        while True:
            try:
                plain.produce("rate-read", value=b"%0100d" % number, partition=number % 2)
                break
            except BufferError:
                plain.poll(0.1)
    assert plain.flush(60) == 0


@pytest.fixture(scope="module")
def findings(
    connector: toolchain.Connector, broker: str, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """One driver does everything: a JVM takes its time to start."""
    config = {
        "bootstrap": broker,
        "jars": connector.jars,
        "work": str(tmp_path_factory.mktemp("pair")),
        "rate_rows": RATE_ROWS,
    }
    program = [sys.executable, str(Path(__file__).with_name("spark_pair.py")), json.dumps(config)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, f"{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def found(findings: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (one,) = [one for one in findings if one["name"] == name]
    return one


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("batch various", len(various_rows()) + 50 * len(CODECS)),
        ("batch transactions", 40),
        ("batch of offsets", 6 + 50 * len(CODECS)),
    ],
)
def test_both_read_the_same_rows(findings: list[dict[str, Any]], name: str, count: int) -> None:
    both = found(findings, name)
    assert both["millstream"] == both["kafka"]
    assert len(both["kafka"]) == count


def test_streams_copy_the_same_records_to_the_same_partitions(
    findings: list[dict[str, Any]],
) -> None:
    both = found(findings, "stream to stream")
    assert len(both["kafka"]) == len(various_rows()) + 50 * len(CODECS)
    without = {name: sorted(map(_without_offset, both[name])) for name in ("kafka", "millstream")}
    assert without["millstream"] == without["kafka"]


def _without_offset(text: str) -> str:
    """Transactions put markers between the records of our sink."""
    before, _, after = text.partition("'offset': ")
    return before + after.partition(", ")[2]


def test_keyed_rows_go_where_the_other_sends_them(findings: list[dict[str, Any]]) -> None:
    both = found(findings, "keyed writes")
    assert both["millstream"] == both["kafka"]
    assert len(both["kafka"]) == 500


def test_rates_side_by_side(
    findings: list[dict[str, Any]],
    connector: toolchain.Connector,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rates = [one for one in findings if one["name"] == "rate"]
    with capsys.disabled():
        print(
            f"\nSpark {pyspark.__version__}, its own connector {connector.version}, {RATE_ROWS:,} rows of 100 B:"
        )
        for one in rates:
            print(f"  {one['what']:12} {one['format']:11} {one['rows_per_s']:12,.0f} rows/s")
    assert {(one["what"], one["format"]) for one in rates} == {
        (what, name)
        for what in ("batch write", "batch read", "stream read")
        for name in ("kafka", "millstream")
    }
