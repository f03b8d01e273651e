"""A migration that is interrupted at every change of a file and every write to the tree.

Only one history can ever continue, and the same command completes or undoes the migration.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from millstream.broker.app import StartError
from millstream.broker.migration import to_zookeeper
from millstream.broker.migration.to_zookeeper import MigrationError, migrate_to, undo_migration
from millstream.control import znodes
from millstream.ports.coordination import ConnectionLost, Node, Write, sliced
from millstream.sim.world.disk import SimDisk, no_fault
from millstream.testing.coordination import SharedTree, TreeSession
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from support.in_process import InProcessBroker
from support.raw import RawClient, create_topic

ADDRESS = "zk:2181/mill"
MOST_STEPS = 200
ONE_PLACE = {"log.dirs": "/data"}
THREE_PLACES = {"log.dirs": "/data,/more", "metadata.log.dir": "/meta"}


class Killed(BaseException):
    """The command is interrupted here."""


class Steps:
    """Counts the changes of the command, and interrupts it before the change with this number."""

    def __init__(self, end: int | None = None) -> None:
        self.number = 0
        self.end = end

    def step(self) -> None:
        if self.number == self.end:
            raise Killed
        self.number += 1

    def change(self, operation: str, path: str) -> None:
        if operation not in ("read", "listdir", "open"):
            self.step()


class Session:
    """Writes to the tree are steps."""

    def __init__(self, session: TreeSession, steps: Steps) -> None:
        self._session = session
        self._steps = steps

    async def load(self) -> dict[str, Node]:
        return await self._session.load()

    async def get(self, path: str) -> Node | None:
        return await self._session.get(path)

    async def multi(self, writes: Sequence[Write]) -> None:
        self._steps.step()
        await self._session.multi(writes)


class ForgetfulSession(Session):
    """The connection breaks before the response; the write takes effect."""

    async def multi(self, writes: Sequence[Write]) -> None:
        await self._session.multi(writes)
        try:
            self._steps.step()
        except Killed:
            raise ConnectionLost("the connection broke") from None


class World:
    """The disks of a broker that was alone, and a ZooKeeper."""

    def __init__(self, settings: Mapping[str, str], disk: SimDisk) -> None:
        self.settings = settings
        self.disk = disk
        self.shared = SharedTree()

    def copied(self) -> World:
        other = World(self.settings, copy.deepcopy(self.disk))
        other.shared.tree = copy.deepcopy(self.shared.tree)
        return other

    def alone(self) -> InProcessBroker:
        return InProcessBroker(self.settings, files=self.disk)

    def member(self, **settings: str) -> InProcessBroker:
        settings = {**self.settings, "zookeeper.connect": ADDRESS, **settings}
        return InProcessBroker(settings, files=self.disk, coordination=self.shared.open)

    # ---- the command------------------------------------------------------------------------------

    def migrate(self, end: int | None = None, session: type[Session] = Session) -> None:
        self._run(migrate_to, Steps(end), session)

    def undo(self, end: int | None = None, session: type[Session] = Session) -> None:
        self._run(undo_migration, Steps(end), session)

    def _run(
        self, command: Callable[..., Awaitable[Any]], steps: Steps, kind: type[Session]
    ) -> None:
        async def run() -> None:
            session = await self.shared.open()
            self.disk.fault = steps.change
            dirs = self.settings["log.dirs"].split(",")
            metadata_dir = self.settings.get("metadata.log.dir")
            try:
                await command(
                    kind(session, steps), ADDRESS, dirs, metadata_dir=metadata_dir, files=self.disk
                )
            finally:
                self.disk.fault = no_fault
                await session.close()

        asyncio.run(run())

    # ---- what there is----------------------------------------------------------------------------

    def has_store(self) -> bool:
        places = [self.settings.get("metadata.log.dir"), *self.settings["log.dirs"].split(",")]
        return any(self.disk.exists(f"{place}/millstream.store") for place in places if place)

    def tree_of_a_cluster(self) -> bool:
        """Whether the tree has a cluster that a broker could join."""
        return self.shared.tree.get(znodes.CLUSTER_ID) is not None


class Known:
    """The metadata of a broker: topics with ids and settings, and its next producer id."""

    def __init__(self, broker: InProcessBroker) -> None:
        image = broker.broker.image
        self.topics, self.last_producer_id = broker.run(
            lambda: (
                {
                    name: (
                        topic.topic_id,
                        len(topic.states),
                        dict(image.topic_configs.get(name, {})),
                    )
                    for name, topic in image.topics.items()
                },
                image.last_producer_id,
            )
        )

    def holds(self, earlier: Known) -> bool:
        return self.topics == earlier.topics and self.last_producer_id >= earlier.last_producer_id


def produce_id(client: RawClient) -> None:
    answer = client.call(
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4
    )
    assert answer.error_code == 0 and answer.producer_id >= 0


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the tree takes several writes."""
    monkeypatch.setattr(to_zookeeper, "sliced", partial(sliced, max_bytes=900))


@pytest.fixture(scope="module", params=[ONE_PLACE, THREE_PLACES], ids=["one place", "three places"])
def begin(request: pytest.FixtureRequest) -> World:
    world = World(request.param, SimDisk(1))
    with world.alone() as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "a", 3, retention_ms=5)
        create_topic(client, "b")
        produce_id(client)
    return world


@pytest.fixture(scope="module")
def known(begin: World) -> Known:
    with begin.copied().alone() as broker:
        return Known(broker)


# ---- every step ----

Command = Callable[..., None]
Death = Callable[[SimDisk], None]
WAYS = [
    pytest.param(SimDisk.kill, Session, id="killed"),
    pytest.param(SimDisk.crash, Session, id="power interrupted"),
    pytest.param(SimDisk.kill, ForgetfulSession, id="connection lost"),
]


def interruptions(
    start: World, command: Command, death: Death, session: type[Session]
) -> Iterator[World]:
    """Yield the state after an interruption at each step; the last run completes."""
    for end in range(MOST_STEPS):
        world = start.copied()
        try:
            command(world, end, session)
        except (Killed, ConnectionLost):
            death(world.disk)
            yield world
        else:
            assert end > 8, "there are more steps than that"
            yield world
            return
    raise AssertionError("it never comes to its end")


def assert_one_history(interrupted: World, known: Known) -> None:
    """Check that the broker starts with all its metadata, or not at all.

    If it starts alone, a later migration includes its new topics.
    """
    alone, member = interrupted.copied(), interrupted.copied()
    try:
        with alone.alone() as broker, RawClient(broker.bootstrap) as client:
            assert Known(broker).holds(known)
            create_topic(client, "late")
            produce_id(client)
            later = Known(broker)
    except StartError as error:
        assert "millstream migrate --to zk:2181/mill" in str(
            error
        ) or "zookeeper.connect=zk" in str(error)
    else:
        with pytest.raises(StartError, match="millstream migrate"), alone.member():
            pass
        assert_finished(alone, later)
    try:
        with member.member() as broker:
            assert Known(broker).holds(known)
    except StartError as error:
        assert "millstream migrate --to zk:2181/mill" in str(error)
    else:
        with pytest.raises(StartError, match=r"zookeeper\.connect"), member.alone():
            pass


def assert_finished(world: World, known: Known) -> None:
    """Run the command again: it completes the migration, or says that it is complete."""
    try:
        world.migrate()
    except MigrationError as error:
        assert "in ZooKeeper already: zookeeper.connect=zk:2181/mill" in str(error)
    with pytest.raises(StartError, match=r"zookeeper\.connect=zk:2181/mill"), world.alone():
        pass
    with world.member() as broker:
        assert Known(broker).holds(known)


def assert_taken_back(world: World, known: Known) -> None:
    world.undo()
    assert not world.tree_of_a_cluster()
    with world.alone() as broker:
        assert Known(broker).holds(known)
    assert_finished(world, known)


@pytest.mark.parametrize(("death", "session"), WAYS)
def test_migration_interrupted_at_any_step_leaves_one_history(
    begin: World, known: Known, death: Death, session: type[Session]
) -> None:
    for interrupted in interruptions(begin, World.migrate, death, session):
        assert_one_history(interrupted, known)
        assert_finished(interrupted.copied(), known)
        if not interrupted.has_store():
            with pytest.raises(MigrationError, match="in ZooKeeper already"):
                interrupted.undo()
            continue
        try:
            assert_taken_back(interrupted, known)
        except MigrationError as error:
            assert "nothing to undo" in str(error) and not interrupted.tree_of_a_cluster()


@pytest.mark.parametrize(("death", "session"), WAYS)
@pytest.mark.parametrize("whole", [False, True], ids=["half a tree", "whole tree"])
def test_undo_interrupted_at_any_step_leaves_one_history(
    begin: World, known: Known, death: Death, session: type[Session], whole: bool
) -> None:
    moved = [
        interrupted
        for interrupted in interruptions(begin, World.migrate, SimDisk.kill, Session)
        if interrupted.has_store()
    ]
    start = moved[-1] if whole else moved[-4]
    assert whole == (b'"id"' in start.shared.tree.get(znodes.CLUSTER_ID).data)
    for interrupted in interruptions(start, World.undo, death, session):
        assert_one_history(interrupted, known)
        assert_finished(interrupted.copied(), known)
        if interrupted.tree_of_a_cluster():
            assert_taken_back(interrupted, known)
