"""What librdkafka does around a change of leaders, step by step: it ends well, and badly where leaders take any sequence of a producer that they do
not know."""

from __future__ import annotations

import pytest
from stories import KEY, Story, play

from millstream.cluster.partition import Partition
from millstream.sim.checkers import Violation
from millstream.sim.clients import Producer
from millstream.sim.history import OK


class FirstBatchIsOvertaken(Story):
    """The leader goes before a producer's first batch gets to it. The second one is at the new leader before the first has come back, and what is
    before an acknowledged batch counts as written."""

    async def tell(self) -> list[Violation]:
        await self.send(await self.producer(), "the client knows who leads")
        self.expire(1)
        await self.until(lambda: self.leads(2) and self.partition(1).leader == 2)
        producer = Producer(self.client, hasty=True)
        await producer.init()
        batches = await producer.deliver([(KEY, ["first"]), (KEY, ["second"])])
        assert [batch.outcome for batch in batches] == [OK, OK]
        written = {value for batch in self.log(2).batches for value in batch.values}
        lost = {"first", "second"} - written
        return [*self.judged(2), *(Violation("acknowledged-lost", KEY, value) for value in lost)]


def test_what_is_overtaken_is_waited_for() -> None:
    assert play(FirstBatchIsOvertaken) == []


def test_what_is_overtaken_is_lost_where_a_new_leader_takes_any_sequence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Partition, "_check_predecessor", lambda self, records, log: None)
    assert play(FirstBatchIsOvertaken) == ["acknowledged-lost"]
