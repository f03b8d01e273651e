"""A new leader knows the sequences of ended transactions: as a follower it read them in the log."""

from __future__ import annotations

from collections.abc import Callable

from millstream.core.errors import ErrorCode as E
from support.clusters import InProcessCluster, ProcessCluster
from support.processes import wait_until
from support.raw_transactions import RawTransactions

OLD = [b"old-%d" % number for number in range(5)]
NEW = [b"new-%d" % number for number in range(5)]


def abort_with_batch_in_log(
    cluster: InProcessCluster | ProcessCluster, topic: str, node: int
) -> RawTransactions:
    """Abort a transaction whose client does not learn that its batch is in the log.

    ``node`` is the broker that describes the cluster.
    """
    producer = RawTransactions(cluster.bootstrap_of(node), topic, topic).init()
    producer.add()
    assert producer.send(OLD[:2], 0).error_code == E.NONE
    assert producer.send(OLD[2:], 2).error_code == E.NONE
    producer.end(commit=False)
    assert producer.read() == []
    return producer


def check_rejected_then_committed(producer: RawTransactions) -> None:
    producer.add()
    for values, sequence in ((NEW[:2], 0), (NEW[2:], 2), (NEW, 0), (NEW[:1], 3)):
        answer = producer.send(values, sequence)
        assert (answer.error_code, answer.log_start_offset) == (E.UNKNOWN_PRODUCER_ID, 0)
    producer.end(commit=False)
    producer.init(keep_producer=True)
    producer.add()
    sent = producer.send(NEW, 0)
    assert sent.error_code == E.NONE
    again = producer.send(NEW, 0)
    assert (again.error_code, again.base_offset) == (E.NONE, sent.base_offset)
    producer.end(commit=True)
    assert producer.read() == NEW


def test_new_leader_rejects_sequences_of_ended_transaction(
    shared_cluster: InProcessCluster,
) -> None:
    topic = "aborted-then-moved"
    shared_cluster.create_topic(topic, at={0: (0, 1, 2)})
    producer = abort_with_batch_in_log(shared_cluster, topic, 0)
    shared_cluster.move_leader(topic, 0, 1)
    check_rejected_then_committed(producer)


def test_open_transaction_continues_with_the_new_leader(shared_cluster: InProcessCluster) -> None:
    """A true retry is recognised by the follower that took over."""
    topic = "retried-after-move"
    shared_cluster.create_topic(topic, at={0: (0, 1, 2)})
    producer = abort_with_batch_in_log(shared_cluster, topic, 0)
    producer.add()
    sent = producer.send(NEW, 5)
    assert sent.error_code == E.NONE
    shared_cluster.move_leader(topic, 0, 2)
    again = producer.send(NEW, 5)
    assert (again.error_code, again.base_offset) == (E.NONE, sent.base_offset)
    assert producer.send(OLD[2:], 2).error_code == E.UNKNOWN_PRODUCER_ID
    producer.end(commit=True)
    assert producer.read() == NEW


def test_fail_over_after_leader_is_killed_loses_no_committed_records(
    process_cluster: Callable[..., ProcessCluster],
) -> None:
    with process_cluster(3) as cluster:
        topic = "aborted-then-killed"
        cluster.create_topic(topic, at={0: (0, 1, 2)})
        producer = abort_with_batch_in_log(cluster, topic, 1)
        cluster.brokers[0].kill()
        wait_until(lambda: cluster.leader(topic) in (1, 2), "a follower to lead")
        check_rejected_then_committed(producer)
