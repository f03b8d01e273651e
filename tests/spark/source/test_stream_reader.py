"""``spark.readStream.format("millstream")`` on a real broker: triggers, limits, restarts, growth,
loss, groups.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from millstream.client.admin.client import Admin
from millstream.client.producer import Producer, produce
from millstream.core.types import TopicPartition
from millstream.local.broker import LocalBroker
from millstream.spark.source.offsets import Offset

Stream = Callable[..., DataFrame]
Start = Callable[..., StreamingQuery]
BrokerFactory = Callable[..., LocalBroker]
WAIT_S = 60


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def wait_until(condition: Callable[[], Any], query: StreamingQuery | None = None) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if query is not None and query.exception() is not None:
            raise query.exception()  # type: ignore[misc]
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def single(admin: Admin, topic_name: str) -> str:
    admin.topics.create(topic_name, partitions=1)
    return topic_name


def test_running_query_sees_new_partitions_and_topics_and_commits_to_group(
    stream: Stream,
    start: Start,
    collector: Any,
    admin: Admin,
    shared_broker: LocalBroker,
    topic_name: str,
):
    bootstrap = shared_broker.bootstrap
    admin.topics.create(f"{topic_name}-a", partitions=1)
    produce(bootstrap, f"{topic_name}-a", [b"before the start"])
    query = start(stream(subscribePattern=f"{topic_name}-.*", groupId=topic_name), collector)
    # It has started, at the end of the topic.
    wait_until(lambda: topic_name in admin.groups.names(), query)

    produce(bootstrap, f"{topic_name}-a", [b"first"])
    wait_until(lambda: collector.values() == [b"first"], query)

    admin.topics.add_partitions(f"{topic_name}-a", 3)
    with Producer(bootstrap) as producer:
        producer.send(f"{topic_name}-a", b"new partition", partition=2)
    admin.topics.create(f"{topic_name}-b", partitions=1)
    produce(bootstrap, f"{topic_name}-b", [b"new topic"])
    wait_until(
        lambda: sorted(collector.values()) == [b"first", b"new partition", b"new topic"], query
    )

    expected = {TopicPartition(f"{topic_name}-a", 0): 2, TopicPartition(f"{topic_name}-a", 2): 1}
    expected |= {TopicPartition(f"{topic_name}-a", 1): 0, TopicPartition(f"{topic_name}-b", 0): 1}
    wait_until(lambda: committed(admin, topic_name) == expected, query)
    source = next(
        progress.sources[0] for progress in reversed(query.recentProgress) if progress.numInputRows
    )
    assert Offset.parse(source.endOffset).positions == expected
    assert Offset.parse(source.latestOffset).positions == expected


def committed(admin: Admin, group: str) -> dict[TopicPartition, int]:
    return admin.groups.committed(group)


@pytest.fixture
def growing(shared_broker: LocalBroker, single: str) -> Iterator[str]:
    """A topic that grows until the test ends."""
    produce(shared_broker.bootstrap, single, numbered(500))
    done = threading.Event()

    def grow() -> None:
        with Producer(shared_broker.bootstrap, linger_ms=0) as producer:
            while not done.wait(0.01):
                producer.send(single, b"later", partition=0)
                producer.poll()

    thread = threading.Thread(target=grow)
    thread.start()
    yield single
    done.set()
    thread.join()


def test_available_now_ends_on_a_growing_topic_and_respects_the_limit(
    stream: Stream, run_to_end: Callable[..., Any], growing: str, admin: Admin
):
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 300, "groupId": growing}
    sink = run_to_end(stream(growing, **options), checkpoint="a")
    assert len(sink.batches) >= 2
    assert all(len(rows) <= 300 for rows in sink.batches.values())
    offsets = [row.offset for row in sink.rows]
    assert offsets == list(range(len(offsets)))
    assert sink.values()[:500] == numbered(500)
    assert committed(admin, growing) == {TopicPartition(growing, 0): len(offsets)}
    again = run_to_end(stream(growing, **options), checkpoint="a")
    assert again.rows[0].offset == len(offsets)


def test_trigger_once_reads_everything_in_one_batch(
    stream: Stream, start: Start, collector: Any, shared_broker: LocalBroker, single: str
):
    produce(shared_broker.bootstrap, single, numbered(50))
    query = start(
        stream(single, startingOffsets="earliest", maxOffsetsPerTrigger=10), collector, once=True
    )
    assert query.awaitTermination(WAIT_S)
    assert {number: len(rows) for number, rows in collector.batches.items()} == {0: 50}


def test_min_offsets_hold_a_batch_until_there_are_enough(
    stream: Stream, start: Start, collector: Any, shared_broker: LocalBroker, single: str
):
    produce(shared_broker.bootstrap, single, numbered(5))
    df = stream(single, startingOffsets="earliest", minOffsetsPerTrigger=10, pollTimeoutMs=100)
    query = start(df, collector)
    wait_until(lambda: query.status["message"].startswith("Waiting for"), query)
    produce(shared_broker.bootstrap, single, numbered(2, 5))
    time.sleep(1)
    # Spark always runs the first batch, even without records.
    assert collector.rows == []
    produce(shared_broker.bootstrap, single, numbered(5, 7))
    wait_until(lambda: collector.rows, query)
    assert max(len(rows) for rows in collector.batches.values()) >= 10


@pytest.mark.long
def test_min_offsets_hold_records_no_longer_than_the_delay(
    stream: Stream, start: Start, collector: Any, shared_broker: LocalBroker, single: str
):
    produce(shared_broker.bootstrap, single, numbered(5))
    df = stream(
        single,
        startingOffsets="earliest",
        minOffsetsPerTrigger=1000,
        maxTriggerDelay="1s",
        pollTimeoutMs=100,
    )
    query = start(df, collector)
    wait_until(lambda: collector.values() == numbered(5), query)


def test_restarted_broker_loses_and_repeats_nothing(
    stream: Stream, start: Start, collector: Any, broker: BrokerFactory
):
    own = broker()
    with Admin(own.bootstrap) as admin:
        admin.topics.create("t", partitions=2)
    produce(own.bootstrap, "t", numbered(100))
    df = stream("t", bootstrap=own.bootstrap, startingOffsets="earliest", maxOffsetsPerTrigger=20)
    query = start(df, collector)
    wait_until(lambda: collector.rows, query)
    own.restart(kill=True)
    produce(own.bootstrap, "t", numbered(100, 100))
    wait_until(lambda: len(collector.rows) >= 200, query)
    assert sorted(collector.values()) == sorted(numbered(200))
    query.stop()


def test_restarted_query_repeats_the_unfinished_batch_exactly(
    stream: Stream,
    start: Start,
    run_to_end: Callable[..., Any],
    shared_broker: LocalBroker,
    single: str,
):
    produce(shared_broker.bootstrap, single, numbered(30))
    seen: list[list[int]] = []

    def failing(batch: DataFrame, number: int) -> None:
        seen.append([row.offset for row in batch.collect()])
        if number == 1:
            raise RuntimeError("on purpose")

    df = stream(single, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    query = start(df, failing, checkpoint="a", availableNow=True)
    with pytest.raises(StreamingQueryException, match="on purpose"):
        query.awaitTermination(WAIT_S)
    produce(shared_broker.bootstrap, single, numbered(5, 30))
    sink = run_to_end(df, checkpoint="a")
    assert [row.offset for row in sink.batches[1]] == seen[1] == list(range(10, 20))
    assert [row.offset for row in sink.rows] == list(range(10, 35))


# ---------------------------------------------------------------- loss


def failure(query: StreamingQuery) -> str:
    with pytest.raises(StreamingQueryException) as error:
        query.awaitTermination(WAIT_S)
    return str(error.value)


@pytest.mark.long
def test_unread_deleted_records_fail_a_query_or_are_skipped(
    stream: Stream,
    start: Start,
    run_to_end: Callable[..., Any],
    collector: Any,
    admin: Admin,
    shared_broker: LocalBroker,
    single: str,
):
    produce(shared_broker.bootstrap, single, numbered(5))
    df = stream(single, startingOffsets="earliest")
    run_to_end(df, checkpoint="a")
    produce(shared_broker.bootstrap, single, numbered(5, 5))
    admin.offsets.delete_records({TopicPartition(single, 0): 8})
    message = failure(start(df, collector, checkpoint="a", availableNow=True))
    assert f"{single}-0: offsets 5 to 7 (3 offsets) were deleted" in message
    assert "failOnDataLoss=false" in message and 'File "' not in message
    tolerant = stream(single, startingOffsets="earliest", failOnDataLoss="false")
    assert run_to_end(tolerant, checkpoint="a").values() == numbered(2, 8)


@pytest.mark.long
def test_recreated_topic_fails_a_query_or_is_read_from_its_start(
    stream: Stream,
    start: Start,
    run_to_end: Callable[..., Any],
    collector: Any,
    admin: Admin,
    shared_broker: LocalBroker,
    single: str,
):
    produce(shared_broker.bootstrap, single, numbered(5))
    df = stream(single, startingOffsets="earliest")
    run_to_end(df, checkpoint="a")
    admin.topics.delete(single)
    admin.topics.create(single, partitions=1)
    produce(shared_broker.bootstrap, single, [b"other"] * 9)
    message = failure(start(df, collector, checkpoint="a", availableNow=True))
    assert f"topic {single} was deleted and created again" in message
    tolerant = stream(single, startingOffsets="earliest", failOnDataLoss="false")
    assert run_to_end(tolerant, checkpoint="a").values() == [b"other"] * 9
    assert run_to_end(df, checkpoint="a").values() == []


@pytest.mark.long
def test_shrunk_log_fails_a_query_or_is_read_from_its_new_end(
    stream: Stream,
    start: Start,
    run_to_end: Callable[..., Any],
    collector: Any,
    broker: BrokerFactory,
    tmp_path: Path,
):
    own = broker()
    with Admin(own.bootstrap) as admin:
        admin.topics.create("t", partitions=1)
    produce(own.bootstrap, "t", numbered(5))
    own.stop()
    shutil.copytree(own.data_dir, tmp_path / "backup")
    own.start()
    produce(own.bootstrap, "t", numbered(5, 5))
    df = stream("t", bootstrap=own.bootstrap, startingOffsets="earliest")
    assert run_to_end(df, checkpoint="a").values() == numbered(10)
    own.stop()
    shutil.rmtree(own.data_dir)
    shutil.copytree(tmp_path / "backup", own.data_dir)
    own.start()
    message = failure(start(df, collector, checkpoint="a", availableNow=True))
    assert (
        "t-0: the log now ends at 5, before 10" in message
        and "lost offsets 5 to 9 (5 offsets)" in message
    )
    tolerant = stream(
        "t", bootstrap=own.bootstrap, startingOffsets="earliest", failOnDataLoss="false"
    )
    assert run_to_end(tolerant, checkpoint="a").values() == []
    produce(own.bootstrap, "t", [b"new"])
    assert run_to_end(df, checkpoint="a").values() == [b"new"]


@pytest.mark.long
def test_a_deleted_topic_fails_a_running_query(
    stream: Stream,
    start: Start,
    collector: Any,
    admin: Admin,
    shared_broker: LocalBroker,
    single: str,
):
    produce(shared_broker.bootstrap, single, [b"v"])
    query = start(stream(single, startingOffsets="earliest"), collector)
    wait_until(lambda: collector.rows, query)
    admin.topics.delete(single)
    assert f"topic {single} was deleted" in failure(query)


def test_query_on_a_missing_topic_or_broker_fails_in_one_line(
    stream: Stream, start: Start, collector: Any, topic: str
):
    message = failure(start(stream(topic[:-1]), collector, availableNow=True))
    assert f"did you mean '{topic}'" in message and 'File "' not in message
    message = failure(start(stream(topic, minPartitions="many"), collector, availableNow=True))
    assert "option 'minPartitions' is 'many'" in message and 'File "' not in message
    message = failure(start(stream("t", bootstrap="127.0.0.1:1"), collector, availableNow=True))
    assert "millstream serve" in message and 'File "' not in message


def test_starting_offsets_of_a_stream_may_be_json_or_times(
    stream: Stream, run_to_end: Callable[..., Any], shared_broker: LocalBroker, single: str
):
    with Producer(shared_broker.bootstrap) as producer:
        for number in range(10):
            producer.send(
                single, b"%d" % number, partition=0, timestamp_ms=1_700_000_000_000 + 1000 * number
            )
    assert run_to_end(stream(single, startingOffsets=json.dumps({single: {"0": 8}}))).values() == [
        b"8",
        b"9",
    ]
    with pytest.raises(
        StreamingQueryException, match="the read was to begin at 80, but the log ends at 10"
    ):
        run_to_end(stream(single, startingOffsets=json.dumps({single: {"0": 80}})))
    assert run_to_end(stream(single, startingTimestamp=1_700_000_000_000 + 8500)).values() == [b"9"]
