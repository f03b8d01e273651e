"""A topic that is deleted and made again at once, on a leader that has much else to do: it knows of
the new topic, and still has the old one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, ClassVar

import pytest

from millstream.cluster.replicas.hosting import ReplicaHosting
from millstream.control.image import TopicImage
from millstream.sim.checks.history_checks import Violation
from millstream.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from support.sim.stories import Story, play

BUSY = "large"
BUSY_S = 2.5


@pytest.fixture
def busy_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics with thousands of partitions take time, in which others have their turns."""
    host = ReplicaHosting._host

    async def take_time(self: ReplicaHosting, topic: TopicImage, slices: Any) -> None:
        if topic.name.startswith(BUSY) and self._node_id == 1:
            await asyncio.sleep(BUSY_S)
        await host(self, topic, slices)

    monkeypatch.setattr(ReplicaHosting, "_host", take_time)


class MadeAnewMeanwhile(Story):
    """The followers have the new topic already and ask the leader for it by its id."""

    configs: ClassVar = {"min.insync.replicas": 2}

    async def tell(self) -> list[Violation]:
        producer = await self.producer()
        for value in ("old", "older"):
            await self.send(producer, value)
        old = self.partition(1).topic_id
        await self._create([self._large(f"{BUSY}-{i}") for i in range(2)])
        await self.delete_topic()
        self.acknowledged.clear()
        await self._create([*(self._large(f"{BUSY}-{i}") for i in range(2, 6)), self._made_anew()])
        assert self.partition(1).topic_id == old
        await self.send(await self.producer(), "new")
        await self.until(lambda: self.has(1) and self.partition(1).topic_id != old)
        await self.until(lambda: len(self.partition(1).isr) == 3)
        return self.judged(1)

    async def _create(self, rows: Iterable[CreatableTopic]) -> None:
        request = CreateTopicsRequest(topics=list(rows), timeout_ms=5000)
        answer = await self.client.request_any(request, 5)
        assert all(topic.error_code == 0 for topic in answer.topics)

    def _large(self, name: str) -> CreatableTopic:
        only_here = [CreatableReplicaAssignment(partition_index=0, broker_ids=[1])]
        return CreatableTopic(
            name=name, num_partitions=-1, replication_factor=-1, assignments=only_here
        )

    def _made_anew(self) -> CreatableTopic:
        everywhere = CreatableReplicaAssignment(partition_index=0, broker_ids=list(self.replicas))
        settings = [CreatableTopicConfig(name=n, value=str(v)) for n, v in self.configs.items()]
        return CreatableTopic(
            name="data",
            num_partitions=-1,
            replication_factor=-1,
            assignments=[everywhere],
            configs=settings,
        )


@pytest.mark.usefixtures("busy_leader")
def test_what_is_left_of_the_old_topic_answers_for_nobody() -> None:
    assert play(MadeAnewMeanwhile) == []
