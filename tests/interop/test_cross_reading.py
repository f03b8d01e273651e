"""What one client writes, every other reads back byte by byte."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from interop.conftest import Target
from interop.programs import Client
from interop.rows import expected, noise, records, row, rows_for

CLIENTS = ("java", "go", "node", "librdkafka")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def grouped(record: dict[str, object]) -> dict[str, object]:
    """Headers by name: KafkaJS does not keep their order across names."""
    return record | {"headers": sorted(record["headers"], key=lambda pair: pair[0])}  # type: ignore[call-overload]


def at_hand(client: Callable[[str], Client]) -> list[Client]:
    """The clients that can be had here."""
    found = []
    for name in CLIENTS:
        with contextlib.suppress(pytest.skip.Exception):
            found.append(client(name))
    return found


@pytest.mark.parametrize("writer", CLIENTS)
@pytest.mark.parametrize("codec", CODECS)
def test_every_client_reads_what_another_wrote(
    target: Target, client: Callable[[str], Client], topic_name: str, writer: str, codec: str
) -> None:
    rows = [*rows_for(writer), row(b"large", noise(300_000))]
    topic = target.create_topic(topic_name)
    acks = client(writer).produce(target.bootstrap, topic, rows, compression_type=codec)
    assert [ack["op"] for ack in acks] == ["ack"] * len(rows)
    wanted = [grouped(record) for record in expected(rows)]
    for reader in at_hand(client):
        got = [grouped(record) for record in records(reader.consume(target.bootstrap, topic))]
        assert got == wanted, f"{reader.name} reads what {writer} wrote"
