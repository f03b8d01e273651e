"""The parts of the sink that need no Spark: the writer, the owner of the transactional id, the progress topic, on a real broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pytest

from millstream.client.connection import Connection
from millstream.client.protocol import Protocol
from millstream.local.broker import LocalBroker
from millstream.spark.sink.arrow_encode import Columns, encode
from millstream.spark.sink.failures import (
    OutcomeUnknown,
    ProgressConflict,
    RecordTooLarge,
    SinkError,
    SinkFenced,
)
from millstream.spark.sink.produce_link import CLIENT_ID, Part, request
from millstream.spark.sink.progress import Progress, ProgressTopic
from millstream.spark.sink.targets import take_snapshot
from millstream.spark.sink.transaction import TransactionOwner
from millstream.spark.sink.writer import Destination, Producer, Writer
from millstream.wire.messages.produce import ProduceRequest
from support.spark.sink_world import DroppingProxy, committed, create_topic, start_behind

END_TXN = 26


@pytest.fixture
def protocol(shared_broker: LocalBroker) -> Iterator[Protocol]:
    made = Protocol(Connection(shared_broker.bootstrap))
    yield made
    made.close()


@pytest.fixture
def impatient(broker: Callable[..., LocalBroker]) -> LocalBroker:
    """A broker that looks for transactions beyond their timeout all the time."""
    return broker({"transaction.abort.timed.out.transaction.cleanup.interval.ms": 100})


def batch_of(*values: bytes) -> tuple[bytes, bytes]:
    column = pa.array(values, pa.binary())
    (one,) = encode(Columns(None, column, None, np.zeros(len(values), np.int64)), np.array([0, len(values)]))
    return one.head, bytes(one.body)


def owner(
    protocol: Protocol, name: str, timeout_ms: int = 60_000, patience_s: float = 20.0
) -> TransactionOwner:
    return TransactionOwner(protocol, name, timeout_ms=timeout_ms, patience_s=patience_s)


def destination(bootstrap: str, protocol: Protocol, topics: list[str], by: TransactionOwner) -> Destination:
    targets = take_snapshot(protocol, topics, others=(), patience_s=10)
    return Destination(
        Connection(bootstrap), targets.leaders, targets.brokers, by.transactional_id, by.producer, 10.0
    )


def test_a_request_is_the_one_that_the_declaration_encodes() -> None:
    parts = [
        Part("a", 3, b"head", b"body"),
        Part("b", 0, b"h" * 61, b"x" * 70_000),
        Part("a", 1, b"h", memoryview(b"b")),
    ]
    whole = b"".join(request(7, parts, transactional_id="owner", timeout_ms=5))
    assert int.from_bytes(whole[:4], "big") == len(whole) - 4
    decoded, end = ProduceRequest.decode(whole, 12, 4 + 10 + len(CLIENT_ID) + 1)
    assert end == len(whole)
    assert (decoded.transactional_id, decoded.acks, decoded.timeout_ms) == ("owner", -1, 5)
    got = [(t.name, p.index, bytes(p.records)) for t in decoded.topic_data for p in t.partition_data]
    assert got == [("a", 3, b"headbody"), ("a", 1, b"hb"), ("b", 0, b"h" * 61 + b"x" * 70_000)]


def test_what_is_committed_is_read_and_what_is_aborted_is_not(shared_broker, protocol, topic_name) -> None:
    create_topic(shared_broker.bootstrap, topic_name, 3)
    mine = owner(protocol, topic_name)
    mine.fence()
    epochs = [mine.producer.epoch]
    for round_, commit in enumerate((True, False, True)):
        writer = Writer(destination(shared_broker.bootstrap, protocol, [topic_name], mine))
        for partition in range(3):
            for index in range(9):
                writer.send(topic_name, partition, *batch_of(b"%d-%d-%d" % (round_, partition, index)))
        written = writer.finish()
        assert sorted(written) == [(topic_name, partition, 9, 8, 9) for partition in range(3)]
        mine.end(commit=commit)
        epochs.append(mine.producer.epoch)
    assert epochs == list(range(epochs[0], epochs[0] + 4))
    expected = [b"%d-%d-%d" % (r, p, i) for p in range(3) for r in (0, 2) for i in range(9)]
    assert committed(shared_broker.bootstrap, topic_name) == expected


def test_an_older_owner_is_shut_out_of_every_partition(shared_broker, protocol, topic_name) -> None:
    create_topic(shared_broker.bootstrap, topic_name, 2)
    old = owner(protocol, topic_name)
    old.fence()
    before = destination(shared_broker.bootstrap, protocol, [topic_name], old)
    writer = Writer(before)
    writer.send(topic_name, 0, *batch_of(b"old"))
    writer.finish()
    owner(protocol, topic_name).fence()
    for partition in (0, 1):  # touched, and not touched
        zombie = Writer(before)
        with pytest.raises(SinkFenced):
            zombie.send(topic_name, partition, *batch_of(b"zombie"))
            zombie.finish()
        zombie.close()
    with pytest.raises(SinkFenced):
        old.end(commit=True)
    assert committed(shared_broker.bootstrap, topic_name) == []


def test_a_record_that_the_broker_does_not_take_says_so(shared_broker, protocol, topic_name) -> None:
    create_topic(shared_broker.bootstrap, topic_name, 1, **{"max.message.bytes": "1000"})
    mine = owner(protocol, topic_name)
    mine.fence()
    writer = Writer(destination(shared_broker.bootstrap, protocol, [topic_name], mine))
    with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes"):
        writer.send(topic_name, 0, *batch_of(b"x" * 2000))
        writer.finish()
    writer.close()


def test_the_lost_answer_of_a_commit_is_asked_for_again(broker, topic_name) -> None:
    with DroppingProxy() as proxy:
        start_behind(proxy, broker)
        create_topic(proxy.bootstrap, topic_name, 1)
        protocol = Protocol(Connection(proxy.bootstrap, timeout_s=5))
        mine = owner(protocol, topic_name)
        first = mine.fence()
        writer = Writer(destination(proxy.bootstrap, protocol, [topic_name], mine))
        writer.send(topic_name, 0, *batch_of(b"once"))
        writer.finish()
        proxy.drop_answers(END_TXN, times=2)
        mine.end(commit=True)
        assert proxy.dropped == 2
        assert mine.producer == Producer(first.id, first.epoch + 1)
        assert committed(proxy.bootstrap, topic_name) == [b"once"]
        protocol.close()


def test_a_commit_that_nobody_answers_has_an_unknown_outcome(broker, topic_name) -> None:
    with DroppingProxy() as proxy:
        start_behind(proxy, broker)
        create_topic(proxy.bootstrap, topic_name, 1)
        protocol = Protocol(Connection(proxy.bootstrap, timeout_s=2))
        mine = owner(protocol, topic_name, patience_s=0.5)
        mine.fence()
        writer = Writer(destination(proxy.bootstrap, protocol, [topic_name], mine))
        writer.send(topic_name, 0, *batch_of(b"x"))
        writer.finish()
        proxy.drop_answers(END_TXN, times=1000)
        with pytest.raises(OutcomeUnknown):
            mine.end(commit=True)
        protocol.close()


def test_lost_answers_of_produce_repeat_nothing(broker, topic_name) -> None:
    with DroppingProxy() as proxy:
        start_behind(proxy, broker)
        create_topic(proxy.bootstrap, topic_name, 2)
        protocol = Protocol(Connection(proxy.bootstrap, timeout_s=5))
        mine = owner(protocol, topic_name)
        mine.fence()
        writer = Writer(destination(proxy.bootstrap, protocol, [topic_name], mine))
        for index in range(60):
            if index in (5, 20, 41):
                proxy.drop_answers(0, times=1)
            writer.send(topic_name, index % 2, *batch_of(b"%d" % index))
        writer.finish()
        mine.end(commit=True)
        assert proxy.dropped == 3
        expected = [b"%d" % i for i in range(0, 60, 2)] + [b"%d" % i for i in range(1, 60, 2)]
        assert committed(proxy.bootstrap, topic_name) == expected
        protocol.close()


def test_a_broker_that_is_killed_and_comes_back_gets_every_batch_once(broker, topic_name) -> None:
    made = broker({})
    create_topic(made.bootstrap, topic_name, 1)
    protocol = Protocol(Connection(made.bootstrap))
    mine = owner(protocol, topic_name)
    mine.fence()
    writer = Writer(destination(made.bootstrap, protocol, [topic_name], mine))
    for index in range(40):
        if index == 20:
            made.kill()
            threading.Thread(target=made.restart).start()
        writer.send(topic_name, 0, *batch_of(b"%d" % index))
    writer.finish()
    mine.end(commit=True)
    assert committed(made.bootstrap, topic_name) == [b"%d" % index for index in range(40)]
    protocol.close()


def test_old_brokers_are_refused(broker) -> None:
    made = broker({})
    protocol = Protocol(Connection(made.bootstrap))
    lower_transaction_version(protocol)
    with pytest.raises(SinkError, match=r"transaction\.version=1.*at-least-once"):
        owner(protocol, "any").fence()
    protocol.close()


def lower_transaction_version(protocol: Protocol) -> None:
    from millstream.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

    update = FeatureUpdateKey(feature="transaction.version", max_version_level=1, upgrade_type=2)
    answer = protocol.ask(UpdateFeaturesRequest(timeout_ms=10_000, feature_updates=[update]))
    assert answer.error_code == 0, answer


def test_a_timeout_beyond_the_brokers_limit_says_so(protocol, topic_name) -> None:
    with pytest.raises(SinkError, match=r"transaction\.max\.timeout\.ms"):
        owner(protocol, topic_name, timeout_ms=10**9).fence()


# ---- progress --------------------------------------------------------------------------------------------------


def record(
    bootstrap: str, protocol: Protocol, topic: ProgressTopic, by: TransactionOwner, progress: Progress
) -> None:
    place = topic.home(progress.sink)
    to = Destination(
        Connection(bootstrap),
        {place.partition: place.leader.node},
        {place.leader.node: place.leader},
        by.transactional_id,
        by.producer,
    )
    writer = Writer(to)
    writer.send(place.partition.topic, place.partition.partition, *progress.to_batch())
    writer.finish()


def progress_of(sink: str, batch: int) -> Progress:
    return Progress(sink, "query", batch, f"hash-{batch}", batch + 1, {"t": 3}, 1000)


def test_the_newest_committed_progress_of_a_sink_is_found(shared_broker, protocol, topic_name) -> None:
    topic = ProgressTopic(protocol, Connection(shared_broker.bootstrap), topic_name)
    topic.open(10)
    assert topic.read("one", 10) is None
    mine, other = owner(protocol, f"{topic_name}-1"), owner(protocol, f"{topic_name}-2")
    mine.fence(), other.fence()
    for batch, commit in enumerate((True, True, False)):
        record(shared_broker.bootstrap, protocol, topic, mine, progress_of("one", batch))
        mine.end(commit=commit)
        record(shared_broker.bootstrap, protocol, topic, other, progress_of("two", batch + 10))
        other.end(commit=True)
    assert topic.read("one", 10) == progress_of("one", 1)
    assert topic.read("two", 10) == progress_of("two", 12)


def test_reading_progress_waits_for_a_strangers_open_transaction(
    impatient: LocalBroker, topic_name: str
) -> None:
    protocol = Protocol(Connection(impatient.bootstrap))
    topic = ProgressTopic(protocol, Connection(impatient.bootstrap), topic_name)
    topic.open(10)
    mine, stranger = owner(protocol, f"{topic_name}-1"), owner(protocol, f"{topic_name}-2", timeout_ms=2000)
    mine.fence(), stranger.fence()
    record(impatient.bootstrap, protocol, topic, stranger, progress_of("stranger", 0))
    record(impatient.bootstrap, protocol, topic, mine, progress_of("one", 5))
    mine.end(commit=True)
    with pytest.raises(ProgressConflict, match="millstream transactions list"):
        topic.read("one", 0.1)
    assert topic.read("one", 60) == progress_of("one", 5)  # the stranger's timeout ends it
    assert topic.read("stranger", 10) is None
    protocol.close()


def test_a_progress_topic_that_forgets_is_refused(shared_broker, protocol, topic_name) -> None:
    create_topic(shared_broker.bootstrap, topic_name, 1)
    with pytest.raises(SinkError, match="not compacted"):
        ProgressTopic(protocol, Connection(shared_broker.bootstrap), topic_name).open(10)


def test_a_transaction_that_nobody_ends_ends_by_itself(impatient: LocalBroker, topic_name: str) -> None:
    protocol = Protocol(Connection(impatient.bootstrap))
    create_topic(impatient.bootstrap, topic_name, 1)
    left = owner(protocol, topic_name, timeout_ms=1000)
    left.fence()
    writer = Writer(destination(impatient.bootstrap, protocol, [topic_name], left))
    writer.send(topic_name, 0, *batch_of(b"orphan"))
    writer.finish()
    other = owner(protocol, f"{topic_name}-other")
    other.fence()
    writer = Writer(destination(impatient.bootstrap, protocol, [topic_name], other))
    writer.send(topic_name, 0, *batch_of(b"fine"))
    writer.finish()
    other.end(commit=True)
    deadline = time.monotonic() + 60
    while committed(impatient.bootstrap, topic_name) != [b"fine"]:
        assert time.monotonic() < deadline, "the last stable offset does not move on"
        time.sleep(0.2)
    with pytest.raises(SinkFenced):
        left.end(commit=True)
    assert left.was_aborted(), "the clock is to blame"
    owner(protocol, topic_name).fence()
    assert not left.was_aborted(), "somebody else is"
    protocol.close()
