"""What one client writes, every other reads, byte by byte; and the broker's own conversions are
seen by nobody.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from compat.client_confluent import Confluent
from compat.client_kcat import KCAT, Kcat
from compat.clients import Client
from compat.crafted import codec_of
from compat.every_client import CLIENTS, every_client
from compat.raw_client import RawConnection
from compat.raw_requests import fetch, stored, values
from compat.sample_records import CODECS, START_MS, VARIOUS, WORDS, Row, noise
from compat.topics import create_topic
from millstream.local.broker import LocalBroker
from millstream.wire.records.batch import crc_matches, parse_header

Written = dict[str, tuple[str, list[Row]]]
WRITERS = [client for client in CLIENTS if KCAT or not isinstance(client, Kcat)]


def rows_of(client: Client) -> list[Row]:
    return client.sendable(VARIOUS[: 40 if client.quick else 12])


@pytest.fixture(scope="module")
def written(shared_broker: LocalBroker) -> Written:
    """By writer: a topic with its rows in every codec one after the other."""
    found = {}
    for client in WRITERS:
        topic = create_topic(shared_broker.bootstrap, f"cross-{client.name}-{uuid.uuid4().hex[:8]}")
        rows: list[Row] = []
        for codec in client.codecs if client.quick else ("none", "zstd"):
            rows += rows_of(client)
            client.produce(shared_broker.bootstrap, topic, rows_of(client), codec=codec)
        found[client.name] = topic, rows
    return found


@every_client
@pytest.mark.parametrize("writer", WRITERS, ids=repr)
def test_every_client_reads_what_every_client_wrote(
    shared_broker: LocalBroker, written: Written, writer: Client, client: Client
):
    topic, rows = written[writer.name]
    client.check(client.consume(shared_broker.bootstrap, topic, {0: len(rows)}), rows, writer)


# ---- broker-side compression ----


def batches_in(data: bytes) -> Iterator[bytes]:
    while data:
        size = parse_header(data).size
        yield data[:size]
        data = data[size:]


@pytest.fixture(scope="module")
def converted(shared_broker: LocalBroker) -> Written:
    """By codec of the topic: rows that came in every codec."""
    found = {}
    for kept in ("uncompressed", *CODECS[1:]):
        name = f"converted-{kept}-{uuid.uuid4().hex[:8]}"
        topic = create_topic(shared_broker.bootstrap, name, compression_type=kept)
        rows = [
            replace(row, timestamp=START_MS + i) for i, row in enumerate([*VARIOUS] * len(CODECS))
        ]
        for number, codec in enumerate(CODECS):
            part = rows[number * len(VARIOUS) : (number + 1) * len(VARIOUS)]
            Confluent().produce(
                shared_broker.bootstrap, topic, part, codec=codec, idempotent=number == 2
            )
        found[kept] = topic, rows
    return found


@pytest.mark.parametrize("kept", ["uncompressed", *CODECS[1:]])
def test_a_topic_keeps_its_own_codec_whatever_comes(
    connection: RawConnection, converted: Written, kept: str
):
    topic, rows = converted[kept]
    data = stored(connection.call("Fetch", 11, fetch(topic)))
    batches = list(batches_in(data))
    assert {codec_of(one) for one in batches} == {
        0 if kept == "uncompressed" else CODECS.index(kept)
    }
    assert all(crc_matches(one, 0, parse_header(one)) for one in batches)
    assert sum(parse_header(one).count for one in batches) == len(rows)


@every_client
@pytest.mark.parametrize("kept", ["uncompressed", *CODECS[1:]])
def test_every_client_reads_what_was_converted(
    shared_broker: LocalBroker, converted: Written, kept: str, client: Client
):
    topic, rows = converted[kept]
    client.check(client.consume(shared_broker.bootstrap, topic, {0: len(rows)}), rows, Confluent())


@pytest.mark.parametrize(("kept", "codec"), [("gzip", "none"), ("uncompressed", "gzip")])
def test_ten_megabytes_are_converted(
    shared_broker: LocalBroker, topic_name: str, kept: str, codec: str
):
    topic = create_topic(
        shared_broker.bootstrap, topic_name, compression_type=kept, max_message_bytes=12_000_000
    )
    rows = [Row(b"words", WORDS * (10_000_000 // len(WORDS))), Row(b"noise", noise(10_000_000))]
    client = Confluent()
    client.produce(shared_broker.bootstrap, topic, rows, codec=codec, linger_ms=0)
    client.check(client.consume(shared_broker.bootstrap, topic, {0: 2}), rows)


def test_an_answer_tells_the_offsets_of_converted_batches(
    shared_broker: LocalBroker, connection: RawConnection, topic_name: str
):
    topic = create_topic(shared_broker.bootstrap, topic_name, compression_type="lz4")
    for expected in range(0, 60, 20):
        rows = [Row(b"k", b"%d" % i) for i in range(20)]
        acks = Confluent().produce(shared_broker.bootstrap, topic, rows, codec="gzip")
        assert acks == [(0, expected + i) for i in range(20)]
    answer = connection.call("Fetch", 11, fetch(topic, 59))
    assert values(answer, "high_watermark") == [60]
