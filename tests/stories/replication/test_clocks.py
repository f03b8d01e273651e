"""Clocks that are set back on a running broker: how long a follower is behind is no matter of the
time of day.
"""

from __future__ import annotations

from typing import ClassVar

from millstream.sim.checks.history_checks import Violation
from support.sim.stories import Story, play

_QUARTER_MS = 900_000


class SetBack(Story):
    """A quarter of an hour back. A follower that is cut off afterwards, and has its session with
    ZooKeeper, leaves the ISR as soon as ever.
    """

    configs: ClassVar = {"min.insync.replicas": 2}
    settings: ClassVar = {"replica.lag.time.max.ms": 3000}

    async def tell(self) -> list[Violation]:
        producer = await self.producer()
        await self.send(producer, "first")
        await self.until(lambda: len(self.partition(1).isr) == 3)
        self.brokers[1].jump_clock(-_QUARTER_MS)
        self.cut(1, 3)
        await self.send(producer, "second")
        await self.until(lambda: set(self.partition(1).isr) == {1, 2})
        return self.judged(1)


def test_a_follower_that_is_cut_off_after_the_clock_was_set_back_is_not_waited_for() -> None:
    assert play(SetBack) == []


class ThrottledAndSetBack(Story):
    """A throttled follower whose own clock is set back, after it has used up its rate, is not held
    back for as long.
    """

    configs: ClassVar = {"min.insync.replicas": 2, "follower.replication.throttled.replicas": "*"}
    settings: ClassVar = {"follower.replication.throttled.rate": 1000}

    async def tell(self) -> list[Violation]:
        producer = await self.producer()
        await self.send(producer, "first")
        self.kill(3)
        await self.until(lambda: 3 not in self.partition(1).isr)
        await self.send(producer, "second")
        await self.brokers[3].start()
        self.brokers[3].broker.parts.follower_throttle.record(10_000)
        self.brokers[3].jump_clock(-_QUARTER_MS)
        await self.until(lambda: 3 in self.partition(1).isr)
        return self.judged(1)


def test_a_clock_that_was_set_back_does_not_prolong_a_throttle() -> None:
    assert play(ThrottledAndSetBack) == []
