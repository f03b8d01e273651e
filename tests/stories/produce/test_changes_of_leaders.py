"""What librdkafka does around a change of leaders, step by step: it ends well, and badly where
leaders take any sequence of a producer that they do not know.
"""

from __future__ import annotations

from typing import ClassVar

import pytest

from millstream.cluster.replicas.partition import Partition
from millstream.sim.checks.history import OK
from millstream.sim.checks.history_checks import Violation
from millstream.sim.clients.producers import Producer
from support.sim.stories import KEY, Story, play


class Overtaken(Story):
    """The second batch of a producer is at the leader before the first has come back from another
    broker, and what is before an acknowledged batch counts as written.
    """

    leader: ClassVar[int]

    async def overtake(self) -> list[Violation]:
        producer = Producer(self.client, hasty=True)
        await producer.init()
        batches = await producer.deliver([(KEY, ["first"]), (KEY, ["second"])])
        assert [batch.outcome for batch in batches] == [OK, OK]
        written = {value for batch in self.log(self.leader).batches for value in batch.values}
        lost = {"first", "second"} - written
        return [
            *self.judged(self.leader),
            *(Violation("acknowledged-lost", KEY, value) for value in lost),
        ]


class AfterAnElection(Overtaken):
    """The leader goes before the first batch gets to it."""

    leader = 2

    async def tell(self) -> list[Violation]:
        await self.send(await self.producer(), "the client knows who leads")
        self.expire(1)
        await self.until(lambda: self.leads(2) and self.partition(1).leader == 2)
        return await self.overtake()


class SentOn(Overtaken):
    """Nobody has led before, and the client has been told too early of a leader that does not know
    it yet.
    """

    leader = 1

    async def tell(self) -> list[Violation]:
        await self.send(await self.producer(), "the client knows the brokers")
        self.client._leaders["data", 0] = 3
        return await self.overtake()


STORIES = pytest.mark.parametrize("story", [AfterAnElection, SentOn])


@STORIES
def test_what_is_overtaken_is_waited_for(story: type[Overtaken]) -> None:
    assert play(story) == []


@STORIES
def test_what_is_overtaken_is_lost_where_a_leader_takes_any_sequence(
    story: type[Overtaken], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Partition, "_check_predecessor", lambda self, records, log: None)
    assert play(story) == ["acknowledged-lost"]
