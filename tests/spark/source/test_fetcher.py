"""The reading of one task, without Spark: failures after planning, and waiting for records at the
broker.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from millstream.client.admin.client import Admin
from millstream.client.errors import BrokerUnreachable
from millstream.client.producer import Producer, produce
from millstream.core.types import TopicPartition
from millstream.local.broker import LocalBroker
from millstream.spark.options import STREAM, Options, parse
from millstream.spark.source.arrow_decode import COLUMNS
from millstream.spark.source.cluster_view import ClusterView
from millstream.spark.source.data_loss import DataLoss
from millstream.spark.source.fetcher import Fetcher, Task
from millstream.spark.source.offsets import Range
from millstream.spark.source.planning import Columns, make_task
from millstream.spark.source.stream_reader import group_of

ALL = Columns(tuple((name, True) for name in COLUMNS))
BrokerFactory = Callable[..., LocalBroker]


def options(broker: LocalBroker, **more: Any) -> Options:
    texts = {name: str(value) for name, value in more.items()}
    return parse(
        {"kafka.bootstrap.servers": broker.bootstrap, "retryTimeoutMs": "20s"} | texts, STREAM
    )


def view_of(broker: LocalBroker, topic: str, **more: Any) -> ClusterView:
    view = ClusterView(options(broker, subscribe=topic, **more))
    view.refresh()
    return view


def task_of(broker: LocalBroker, topic: str, start: int, end: int, **more: Any) -> Task:
    view = view_of(broker, topic, **more)
    made = make_task(
        view,
        options(broker, subscribe=topic, **more),
        Range(TopicPartition(topic, 0), start, end),
        ALL,
    )
    view.close()
    return made


def read_values(task: Task) -> list[bytes]:
    return [
        value for batch in Fetcher(task).batches() for value in batch.column("value").to_pylist()
    ]


@pytest.fixture
def single(admin: Admin, topic_name: str) -> str:
    admin.topics.create(topic_name, partitions=1)
    return topic_name


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def test_range_is_read_in_many_fetches_and_ends_at_its_end(shared_broker: LocalBroker, single: str):
    payloads = [b"%d" % number * 1000 for number in range(300)]
    produce(shared_broker.bootstrap, single, payloads, linger_ms=0)
    assert (
        read_values(task_of(shared_broker, single, 7, 295, fetchMaxBytes=5000)) == payloads[7:295]
    )


def test_returned_batches_are_not_overwritten_by_later_fetches(
    shared_broker: LocalBroker, single: str
):
    """Fetches reuse the memory of earlier fetches, also of the previous task."""
    payloads = [b"%d" % number * 500 for number in range(100)]
    for start in range(0, 100, 10):
        produce(shared_broker.bootstrap, single, payloads[start : start + 10])
    task = task_of(shared_broker, single, 0, 100, fetchMaxBytes=5000)
    batches = [*Fetcher(task).batches(), *Fetcher(task).batches()]
    assert len(batches) >= 20
    assert [
        value for batch in batches for value in batch.column("value").to_pylist()
    ] == payloads * 2


def test_records_deleted_after_planning_fail_the_task_with_offsets(
    shared_broker: LocalBroker, admin: Admin, single: str
):
    produce(shared_broker.bootstrap, single, numbered(10))
    task = task_of(shared_broker, single, 2, 10)
    admin.offsets.delete_records({TopicPartition(single, 0): 6})
    with pytest.raises(
        DataLoss, match=rf"{single}-0: offsets 2 to 5 \(4 offsets\) were deleted .* begins at 6"
    ):
        read_values(task)


def test_records_deleted_after_planning_are_skipped_and_reported(
    shared_broker: LocalBroker, admin: Admin, single: str, capfd: pytest.CaptureFixture[str]
):
    produce(shared_broker.bootstrap, single, numbered(10))
    task = task_of(shared_broker, single, 2, 8, failOnDataLoss="false")
    admin.offsets.delete_records({TopicPartition(single, 0): 6})
    assert read_values(task) == [b"6", b"7"]
    assert "skipped, because failOnDataLoss is false" in capfd.readouterr().err
    admin.offsets.delete_records({TopicPartition(single, 0): 10})
    assert read_values(task) == []


def test_recreated_topic_is_not_mistaken_for_the_old_one(
    shared_broker: LocalBroker, admin: Admin, single: str
):
    produce(shared_broker.bootstrap, single, numbered(5))
    task = task_of(shared_broker, single, 0, 5)
    admin.topics.delete(single)
    admin.topics.create(single, partitions=1)
    produce(shared_broker.bootstrap, single, [b"other"] * 5)
    with pytest.raises(DataLoss, match="was deleted and created again"):
        read_values(task)


def test_a_topic_that_is_gone_fails_the_task(shared_broker: LocalBroker, admin: Admin, single: str):
    produce(shared_broker.bootstrap, single, numbered(5))
    task = task_of(shared_broker, single, 0, 5, retryTimeoutMs=500)
    admin.topics.delete(single)
    with pytest.raises(DataLoss, match="does not exist any more"):
        read_values(task)


def test_a_log_that_ends_too_early_fails_the_task(shared_broker: LocalBroker, single: str):
    produce(shared_broker.bootstrap, single, numbered(5))
    with pytest.raises(DataLoss, match="the log now ends at 5"):
        read_values(task_of(shared_broker, single, 0, 9, retryTimeoutMs=500))
    with pytest.raises(DataLoss, match="the log now ends at 5"):
        read_values(task_of(shared_broker, single, 7, 9, retryTimeoutMs=500))


def test_a_broker_killed_in_the_middle_is_waited_for(broker: BrokerFactory):
    own = broker()
    with Admin(own.bootstrap) as admin:
        admin.topics.create("t", partitions=1)
    payloads = [b"%d" % number * 1000 for number in range(300)]
    produce(own.bootstrap, "t", payloads, linger_ms=0)
    batches = Fetcher(task_of(own, "t", 0, 300, fetchMaxBytes=20_000)).batches()
    seen = next(batches).column("value").to_pylist()
    own.kill()
    threading.Timer(0.5, own.start).start()
    for batch in batches:
        seen += batch.column("value").to_pylist()
    assert seen == payloads


def test_read_fails_if_the_broker_stays_down(broker: BrokerFactory):
    own = broker()
    with Admin(own.bootstrap) as admin:
        admin.topics.create("t", partitions=1)
    produce(own.bootstrap, "t", numbered(5))
    task = task_of(own, "t", 0, 5, retryTimeoutMs=300)
    own.kill()
    with pytest.raises(BrokerUnreachable, match=r"cannot reach|did not answer"):
        read_values(task)


@pytest.mark.parametrize(
    ("verified", "error"),
    [
        ("true", "cannot read t-0: the checksum or the structure of the records is wrong"),
        ("false", "t-0 at offset 3 is damaged: its checksum is wrong"),
    ],
)
def test_damaged_batch_fails_the_task(broker: BrokerFactory, verified: str, error: str):
    """The broker rejects the batch, or leaves that to the reader if it does not verify reads."""
    own = broker({"log.read.verification.enable": verified})
    with Admin(own.bootstrap) as admin:
        admin.topics.create("t", partitions=1)
    produce(own.bootstrap, "t", numbered(3))
    produce(own.bootstrap, "t", [b"intact until now"])
    own.stop()
    [segment] = Path(own.data_dir).glob("t-0/*.log")
    data = bytearray(segment.read_bytes())
    data[-3] ^= 1
    segment.write_bytes(data)
    own.start()
    with pytest.raises(Exception, match=error):
        read_values(task_of(own, "t", 0, 4))


def test_reader_that_stops_early_leaves_the_connection_usable(
    shared_broker: LocalBroker, single: str
):
    payloads = [b"%d" % number * 1000 for number in range(100)]
    produce(shared_broker.bootstrap, single, payloads, linger_ms=0)
    task = task_of(shared_broker, single, 0, 100, fetchMaxBytes=5000)
    batches = Fetcher(task).batches()
    next(batches)
    batches.close()
    assert read_values(task) == payloads


# ---------------------------------------------------------------- waiting at the broker


def test_waiting_ends_with_the_first_record(shared_broker: LocalBroker, single: str):
    view = view_of(shared_broker, single)
    threading.Timer(0.3, produce, (shared_broker.bootstrap, single, [b"v"])).start()
    before = time.monotonic()
    view.wait_for_records({TopicPartition(single, 0): 0}, 20_000)
    assert time.monotonic() - before < 19
    assert view.offsets({TopicPartition(single, 0): -1}) == {TopicPartition(single, 0): 1}
    view.close()


def test_waiting_for_nothing_ends_after_its_time(shared_broker: LocalBroker, single: str):
    view = view_of(shared_broker, single)
    before = time.monotonic()
    view.wait_for_records({TopicPartition(single, 0): 0}, 300)
    view.wait_for_records({TopicPartition(single, 0): 0}, 300)
    assert time.monotonic() - before >= 0.3
    view.close()


def test_open_transaction_does_not_wake_a_read_committed_reader(
    shared_broker: LocalBroker, single: str
):
    view = view_of(shared_broker, single)
    dirty = view_of(shared_broker, single, isolationLevel="read_uncommitted")
    partition = TopicPartition(single, 0)
    with Producer(shared_broker.bootstrap, transactional_id=single) as producer:
        with producer.transaction() as transaction:
            transaction.send(single, b"v", partition=0)
            producer.flush()
            assert (view.logs()[partition].latest, dirty.logs()[partition].latest) == (0, 1)
        while (
            view.logs()[partition].latest < 2
            # The marker may come a little after the response of the commit.
        ):
            view.wait_for_records({partition: 0}, 1000)
    view.close()
    dirty.close()


# ---------------------------------------------------------------- names


def test_the_group_is_named_by_option_query_or_topics(shared_broker: LocalBroker):
    assert group_of(options(shared_broker, subscribe="b,a")) == "spark-a,b"
    assert group_of(options(shared_broker, subscribePattern="o.*")) == "spark-o.*"
    assert group_of(options(shared_broker, assign=json.dumps({"a": [0]}))) == "spark-a"
    assert group_of(options(shared_broker, subscribe="a", queryName="q")) == "q"
    assert group_of(options(shared_broker, subscribe="a", queryName="q", groupId="g")) == "g"
