"""Replicas that are held back, by a throttle, a slow disk or a tail of their own, on the real
leaders and followers: nobody takes for committed or durable what is not.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from millstream.core.errors import ApiError
from millstream.sim.checks.history_checks import Violation
from millstream.sim.world.loop import across
from stories.replication.test_named_histories import Keyed
from support.sim.stories import HOST, KEY, Story, Worst, play

_USED_UP = 10**9
_THROTTLED: dict[str, object] = {
    "min.insync.replicas": 2,
    "leader.replication.throttled.replicas": "*",
}


def test_a_throttle_does_not_let_a_former_leader_take_its_own_tail_for_committed() -> None:
    assert play(ThrottledAndParted) == []


class ThrottledAndParted(Story):
    """A former leader with a tail that nobody else has is back while the throttle of the leader is
    used up by other moves.
    """

    configs: ClassVar = _THROTTLED
    settings: ClassVar = {"leader.replication.throttled.rate": 1000}

    async def tell(self) -> list[Violation]:
        producer = await self.producer()
        await self.send(producer, "first")
        await self.until(lambda: all(self.high_watermark(node) == 1 for node in self.replicas))
        self.cut(1, 2)
        self.cut(1, 3)
        other = await self.producer()
        sending = asyncio.get_running_loop().create_task(other.deliver([(KEY, ["alone on 1"])]))
        await self.until(lambda: self.end(1) == 2)
        self.kill(1)
        await self.until(lambda: self.leads(2))
        sending.cancel()
        for value in ("second", "third"):
            await self.send(producer, value)
        self.world.network.heal()
        throttle = self.brokers[2].broker.parts.leader_throttle
        assert throttle.active
        throttle.record(_USED_UP)
        await self.brokers[1].start()
        await self.until(lambda: self.has(1) and self.partition(1).leader == 2)
        await asyncio.sleep(2)
        values = [value for batch in self.log(1).batches for value in batch.values]
        shown = values[: self.high_watermark(1)]
        wrong = [value for value in shown if value.startswith("alone")]
        return [Violation("uncommitted-shown", KEY, value) for value in wrong] + self.judged(2)


def test_nothing_is_compacted_away_in_favour_of_a_tail_that_is_cut_later() -> None:
    assert play(ThrottledPartedAndCompacted) == []


class ThrottledPartedAndCompacted(Story):
    """The same where a key's last value counts: the tail must not supersede what is committed."""

    configs: ClassVar = {
        **_THROTTLED,
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.ms": 2000,
    }
    settings: ClassVar = {"leader.replication.throttled.rate": 1000}

    async def tell(self) -> list[Violation]:
        writer = Keyed(self.client)
        await writer.init()
        await writer.deliver([(KEY, ["kept=committed"])])
        await self.until(lambda: all(self.high_watermark(node) == 1 for node in self.replicas))
        self.cut(1, 2)
        self.cut(1, 3)
        unanswered = await self._write_alone("kept=alone", "x=1", "x=2")
        self.kill(1)
        await self.until(lambda: self.leads(2))
        for task in unanswered:
            task.cancel()
        for n in range(6):
            await writer.deliver([(KEY, [f"filler={n}"])])
        self.world.network.heal()
        throttle = self.brokers[2].broker.parts.leader_throttle
        await self.brokers[1].start()
        for _ in range(200):
            throttle.record(_USED_UP)
            await asyncio.sleep(0.1)  # time to compact, too
        throttle._rate.limit = None
        await self.until(lambda: len(self.partition(2).isr) == 3)
        self.kill(2)
        self.kill(3)
        await self.until(lambda: self.leads(1))
        values = [value for batch in self.log(1).batches for value in batch.values]
        return (
            []
            if "kept=committed" in values
            else [Violation("acknowledged-lost", KEY, "kept=committed")]
        )

    async def _write_alone(self, *values: str) -> list[asyncio.Task[Any]]:
        """In a segment each, to the leader that nobody follows."""
        other = Keyed(self.client)
        await other.init()
        tasks = []
        for value in values:
            await asyncio.sleep(3)
            end = self.end(1)
            tasks.append(asyncio.get_running_loop().create_task(other.deliver([(KEY, [value])])))
            await self.until(lambda end=end: self.end(1) == end + 1)
        await asyncio.sleep(8)
        return tasks


def test_a_new_leader_is_not_told_what_a_follower_has_not_on_its_disk_yet() -> None:
    assert play(FailOverDuringASlowSync) == []


class FailOverDuringASlowSync(Story):
    """flush.messages=1. The disk of one follower is slow, the leader dies meanwhile, and then
    everybody loses power.
    """

    configs: ClassVar = {"min.insync.replicas": 2, "flush.messages": 1}

    async def tell(self) -> list[Violation]:
        producer = await self.producer()
        await self.send(producer, "first")
        await self.until(lambda: all(self.high_watermark(node) == 1 for node in self.replicas))

        async def slow(call: Any) -> None:
            await asyncio.sleep(3600)

        self.brokers[3].broker.parts.housekeeping.blocking = slow
        sending = asyncio.get_running_loop().create_task(self.send(producer, "second"))
        await self.until(
            lambda: self.end(3) == 2 and self.partition(2).online_log.recovery_point == 2
        )
        await asyncio.sleep(1)
        assert self.high_watermark(1) == 1 and not sending.done(), "3 does not have it on its disk"
        self.kill(1)
        try:
            await sending
        except AssertionError:
            return []  # not acknowledged
        for node in (2, 3):
            self.brokers[node].machine.disk.dice = Worst()  # type: ignore[assignment]
            self.brokers[node].crash()
        self.expire(2)
        self.expire(3)
        await asyncio.sleep(1)
        await self.brokers[2].start()
        await asyncio.sleep(3)
        await self.brokers[3].start()
        await self.until(lambda: self.has(2) and self.has(3) and (self.leads(2) or self.leads(3)))
        await asyncio.sleep(3)
        return self.judged(2 if self.leads(2) else 3)


def test_a_replica_that_was_cut_hears_of_the_high_watermark_without_another_write() -> None:
    assert play(CutOnAnIdlePartition) == []


class CutOnAnIdlePartition(Story):
    """A former leader comes back with a tail of its own to a partition where nothing is written any
    more.
    """

    configs: ClassVar = {"min.insync.replicas": 2}

    async def tell(self) -> list[Violation]:
        producer = await self.producer()
        await self.send(producer, "first")
        await asyncio.sleep(5)  # this high watermark is in the checkpoint
        other = await self.producer()
        await self.send(producer, "second")
        self.cut(1, 2)
        self.cut(1, 3)
        sending = asyncio.get_running_loop().create_task(other.deliver([(KEY, ["alone on 1"])]))
        sending.add_done_callback(lambda done: done.cancelled() or done.exception())
        await self.at_once_when(lambda: self.end(1) == 3)
        self.kill(1)
        await self.until(lambda: self.leads(2))
        sending.cancel()
        await self.until(lambda: self.high_watermark(2) == 2)
        self.world.network.heal()
        await self.brokers[1].start()
        await self.until(
            lambda: self.has(1) and self.end(1) == 2 and len(self.partition(2).isr) == 3
        )
        sessions = self.brokers[2].broker.parts.fetch_sessions._sessions.values()
        busiest = max(sessions, key=lambda session: session.epoch)
        before = busiest.epoch
        await asyncio.sleep(30)
        told = self.high_watermark(1) == 2
        # Twice a second a follower asks for news that are not there.
        calm = busiest.epoch - before < 200
        return (
            []
            if told and calm
            else [Violation("never-told", KEY, f"{busiest.epoch - before} fetches")]
        )


def test_truncated_follower_learns_the_log_start_and_rejoins_the_isr() -> None:
    assert play(TruncatedAfterADeletion) == []


class TruncatedAfterADeletion(Story):
    """A former leader comes back with a tail of its own, after records were deleted. Nothing is
    written any more.
    """

    configs: ClassVar = {"min.insync.replicas": 2}

    async def tell(self) -> list[Violation]:
        producer = await self.producer()
        for value in ("first", "second"):
            await self.send(producer, value)
        await asyncio.sleep(5)  # this high watermark is in the checkpoint
        other = await self.producer()
        self.cut(1, 2)
        self.cut(1, 3)
        sending = asyncio.get_running_loop().create_task(other.deliver([(KEY, ["alone on 1"])]))
        sending.add_done_callback(lambda done: done.cancelled() or done.exception())
        await self.at_once_when(lambda: self.end(1) == 3)
        self.kill(1)
        await self.until(lambda: self.leads(2))
        sending.cancel()
        await self.until(lambda: self.high_watermark(2) == 2)
        self.client.forget_leader("data", 0)
        await self.delete_records(1)
        self.acknowledged = self.acknowledged[1:]
        self.world.network.heal()
        await self.brokers[1].start()
        await self.until(lambda: self.has(1) and self.end(1) == 2)
        await asyncio.sleep(5)
        start = self.partition(1).online_log.log_start_offset
        rejoined = 1 in self.partition(2).isr
        wrong = [] if rejoined else [Violation("not-converged", KEY, f"its log starts at {start}")]
        return wrong + self.judged(2)


def test_a_leader_that_was_replaced_without_knowing_it_is_not_confirmed() -> None:
    assert play(ReplacedWithoutKnowing) == []


class ReplacedWithoutKnowing(Story):
    """Its session is over and it hears of nothing: whoever asks it for the last word gets none, and
    its successor's is had.
    """

    async def tell(self) -> list[Violation]:
        producer = await self.producer()
        await self.send(producer, "first")
        await self.until(lambda: len(self.partition(1).isr) == 3)
        assert await self._confirmed(1), "followers that wait for news confirm it as well"
        self.world.network.cut("broker-1", HOST)
        self.world.network.cut(HOST, "broker-1")
        self.world.network.cut("broker-9", "broker-1")
        self.expire(1)
        await self.until(lambda: self.leads(2))
        assert self.leads(1), "it does not know"
        told = [node for node in (1, 2) if await self._confirmed(node)]
        return [] if told == [2] else [Violation("wrong-leader", KEY, f"{told}")]

    async def _confirmed(self, node: int) -> bool:
        process = self.brokers[node].process
        assert process is not None
        try:
            await across(process.loop, self.partition(node).confirm_leadership(5.0))
        except ApiError:
            return False
        return True
