"""Retention and compaction as a client sees them, with settings so small that they
happen at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from kafka import KafkaConsumer

from compat.client_confluent import Confluent
from compat.client_kafka_python import KafkaPython, read_between
from compat.clients import Refused
from compat.crafted import batch, now_ms
from compat.raw_client import RawConnection
from compat.raw_requests import EARLIEST, LATEST, errors, fetch, list_offsets, produce, values
from compat.sample_records import Got, Row
from compat.topics import create_topic
from compat.waiting import wait_until
from millstream.core.errors import ErrorCode as E
from millstream.local.broker import LocalBroker

QUICK = {
    "log.retention.check.interval.ms": 50,
    "log.cleaner.backoff.ms": 50,
    "log.segment.delete.delay.ms": 100,
}


@pytest.fixture(scope="module")
def quick_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path_factory.mktemp("retention"), QUICK) as made:
        yield made


@pytest.fixture(scope="module")
def consumer(quick_broker: LocalBroker) -> Iterator[KafkaConsumer]:
    made = KafkaPython().consumer(quick_broker.bootstrap)
    yield made
    made.close()


def offset(broker: LocalBroker, topic: str, mark: int) -> int:
    with RawConnection(broker.bootstrap) as connection:
        [found] = values(connection.call("ListOffsets", 7, list_offsets(topic, mark)), "offset")
        assert isinstance(found, int)
        return found


def read(broker: LocalBroker, consumer: KafkaConsumer, topic: str, start: int) -> list[Got]:
    """Everything from an offset to the end, however many records are left."""
    return read_between(consumer, topic, start, offset(broker, topic, LATEST))


def append(broker: LocalBroker, topic: str, *batches: Sequence[Row]) -> None:
    """Each as a batch of its own, with the timestamp of its first row."""
    with RawConnection(broker.bootstrap) as connection:
        for rows in batches:
            records = batch([(row.key, row.value) for row in rows], timestamp=rows[0].timestamp)
            assert errors(connection.call("Produce", 9, produce(topic, records))) == [0]


def by_five(rows: Sequence[Row]) -> list[Sequence[Row]]:
    return [rows[first : first + 5] for first in range(0, len(rows), 5)]


def test_retention_by_bytes(quick_broker: LocalBroker, consumer: KafkaConsumer):
    topic = create_topic(
        quick_broker.bootstrap, "by-bytes", internal_segment_bytes=10_000, retention_bytes=30_000
    )
    append(quick_broker, topic, *[[Row(b"k", b"x" * 9_000, timestamp=now_ms())]] * 10)
    wait_until(lambda: offset(quick_broker, topic, EARLIEST) > 0, "old segments are deleted")
    start = offset(quick_broker, topic, EARLIEST)
    # Whole segments go while what is left is above the limit.
    wait_until(
        lambda: offset(quick_broker, topic, EARLIEST) == 6,
        f"four segments are left, start is {start}",
    )
    assert [one.offset for one in read(quick_broker, consumer, topic, 6)] == [6, 7, 8, 9]
    with RawConnection(quick_broker.bootstrap) as connection:
        assert errors(connection.call("Fetch", 12, fetch(topic, 0))) == [0, E.OFFSET_OUT_OF_RANGE]


def test_retention_by_time(quick_broker: LocalBroker, consumer: KafkaConsumer):
    topic = create_topic(
        quick_broker.bootstrap, "by-time", internal_segment_bytes=10_000, retention_ms=3_600_000
    )
    old = now_ms() - 7_200_000
    stamps = [old, old + 1, old + 2, now_ms(), now_ms()]
    append(quick_broker, topic, *[[Row(b"k", b"x" * 9_000, timestamp=stamp)] for stamp in stamps])
    wait_until(
        lambda: offset(quick_broker, topic, EARLIEST) == 3,
        "segments older than an hour are deleted",
    )
    assert [one.offset for one in read(quick_broker, consumer, topic, 3)] == [3, 4]


def test_a_reader_below_the_start_is_told_or_moved_on(quick_broker: LocalBroker):
    topic = create_topic(
        quick_broker.bootstrap, "gone", internal_segment_bytes=1_000, retention_bytes=1_000
    )
    append(quick_broker, topic, *[[Row(b"k", b"x" * 900, timestamp=now_ms())]] * 5)
    wait_until(lambda: offset(quick_broker, topic, EARLIEST) > 0, "old segments are deleted")
    with pytest.raises(Refused) as caught:
        Confluent().consume(quick_broker.bootstrap, topic, {0: 5}, start=0)
    assert caught.value.code == -140  # librdkafka's own: out of range, and no reset is allowed


def test_compaction_keeps_the_last_value_of_each_key(
    quick_broker: LocalBroker, consumer: KafkaConsumer
):
    topic = create_topic(
        quick_broker.bootstrap,
        "compacted",
        cleanup_policy="compact",
        internal_segment_bytes=1_000,
        min_cleanable_dirty_ratio=0.01,
    )
    rows = [Row(b"key-%d" % (i % 5), b"value-%d" % i, timestamp=now_ms()) for i in range(100)]
    rows.append(
        Row(b"the last one", b"x" * 800, timestamp=now_ms())
    )  # so that a segment of its own ends the rest
    append(quick_broker, topic, *by_five(rows))

    def cleaned() -> bool:
        keys = [one.key for one in read(quick_broker, consumer, topic, 0)]
        return len(keys) == len(set(keys))

    wait_until(cleaned, "every key is left once")
    left = read(quick_broker, consumer, topic, 0)
    assert [(one.offset, one.value) for one in left[:-1]] == [
        (i, b"value-%d" % i) for i in range(95, 100)
    ]
    assert offset(quick_broker, topic, EARLIEST) == 0
    assert offset(quick_broker, topic, LATEST) == 101


def test_tombstones_disappear_in_the_end(quick_broker: LocalBroker, consumer: KafkaConsumer):
    topic = create_topic(
        quick_broker.bootstrap,
        "tombstones",
        cleanup_policy="compact",
        internal_segment_bytes=1_000,
        min_cleanable_dirty_ratio=0.001,
        delete_retention_ms=1,
    )
    rows = [Row(b"key-%d" % i, b"value", timestamp=now_ms()) for i in range(20)]
    rows += [Row(b"key-%d" % i, None, timestamp=now_ms()) for i in range(10)]
    append(quick_broker, topic, *by_five(rows))
    fillers = iter(range(10**6))

    def gone() -> bool:
        """Cleaning happens when there is something new; a first pass marks tombstones, a later one
        removes them.
        """
        filler = Row(b"filler-%d" % next(fillers), b"x" * 900, timestamp=now_ms())
        append(quick_broker, topic, [filler])
        keys = {one.key for one in read(quick_broker, consumer, topic, 0)}
        return not any(b"key-%d" % i in keys for i in range(10))

    wait_until(gone, "deleted keys and their tombstones are gone")
    keys = {one.key for one in read(quick_broker, consumer, topic, 0)}
    assert all(b"key-%d" % i in keys for i in range(10, 20))


def test_compacted_and_deleted(quick_broker: LocalBroker, consumer: KafkaConsumer):
    topic = create_topic(
        quick_broker.bootstrap,
        "both",
        cleanup_policy="compact,delete",
        internal_segment_bytes=1_000,
        retention_ms=3_600_000,
        min_cleanable_dirty_ratio=0.01,
    )
    old = now_ms() - 7_200_000
    append(
        quick_broker,
        topic,
        *by_five([Row(b"old-%d" % i, b"x" * 100, timestamp=old) for i in range(20)]),
    )
    append(
        quick_broker,
        topic,
        *by_five([Row(b"new", b"x" * 100, timestamp=now_ms()) for _ in range(30)]),
    )
    wait_until(
        lambda: offset(quick_broker, topic, EARLIEST) >= 20, "what is older than an hour is deleted"
    )
    assert {
        one.key
        for one in read(quick_broker, consumer, topic, offset(quick_broker, topic, EARLIEST))
    } == {b"new"}
