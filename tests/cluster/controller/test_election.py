"""A controller that stops makes room for the next one at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.cluster.controller.election import ControllerElection
from millstream.cluster.controller.partitions import PartitionControl
from millstream.cluster.controller.term import ControllerState
from millstream.cluster.membership.identity import ClusterIdentity
from millstream.control import znodes
from millstream.control.znodes import BrokerEndpoint, BrokerRegistration
from millstream.ports.coordination import Coordination, CoordinationError, Create, Node
from millstream.ports.embedded_coordination import EmbeddedCoordination
from millstream.sim.world.disk import SimDisk
from millstream.testing.coordination import SharedTree
from support.clusters import InProcessCluster
from support.in_process import InProcessBroker
from support.processes import wait_until

CLUSTER = "cluster"
FIRST = Create(znodes.CLUSTER_ID, znodes.encode_cluster_id(CLUSTER))


def test_stopping_controller_is_replaced_before_its_logs_are_closed(
    in_process_cluster: Callable[..., InProcessCluster],
) -> None:
    """Closing thousands of logs takes time, and the cluster needs a controller."""
    with in_process_cluster(3) as cluster:
        cluster.create_topic("t", 3)
        (first,) = [broker for broker in cluster.brokers if broker.broker.parts.member.state.active]
        others = [broker for broker in cluster.brokers if broker is not first]
        logs: Any = first.broker.logs
        close, followed = logs.close, []

        def close_late(**how: Any) -> None:
            wait_until(
                lambda: any(broker.broker.parts.member.state.active for broker in others),
                "another controller",
            )
            followed.append(True)
            close(**how)

        logs.close = close_late
        first.wait(first.broker.stop())
        first._dead = True
        assert followed and not first.broker.parts.member.state.active


def test_a_broker_that_has_resigned_does_not_run_again(tmp_path: Path) -> None:
    with InProcessBroker({"log.dirs": tmp_path / "data"}) as broker:
        election = broker.broker.parts.member.election

        async def resign_and_look() -> None:
            await election.resign()
            await election.look()

        broker.wait(resign_and_look())
        assert not broker.broker.parts.member.state.active


def candidate(
    store: Coordination, node: int, disk: str = ""
) -> tuple[ControllerState, ControllerElection]:
    state = ControllerState(store)
    control = PartitionControl(state, unclean=lambda image, topic: False)
    address = "h", 9092 + node
    identity = ClusterIdentity(store, CLUSTER)
    election = ControllerElection(
        node, address, store, state, control, identity, now_ms=lambda: 0, incarnation=disk
    )
    return state, election


async def new_store() -> EmbeddedCoordination:
    disk = SimDisk()
    disk.makedirs("/d")
    store = EmbeddedCoordination(disk, "/d/store")
    await store.load()
    await store.multi([FIRST])
    return store


def test_resigning_deletes_the_controller_node() -> None:
    async def run() -> None:
        store = await new_store()
        (first, election), (second, other) = candidate(store, 1), candidate(store, 2)
        await election.look()
        await other.look()
        assert (first.active, second.active, other.controller_id) == (True, False, 1)
        await election.resign()
        await election.look()
        assert not first.active
        await other.look()
        assert (first.active, second.active, second.term.epoch) == (False, True, 2)
        await election.look()
        assert election.controller_id == 2

    asyncio.run(run())


def test_a_term_starts_after_the_changes_of_the_previous_one() -> None:
    """A change planned in the earlier term must not be written in the next, with another image."""

    async def run() -> None:
        store = await new_store()
        state, election = candidate(store, 1)
        async with state.lock:
            looking = asyncio.create_task(election.look())
            for _turn in range(50):
                await asyncio.sleep(0)
            assert not state.active
        await looking
        assert state.active

    asyncio.run(run())


def test_another_broker_with_the_controllers_id_does_not_replace_it() -> None:
    async def run() -> None:
        tree = SharedTree()
        theirs, ours, later = await tree.open(), await tree.open(), await tree.open()
        await theirs.multi([FIRST])
        first, election = candidate(theirs, 1, "a")
        second, other = candidate(ours, 1, "b")
        await election.look()
        await other.look()
        assert (first.active, second.active, other.controller_id) == (True, False, 1)
        again, back = candidate(later, 1, "a")  # the same broker, before its old session has ended
        await back.look()
        assert again.active and again.term.epoch == first.term.epoch + 1

    asyncio.run(run())


def test_failed_read_of_the_brokers_is_repeated_at_the_next_look() -> None:
    async def run() -> None:
        tree = SharedTree()
        store, theirs = await tree.open(), await tree.open()
        await theirs.multi([FIRST])
        state, election = candidate(store, 1)
        await election.look()
        broker = BrokerRegistration(2, (BrokerEndpoint("PLAINTEXT", "h", 9094),))
        await theirs.multi(
            [Create(znodes.broker_path(2), znodes.encode_broker(broker, now_ms=0), True)]
        )
        election._on_brokers_changed()
        read = store.children

        async def refused(path: str) -> dict[str, Node]:
            raise CoordinationError("not now")

        store.children = refused  # type: ignore[method-assign]
        with pytest.raises(CoordinationError):
            await election.look()
        store.children = read  # type: ignore[method-assign]
        await election.look()
        assert set(state.image.brokers) == {2}

    asyncio.run(run())
