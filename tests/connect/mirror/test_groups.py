"""What a mirror looks after beside the copying, on two real brokers and without Spark: offsets of groups, topics and their settings."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')

import millstream.testing
from millstream.client.admin.client import Admin
from millstream.client.consumer import Consumer
from millstream.client.errors import ClientError
from millstream.client.producer import Producer
from millstream.connect.mirror.declare import directions
from millstream.connect.mirror.direction import Direction, Ids, find_ids
from millstream.connect.mirror.groups import GroupKeeper
from millstream.connect.mirror.policy import HEADER, Origin
from millstream.connect.mirror.resume import resumed
from millstream.connect.mirror.settings import TIMES
from millstream.connect.mirror.topics import TopicKeeper
from millstream.core.errors import ErrorCode
from millstream.core.ids import id_text
from millstream.core.types import TopicPartition


class World(NamedTuple):
    a: Admin
    b: Admin
    topic: str
    group: str

    def direction(self, **given: Any) -> Direction:
        ends = f"a={self.a.connection.bootstrap}", f"b={self.b.connection.bootstrap}"
        return directions(*ends, topics=f"{self.topic}.*", **{"groups": self.group, **given})[0]

    def groups(self, **given: Any) -> GroupKeeper:
        direction = self.direction(**given)
        return GroupKeeper(direction, find_ids(direction), "own", self.a, self.b)

    def ids(self) -> Ids:
        return find_ids(self.direction())

    def send(self, admin: Admin, topic: str, count: int) -> None:
        with Producer(admin.connection.bootstrap) as producer:
            for number in range(count):
                producer.send(topic, b"%d" % number, partition=0)

    def copy(self, sources: Sequence[int], *, to: str | None = None, old: bool = False) -> None:
        """What a mirror from a would write to b; an ``old`` version did not name the topic's id."""
        topic_id = "" if old else id_text(self.a.protocol.topic_ids()[self.topic])
        with Producer(self.b.connection.bootstrap) as producer:
            for offset in sources:
                origin = Origin(self.ids().source, self.topic, 0, offset, topic_id)
                producer.send(to or f"a.{self.topic}", b"c", partition=0, headers=[(HEADER, origin.encode())])


@pytest.fixture(scope="module")
def admins() -> Iterator[tuple[Admin, Admin]]:
    with (
        millstream.testing.broker() as a,
        millstream.testing.broker() as b,
        Admin(a.bootstrap) as one,
        Admin(b.bootstrap) as other,
    ):
        yield one, other


@pytest.fixture
def world(admins: tuple[Admin, Admin]) -> World:
    made = World(*admins, f"t{uuid.uuid4().hex[:8]}", f"g{uuid.uuid4().hex[:8]}")
    made.a.topics.create(made.topic, partitions=1)
    made.b.topics.create(f"a.{made.topic}", partitions=1)
    return made


class TestGroups:
    def test_the_first_unread_record_whatever_is_missing_in_between(self, world: World) -> None:
        world.copy([0, 1, 4, 9, 10])
        here, there = TopicPartition(world.topic, 0), TopicPartition(f"a.{world.topic}", 0)
        keeper = world.groups()
        for committed, expected in ((1, 1), (2, 2), (4, 2), (5, 3), (10, 4), (11, 5)):
            world.a.groups.alter(world.group, {here: committed})
            keeper.run()
            assert world.b.groups.committed(world.group) == {there: expected}, committed
        assert keeper.run() == {}

    def test_behind_the_mirror_it_waits_at_the_end_and_moves_on_later(self, world: World) -> None:
        world.copy([0, 1])
        here, there = TopicPartition(world.topic, 0), TopicPartition(f"a.{world.topic}", 0)
        world.a.groups.alter(world.group, {here: 4})
        keeper = world.groups()
        assert keeper.run() == {world.group: {there: 2}}
        world.copy([2, 3, 4])
        assert keeper.run() == {world.group: {there: 4}}

    def test_what_is_not_committed_yet_is_not_skipped(self, world: World) -> None:
        here, there = TopicPartition(world.topic, 0), TopicPartition(f"a.{world.topic}", 0)
        world.copy([0])
        world.a.groups.alter(world.group, {here: 1})
        bootstrap = world.b.connection.bootstrap
        with Producer(bootstrap, transactional_id=world.topic) as producer, producer.transaction():
            producer.send(there.topic, b"open", partition=0, headers=[(HEADER, b"x/y/0/1")])
            producer.flush()
            assert world.groups().run() == {world.group: {there: 1}}

    def test_nothing_moves_back_and_nobody_is_overruled(self, world: World) -> None:
        world.copy(range(10))
        here, there = TopicPartition(world.topic, 0), TopicPartition(f"a.{world.topic}", 0)
        world.a.groups.alter(world.group, {here: 3})
        world.b.groups.alter(world.group, {there: 7})
        keeper = world.groups()
        assert keeper.run() == {}, "it has read further in b"
        world.a.groups.alter(world.group, {here: 8})
        assert keeper.run() == {world.group: {there: 8}}
        world.b.groups.alter(world.group, {there: 2})
        assert keeper.run() == {}, "someone has set it back on purpose"
        world.a.groups.alter(world.group, {here: 9})
        with Consumer(
            world.b.connection.bootstrap, there.topic, group=world.group, auto_commit=False
        ) as live:
            while not live.poll():
                pass
            assert keeper.run() == {}, "it runs there"
        assert keeper.run() == {world.group: {there: 9}}

    def test_groups_that_are_not_wanted_stay(self, world: World) -> None:
        world.copy([0])
        world.a.groups.alter(world.group, {TopicPartition(world.topic, 0): 1})
        assert world.groups(groups="others").run() == {}

    def test_copies_of_the_targets_records_lead_back_to_them(self, world: World) -> None:
        world.b.topics.create(world.topic, partitions=1)
        world.a.topics.create(f"b.{world.topic}", partitions=1)
        world.send(world.b, world.topic, 6)
        with Producer(world.a.connection.bootstrap) as producer:
            for offset in (0, 2, 5):
                origin = Origin(world.ids().target, world.topic, 0, offset)
                producer.send(f"b.{world.topic}", b"c", headers=[(HEADER, origin.encode())])
        keeper = world.groups(both=True)
        for committed, expected in ((1, 2), (2, 5), (3, 6)):
            world.a.groups.alter(world.group, {TopicPartition(f"b.{world.topic}", 0): committed})
            keeper.run()
            assert world.b.groups.committed(world.group) == {TopicPartition(world.topic, 0): expected}

    def test_in_a_shared_topic_nothing_unread_is_skipped(self, world: World) -> None:
        """a: its 0, 1, b's 0, its 3. b: its 0, a's 0 and 1, its 3."""
        place, ids = TopicPartition(world.topic, 0), world.ids()
        world.b.topics.create(world.topic, partitions=1)
        with Producer(world.a.connection.bootstrap) as producer:
            for origin in (None, None, Origin(ids.target, world.topic, 0, 0), None):
                headers = None if origin is None else [(HEADER, origin.encode())]
                producer.send(world.topic, b"v", headers=headers)
        world.send(world.b, world.topic, 1)
        world.copy([0, 1], to=world.topic)
        world.send(world.b, world.topic, 1)
        expected = {0: 0, 1: 0, 2: 0, 3: 3, 4: 3}  # 1: b's 0 is unread; 3: all but b's own 3
        for committed, offset in expected.items():
            keeper = world.groups(both=True, naming="identity", groups=f"{world.group}-{committed}")
            world.a.groups.alter(f"{world.group}-{committed}", {place: committed})
            keeper.run()
            assert world.b.groups.committed(f"{world.group}-{committed}") == {place: offset}, committed


class TestTopics:
    def test_topics_are_made_grown_and_set(self, world: World) -> None:
        said: list[str] = []
        name = f"{world.topic}.made"
        world.a.topics.create(name, partitions=2, configs={"cleanup.policy": "compact"})
        keeper = TopicKeeper(world.direction(), world.a, world.b, said.append)
        keeper.ensure({name: 2})
        assert len(world.b.topics.get(f"a.{name}").partitions) == 2
        assert world.b.configs.overrides("topic", f"a.{name}") == {"cleanup.policy": "compact", **TIMES}
        world.a.topics.add_partitions(name, 5)
        world.a.configs.alter("topic", name, {"retention.ms": "5"}, delete=["cleanup.policy"])
        keeper.ensure({name: 5})
        assert len(world.b.topics.get(f"a.{name}").partitions) == 5
        assert world.b.configs.overrides("topic", f"a.{name}") == {"retention.ms": "5", **TIMES}
        assert any("created: 2 partitions, 1 replicas" in one for one in said)
        before = len(said)
        keeper.run()
        assert len(said) == before, "nothing has changed"

    def test_a_topic_that_cannot_be_made_does_not_hold_up_the_others(self, world: World) -> None:
        said: list[str] = []
        long, wide, fine = (f"{world.topic}.{one}" for one in ("l" * 239, "0wide", "fine"))
        world.a.topics.create(wide, partitions=3)
        world.a.topics.create(long, partitions=1)
        world.a.topics.create(fine, partitions=1)
        world.b.topics.create(f"a.{wide}", partitions=1)
        target = Refusing(world.b.connection.bootstrap, f"a.{wide}")
        keeper = TopicKeeper(world.direction(), world.a, target, said.append)
        keeper.run()
        assert f"a.{fine}" in world.b.topics.names()
        assert keeper.refused == {f"a.{wide}": "no more partitions here"}
        told = [one for one in said if "created" not in one and world.topic in one and "settings" not in one]
        assert sorted(told) == [
            f"topic a.{wide} of b: no more partitions here",
            f"topic {long} is not mirrored: with its prefix the name would be longer than 249 characters",
        ]
        assert not world.direction().selection.copies(long)
        assert world.direction(naming="identity").selection.copies(long)


class Refusing(Admin):
    """A cluster whose policy does not let one topic grow."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(bootstrap)
        add = self.topics.add_partitions

        def refuse(name: str, *given: Any, **more: Any) -> Any:
            if name == topic:
                raise ClientError("no more partitions here", code=ErrorCode.POLICY_VIOLATION)
            return add(name, *given, **more)

        self.topics.add_partitions = refuse  # type: ignore[method-assign]


class TestResuming:
    def test_a_mirror_without_its_checkpoint_begins_behind_the_last_copies(self, world: World) -> None:
        world.a.topics.add_partitions(world.topic, 2)
        world.copy([0, 1, 5])
        found = resumed(world.direction(), f"{world.topic}.a-to-b")
        assert found.starting == f'{{"{world.topic}": {{"0": 6, "1": -2}}}}'

    def test_a_topic_that_was_made_again_begins_anew(self, world: World) -> None:
        """Its offsets count from 0 again: going on behind the copies of the old one would skip records."""
        world.copy([0, 1, 5])
        here, there = TopicPartition(world.topic, 0), TopicPartition(f"a.{world.topic}", 0)
        world.a.groups.alter(world.group, {here: 1})
        keeper = world.groups()
        assert keeper.run() == {world.group: {there: 1}}
        before = world.a.protocol.topic_ids()[world.topic]
        world.a.topics.delete(world.topic)
        while world.topic in world.a.topics.names():
            time.sleep(0.02)
        world.a.topics.create(world.topic, partitions=1)
        while world.a.protocol.topic_ids().get(world.topic) in (None, before):
            time.sleep(0.02)
        writer = f"{world.topic}.a-to-b"
        assert resumed(world.direction(), writer).starting == f'{{"{world.topic}": {{"0": -2}}}}'
        world.copy([0, 1, 2])
        world.a.groups.alter(world.group, {here: 2})
        assert keeper.run() == {world.group: {there: 5}}, "the third copy of the new topic"
        assert resumed(world.direction(), writer).starting == f'{{"{world.topic}": {{"0": 3}}}}'

    def test_copies_that_name_no_topic_id_are_not_trusted(self, world: World) -> None:
        world.copy([0, 1], old=True)
        with pytest.raises(ClientError, match="does not say which topic") as told:
            resumed(world.direction(), f"{world.topic}.a-to-b")
        assert f"--exclude '{world.topic}'" in told.value.hint
        world.copy([2])
        found = resumed(world.direction(), f"{world.topic}.a-to-b")
        assert found.starting == f'{{"{world.topic}": {{"0": 3}}}}'
