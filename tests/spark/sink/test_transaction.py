"""The owner of a transactional id, on a real broker and without Spark."""

from __future__ import annotations

import time

import pytest

from millstream.client.connection import Connection
from millstream.client.protocol import Protocol
from millstream.local.broker import LocalBroker
from millstream.spark.sink.failures import (
    OutcomeUnknown,
    SinkError,
    SinkFenced,
)
from millstream.spark.sink.writer import Producer, Writer
from support.spark.sink_parts import batch_of, destination, owner
from support.spark.sink_world import DroppingProxy, committed, create_topic, start_behind

END_TXN = 26


def test_committed_records_are_read_and_aborted_ones_are_not(
    shared_broker, protocol, topic_name
) -> None:
    create_topic(shared_broker.bootstrap, topic_name, 3)
    mine = owner(protocol, topic_name)
    mine.fence()
    epochs = [mine.producer.epoch]
    for round_, commit in enumerate((True, False, True)):
        writer = Writer(destination(shared_broker.bootstrap, protocol, [topic_name], mine))
        for partition in range(3):
            for index in range(9):
                writer.send(
                    topic_name, partition, *batch_of(b"%d-%d-%d" % (round_, partition, index))
                )
        written = writer.finish()
        assert sorted(written) == [(topic_name, partition, 9, 8, 9) for partition in range(3)]
        mine.end(commit=commit)
        epochs.append(mine.producer.epoch)
    assert epochs == list(range(epochs[0], epochs[0] + 4))
    expected = [b"%d-%d-%d" % (r, p, i) for p in range(3) for r in (0, 2) for i in range(9)]
    assert committed(shared_broker.bootstrap, topic_name) == expected


def test_older_owner_is_fenced_on_every_partition(shared_broker, protocol, topic_name) -> None:
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


def test_lost_response_of_a_commit_is_requested_again(broker, topic_name) -> None:
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


def test_commit_without_a_response_has_an_unknown_outcome(broker, topic_name) -> None:
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


def test_old_brokers_are_rejected(broker) -> None:
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


def test_timeout_beyond_the_brokers_limit_is_rejected(protocol, topic_name) -> None:
    with pytest.raises(SinkError, match=r"transaction\.max\.timeout\.ms"):
        owner(protocol, topic_name, timeout_ms=10**9).fence()


def test_abandoned_transaction_is_aborted_after_its_timeout(
    impatient: LocalBroker, topic_name: str
) -> None:
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
