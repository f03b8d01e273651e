"""Offsets of groups follow a mirror, on two real brokers and without Spark."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')
from millstream.client.consumer import Consumer
from millstream.client.producer import Producer
from millstream.connect.mirror.policy import HEADER, Origin
from millstream.core.types import TopicPartition
from support.connect.mirror_directions import World


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
