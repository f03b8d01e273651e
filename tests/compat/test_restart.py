"""What a client finds again after the broker stopped, or was killed: topics, ids, settings,
records, sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from compat.client_confluent import Confluent
from compat.client_kafka_python import KafkaPython
from compat.crafted import batch, idempotent
from compat.raw_client import RawConnection, ask
from compat.raw_requests import (
    BROKER,
    EARLIEST,
    LATEST,
    SET,
    TOPIC,
    alter_incrementally,
    create_partitions,
    delete_records,
    delete_topics,
    describe_configs,
    errors,
    fetch,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
    values,
)
from compat.sample_records import VARIOUS, Row
from compat.topics import create_topic, topic_id
from millstream.core.errors import ErrorCode as E
from millstream.local.broker import LocalBroker

either_way = pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])


def setting(connection: RawConnection, kind: int, name: str, key: str) -> tuple[str, int]:
    [found] = (
        connection.call("DescribeConfigs", 4, describe_configs(kind, name, key)).results[0].configs
    )
    return found.value, found.config_source


def offsets(connection: RawConnection, topic: str) -> list[int]:
    return [
        values(connection.call("ListOffsets", 7, list_offsets(topic, mark)), "offset")[0]
        for mark in (EARLIEST, LATEST)
    ]


@either_way
def test_topics_settings_and_records_are_found_again(
    broker: Callable[..., LocalBroker], kill: bool
):
    made = broker({"node.id": 3})
    topic = create_topic(made.bootstrap, "kept", 2, retention_ms=123456, cleanup_policy="compact")
    plain = create_topic(made.bootstrap, "plain")
    create_topic(made.bootstrap, "gone")
    rows = [row for row in VARIOUS if row.key is not None]
    for codec in ("none", "zstd"):
        Confluent().produce(made.bootstrap, topic, rows, codec=codec)
    Confluent().produce(made.bootstrap, plain, [Row(b"k", b"%d" % i) for i in range(10)])
    with RawConnection(made.bootstrap) as connection:
        changes: list[tuple[str, int, Any]] = [
            (
                "IncrementalAlterConfigs",
                1,
                alter_incrementally(TOPIC, topic, ("segment.ms", SET, "7000")),
            ),
            (
                "IncrementalAlterConfigs",
                1,
                alter_incrementally(BROKER, "3", ("log.cleaner.backoff.ms", SET, "9999")),
            ),
            (
                "IncrementalAlterConfigs",
                1,
                alter_incrementally(BROKER, "", ("log.retention.ms", SET, "77777")),
            ),
            ("CreatePartitions", 3, create_partitions(topic, 3)),
            ("DeleteRecords", 2, delete_records(plain, 4)),
            ("DeleteTopics", 6, delete_topics("gone")),
        ]
        for change in changes:
            assert not any(errors(connection.call(*change)))
    identity = topic_id(made.bootstrap, topic)

    made.restart(kill=kill)

    assert topic_id(made.bootstrap, topic) == identity
    with RawConnection(made.bootstrap) as connection:
        assert values(connection.call("Metadata", 12, metadata(topic)), "partition_index") == [
            0,
            1,
            2,
        ]
        assert E.UNKNOWN_TOPIC_OR_PARTITION in errors(
            connection.call("Metadata", 12, metadata("gone"))
        )
        assert setting(connection, TOPIC, topic, "retention.ms") == ("123456", 1)
        assert setting(connection, TOPIC, topic, "segment.ms") == ("7000", 1)
        assert setting(connection, TOPIC, plain, "retention.ms") == ("77777", 3)
        assert setting(connection, BROKER, "3", "log.cleaner.backoff.ms") == ("9999", 2)
        assert offsets(connection, plain) == [4, 10]
    client = KafkaPython()
    client.check(client.consume(made.bootstrap, topic, {0: 2 * len(rows)}), rows * 2)


@either_way
def test_sequences_of_idempotent_producers_go_on(broker: Callable[..., LocalBroker], kill: bool):
    made = broker()
    topic = create_topic(made.bootstrap, "sequences")

    def send(records: bytes) -> int | E:
        answer = ask(made.bootstrap, "Produce", 9, produce(topic, records))
        [code], [offset] = errors(answer), values(answer, "base_offset")
        return E.of(code) if code else offset

    first = ask(made.bootstrap, "InitProducerId", 4, init_producer_id()).producer_id
    assert [send(idempotent(first, sequence)) for sequence in range(7)] == list(range(7))
    assert send(idempotent(first + 1, 0, 3, epoch=4)) == 7

    made.restart(kill=kill)

    assert ask(made.bootstrap, "InitProducerId", 4, init_producer_id()).producer_id > first
    # A snapshot, as in Kafka, has room for the last batch only; what is replayed from the log shows
    # all five.
    assert send(idempotent(first, 6)) == 6
    assert send(idempotent(first, 1)) is E.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(idempotent(first, 9)) is E.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(idempotent(first, 7)) == 10
    assert send(idempotent(first + 1, 0, 3, epoch=4)) == 7
    assert send(idempotent(first + 1, 3, epoch=3)) is E.INVALID_PRODUCER_EPOCH


@either_way
def test_a_living_producer_goes_on_without_loss_or_duplicate(
    broker: Callable[..., LocalBroker], kill: bool
):
    made = broker()
    topic = create_topic(made.bootstrap, "living")
    producer = Producer(
        {
            "bootstrap.servers": made.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 0,
            "reconnect.backoff.max.ms": 100,
        }
    )
    failed: list[Any] = []
    for number in range(400):
        producer.produce(
            topic,
            b"%d" % number,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        producer.poll(0)
        if number == 200:
            made.restart(kill=kill)
    assert producer.flush(60) == 0
    assert failed == []
    got = Confluent().consume(made.bootstrap, topic, {0: 400})
    assert [one.value for one in got] == [b"%d" % number for number in range(400)]
    with RawConnection(made.bootstrap) as connection:
        assert offsets(connection, topic) == [0, 400]


@either_way
def test_epochs_and_sessions_after_a_restart(broker: Callable[..., LocalBroker], kill: bool):
    """A session is forgotten, and told so; leader epochs never go back."""
    made = broker()
    topic = create_topic(made.bootstrap, "epochs")
    assert errors(ask(made.bootstrap, "Produce", 9, produce(topic, batch()))) == [0]
    session = ask(made.bootstrap, "Fetch", 12, fetch(topic, session=(0, 0))).session_id
    before = ask(made.bootstrap, "OffsetForLeaderEpoch", 4, offset_for_leader_epoch(topic, 0))
    made.restart(kill=kill)
    lost = ask(made.bootstrap, "Fetch", 12, fetch(None, session=(session, 1)))
    assert lost.error_code == E.FETCH_SESSION_ID_NOT_FOUND
    after = ask(made.bootstrap, "OffsetForLeaderEpoch", 4, offset_for_leader_epoch(topic, 0))
    assert values(after, "end_offset") == values(before, "end_offset") == [1]
