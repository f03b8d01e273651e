"""The position where a mirror resumes, on two real brokers and without Spark."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')
from millstream.client.errors import ClientError
from millstream.connect.mirror.resume import resumed
from millstream.core.types import TopicPartition
from support.connect.mirror_directions import World


class TestResuming:
    def test_mirror_without_checkpoint_starts_after_the_last_copies(self, world: World) -> None:
        world.a.topics.add_partitions(world.topic, 2)
        world.copy([0, 1, 5])
        direction = resumed(world.direction(), f"{world.topic}.a-to-b")
        assert direction.starting == f'{{"{world.topic}": {{"0": 6, "1": -2}}}}'

    def test_recreated_topic_starts_at_the_beginning(self, world: World) -> None:
        """Its offsets start over, so resuming after the copies of the old topic
        would skip records.
        """
        world.copy([0, 1, 5])
        source, target = TopicPartition(world.topic, 0), TopicPartition(f"a.{world.topic}", 0)
        world.a.groups.alter(world.group, {source: 1})
        sync = world.groups()
        assert sync.run() == {world.group: {target: 1}}
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
        world.a.groups.alter(world.group, {source: 2})
        assert sync.run() == {world.group: {target: 5}}, "the third copy of the new topic"
        assert resumed(world.direction(), writer).starting == f'{{"{world.topic}": {{"0": 3}}}}'

    def test_copies_without_a_topic_id_are_not_trusted(self, world: World) -> None:
        world.copy([0, 1], old=True)
        with pytest.raises(ClientError, match="does not name the id of topic") as raised:
            resumed(world.direction(), f"{world.topic}.a-to-b")
        assert f"--exclude '{world.topic}'" in raised.value.hint
        world.copy([2])
        direction = resumed(world.direction(), f"{world.topic}.a-to-b")
        assert direction.starting == f'{{"{world.topic}": {{"0": 3}}}}'
