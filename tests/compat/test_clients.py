"""Every client writes and reads back: codecs, headers, nulls, sizes, partitions, timestamps,
limits.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from compat.client_confluent import Confluent
from compat.clients import RECENT_MS, Client, Refused
from compat.crafted import codecs_of
from compat.every_client import every_client
from compat.raw_client import RawConnection
from compat.raw_requests import fetch, stored
from compat.sample_records import (
    CODECS,
    JUMPING,
    SIZES,
    START_MS,
    VARIOUS,
    Row,
    expected,
    noise,
    of_sizes,
)
from compat.topics import create_topic, delete_topic
from millstream.core.errors import ErrorCode as E
from millstream.local.broker import LocalBroker

NewTopic = Callable[..., str]


@every_client
@pytest.mark.parametrize("codec", CODECS)
def test_records_come_back_as_they_were_sent(
    shared_broker: LocalBroker,
    connection: RawConnection,
    new_topic: NewTopic,
    client: Client,
    codec: str,
):
    if codec not in client.codecs:
        pytest.skip(f"{client} has no {codec}")
    topic = new_topic()
    rows = client.sendable(VARIOUS[: len(VARIOUS) if client.quick else 14])
    rows += JUMPING if client.sends_timestamps else ()
    acks = client.produce(shared_broker.bootstrap, topic, rows, codec=codec)
    if client.tells_offsets:
        assert acks == [(0, offset) for offset in range(len(rows))]
    client.check(client.consume(shared_broker.bootstrap, topic, {0: len(rows)}), rows)
    if (
        client.quick
    ):  # a client leaves a batch alone that does not get smaller, such as one of a single record
        kept = connection.call("Fetch", 11, fetch(topic))
        assert CODECS.index(codec) in codecs_of(stored(kept))


@every_client
def test_messages_of_one_byte_to_ten_megabytes(
    shared_broker: LocalBroker, new_topic: NewTopic, client: Client
):
    topic = new_topic(max_message_bytes=12_000_000)
    rows = of_sizes(SIZES)
    client.produce(shared_broker.bootstrap, topic, rows, linger_ms=0)
    client.check(client.consume(shared_broker.bootstrap, topic, {0: len(rows)}), rows)


@pytest.fixture(scope="module")
def thousand(shared_broker: LocalBroker) -> Iterator[tuple[str, list[Row]]]:
    """A topic of a thousand partitions with a record in each, for readers that do not write that
    many themselves.
    """
    rows = [Row(b"%d" % p, b"in %d" % p, partition=p) for p in range(1000)]
    topic = create_topic(shared_broker.bootstrap, f"thousand-{uuid.uuid4().hex[:8]}", 1000)
    Confluent().produce(shared_broker.bootstrap, topic, rows)
    yield topic, rows
    delete_topic(shared_broker.bootstrap, topic)


@every_client
def test_a_thousand_partitions(
    shared_broker: LocalBroker, thousand: tuple[str, list[Row]], new_topic: NewTopic, client: Client
):
    topic, rows = thousand
    if client.quick:
        topic = new_topic(1000)
        acks = client.produce(shared_broker.bootstrap, topic, rows)
        assert acks == [(partition, 0) for partition in range(1000)]
    got = client.consume(shared_broker.bootstrap, topic, dict.fromkeys(range(1000), 1))
    assert got == client.as_seen(expected(rows))
    if client.quick:
        delete_topic(shared_broker.bootstrap, topic)


@every_client
def test_the_broker_stamps_records_where_the_topic_says_so(
    shared_broker: LocalBroker, new_topic: NewTopic, client: Client
):
    topic = new_topic(message_timestamp_type="LogAppendTime")
    rows = client.sendable(VARIOUS)[:8]
    client.produce(shared_broker.bootstrap, topic, rows, codec="gzip")
    got = client.consume(shared_broker.bootstrap, topic, {0: len(rows)})
    assert all(one.timestamp > RECENT_MS for one in got)
    wanted = [replace(one, log_append_time=True, timestamp=0) for one in expected(rows)]
    assert [replace(one, timestamp=0) for one in got] == client.as_seen(wanted)


@every_client
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_every_kind_of_acknowledgement(
    shared_broker: LocalBroker, new_topic: NewTopic, client: Client, acks: int
):
    topic = new_topic()
    rows = [Row(b"k", b"%d" % i, timestamp=START_MS + i) for i in range(20 if client.quick else 3)]
    client.produce(shared_broker.bootstrap, topic, rows, acks=acks)
    client.check(client.consume(shared_broker.bootstrap, topic, {0: len(rows)}), rows)


@every_client
def test_an_idempotent_producer_beside_a_plain_one(
    shared_broker: LocalBroker, new_topic: NewTopic, client: Client
):
    topic = new_topic()
    rows = client.sendable(VARIOUS)[: 40 if client.quick else 3]
    for idempotent in (True, False, True):
        client.produce(shared_broker.bootstrap, topic, rows, idempotent=idempotent)
    client.check(client.consume(shared_broker.bootstrap, topic, {0: 3 * len(rows)}), rows * 3)


@every_client
def test_a_message_above_the_limit_of_its_topic_is_refused(
    shared_broker: LocalBroker, new_topic: NewTopic, client: Client
):
    topic = new_topic(max_message_bytes=1000)
    with pytest.raises(Refused) as caught:
        client.produce(shared_broker.bootstrap, topic, [Row(b"k", noise(5000))])
    assert caught.value.code == E.MESSAGE_TOO_LARGE
    rows = [Row(b"k", noise(500))]
    client.produce(shared_broker.bootstrap, topic, rows)
    client.check(client.consume(shared_broker.bootstrap, topic, {0: 1}), rows)


@every_client
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_compacted_topic_takes_no_record_without_a_key(
    shared_broker: LocalBroker, new_topic: NewTopic, client: Client, codec: str
):
    topic = new_topic(cleanup_policy="compact")
    with pytest.raises(Refused) as caught:
        client.produce(shared_broker.bootstrap, topic, [Row(None, b"no key")], codec=codec)
    assert caught.value.code == client.code_seen(E.INVALID_RECORD)
    rows = [Row(b"key", None), Row(b"key", b"value")]
    client.produce(shared_broker.bootstrap, topic, rows, codec=codec)
    client.check(client.consume(shared_broker.bootstrap, topic, {0: 2}), rows)
