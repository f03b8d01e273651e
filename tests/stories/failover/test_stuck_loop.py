"""A broker whose event loop is stuck loses its session, and the others take over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from millstream.ports.zookeeper.coordination import ZooKeeperCoordination
from millstream.wire.records.batch import Record, build_batch
from support.clusters import InProcessCluster
from support.in_process import InProcessBroker
from support.processes import wait_until
from support.raw import produce_request

STUCK = 1
BATCH = build_batch([Record(0, -1, None, b"v", ())])


@contextmanager
def stuck_loop(broker: InProcessBroker) -> Iterator[None]:
    """Block the event loop of a broker with one callback inside this context."""
    begun, over = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        over.wait()

    loop = broker.run(lambda: broker.broker.failed.get_loop())
    loop.call_soon_threadsafe(hold)
    assert begun.wait(120)
    try:
        yield
    finally:
        over.set()


def coordination_of(broker: InProcessBroker) -> ZooKeeperCoordination:
    coordination = broker.broker.parts.coordination
    assert isinstance(coordination, ZooKeeperCoordination)
    return coordination


def test_leadership_moves_from_a_broker_whose_loop_is_stuck(
    in_process_cluster: Callable[..., InProcessCluster], caplog: pytest.LogCaptureFixture
) -> None:
    with in_process_cluster(3) as cluster:
        cluster.create_topic("t", at={0: [STUCK, 2, 0]})
        assert cluster.leader("t") == STUCK
        broker = cluster.brokers[STUCK]
        broker.run(coordination_of(broker).watch_loop)
        with stuck_loop(broker):
            wait_until(lambda: cluster.leader("t") in (0, 2), "another broker to lead")
            with cluster.client(cluster.leader("t")) as client:
                answer = client.call(produce_request("t", 0, BATCH, acks=-1), 9)
                assert answer.responses[0].partition_responses[0].error_code == 0
        assert "over.wait()" in caplog.text  # the log shows what the loop was doing
        wait_until(lambda: cluster.in_sync("t") == 3, "the broker to follow when its loop goes on")


def test_pings_continue_before_the_loop_is_watched(
    in_process_cluster: Callable[..., InProcessCluster],
) -> None:
    """Recovery at startup may take longer than a session lasts."""
    with in_process_cluster(1) as cluster:
        (broker,) = cluster.brokers
        session = coordination_of(broker)._kazoo
        with stuck_loop(broker):
            assert not any(session._is_stuck() for _ in range(100))
