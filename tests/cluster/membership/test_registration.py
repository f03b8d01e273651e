"""The registration of a broker: its own old one is replaced, another broker's is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from millstream.broker import identity
from millstream.cluster.membership.identity import ClusterIdentity
from millstream.cluster.membership.registration import (
    NOT_REGISTERED,
    AlreadyRegistered,
    Registration,
    wait_for_id,
)
from millstream.control import znodes
from millstream.control.znodes import BrokerEndpoint, BrokerRegistration
from millstream.log.directories import file_names
from millstream.ports.coordination import Cancel, Create, Node, SessionState
from millstream.testing.coordination import SharedTree, TreeSession
from support.in_process import InProcessBroker

PATIENCE_S = 120.0
CLUSTER = "cluster"


def registration(session: TreeSession, *, disk: str = "a", port: int = 9092) -> Registration:
    broker = BrokerRegistration(1, (BrokerEndpoint("PLAINTEXT", "h", port),), incarnation=disk)
    return Registration(session, broker, ClusterIdentity(session, CLUSTER), now_ms=lambda: 0)


async def found(session: TreeSession) -> BrokerRegistration | None:
    node = await session.get(znodes.broker_path(1))
    return znodes.decode_broker(1, node.data, node.created) if node is not None else None


def on(test: Callable[[SharedTree], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(PATIENCE_S):
            tree = SharedTree()
            await (await tree.open()).multi(
                [Create(znodes.CLUSTER_ID, znodes.encode_cluster_id(CLUSTER))]
            )
            await test(tree)

    asyncio.run(run())


def test_a_restarted_broker_replaces_its_old_registration():
    async def test(tree: SharedTree) -> None:
        old, new = await tree.open(), await tree.open()
        before, after = registration(old), registration(new, port=9099)
        await before.register(timeout_s=0)
        await after.register(timeout_s=0)
        assert after.epoch > before.epoch > NOT_REGISTERED
        tree.end(old.number)  # deletes nothing that is not its own
        there = await found(new)
        assert there is not None and (there.epoch, there.endpoints[0].port) == (after.epoch, 9099)

    on(test)


def test_the_registration_of_another_broker_is_kept_and_awaited():
    async def test(tree: SharedTree) -> None:
        theirs, ours = await tree.open(), await tree.open()
        other, late = registration(theirs), registration(ours, disk="b", port=9099)
        await other.register(timeout_s=0)
        with pytest.raises(AlreadyRegistered, match="broker id 1 is in use by h:9092"):
            await late.register(timeout_s=0)
        assert late.epoch == NOT_REGISTERED
        there = await found(ours)
        assert there is not None and there.epoch == other.epoch
        waiting = asyncio.create_task(late.register(timeout_s=PATIENCE_S))
        await asyncio.sleep(0)
        tree.end(theirs.number)
        await waiting
        assert late.epoch > other.epoch

    on(test)


@pytest.mark.parametrize("data", [b"", b"[]", b'{"endpoints":[]}'])
def test_an_unreadable_registration_is_replaced(data: bytes):
    async def test(tree: SharedTree) -> None:
        session = await tree.open()
        await session.multi([Create(znodes.broker_path(1), data)])
        current = registration(session)
        await current.register(timeout_s=0)
        there = await found(session)
        assert there is not None and there.epoch == current.epoch

    on(test)


def test_a_directory_is_not_claimed_for_the_id_of_another_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The directory would reject the right id afterwards."""
    monkeypatch.setattr(identity, "_REGISTRATION_S", 0.0)
    tree = SharedTree()

    def broker(directory: str, node: int) -> InProcessBroker:
        settings = {
            "log.dirs": tmp_path / directory,
            "node.id": node,
            "zookeeper.session.timeout.ms": 300,
        }
        return InProcessBroker(settings | {"zookeeper.connect": "zk:2181"}, coordination=tree.open)

    def new() -> list[str]:
        return [path.name for path in (tmp_path / "new").iterdir() if path.name != file_names.LOCK]

    with broker("old", 0):
        with pytest.raises(
            identity.StartError, match=r"broker id 0 is in use by .*; give this broker another"
        ):
            broker("new", 0).start()
        assert new() == []
        with broker("new", 5):
            assert file_names.META_PROPERTIES in new()


def test_an_id_is_awaited_until_its_session_has_ended():
    async def test(tree: SharedTree) -> None:
        theirs, ours = await tree.open(), await tree.open()
        await registration(theirs).register(timeout_s=0)
        waiting = asyncio.create_task(wait_for_id(ours, 1, timeout_s=PATIENCE_S))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        tree.end(theirs.number)
        await waiting

    on(test)


def test_a_broker_registers_again_in_every_new_session():
    async def test(tree: SharedTree) -> None:
        session = await tree.open()
        current = registration(session)
        await current.register(timeout_s=0)
        first = current.epoch
        running = asyncio.create_task(current.run())
        current._on_session(SessionState.EXPIRED)
        assert current.epoch == NOT_REGISTERED
        current._on_session(SessionState.CONNECTED)
        while current.epoch == NOT_REGISTERED:  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0)
        running.cancel()
        there = await found(session)
        assert there is not None and there.epoch == current.epoch > first

    on(test)


def test_a_session_that_ends_during_registration_is_not_registered():
    """Both may reach the loop together. This broker would never register again."""

    async def test(tree: SharedTree) -> None:
        class Session(TreeSession):
            def on_session(self, callback: Callable[[SessionState], None]) -> Cancel:
                listeners.append(callback)
                return lambda: None

            async def get(self, path: str) -> Node | None:
                node = await super().get(path)
                if node is not None and not ended:
                    ended.append(node.created)
                    for tell in listeners:
                        tell(SessionState.EXPIRED)
                return node

        listeners: list[Callable[[SessionState], None]] = []
        ended: list[int] = []
        session = await tree.open()
        session.__class__ = Session
        current = registration(session)
        await current.register(timeout_s=PATIENCE_S)
        assert current.epoch > ended[0]
        there = await found(session)
        assert there is not None and there.epoch == current.epoch

    on(test)
