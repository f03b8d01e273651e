"""Timers by key: each fires once, in order, at its last time, without leaving stale entries."""

from __future__ import annotations

import asyncio

from millstream.cluster.coordinators.timers import Timers
from support.cluster.host_world import until


def test_timers_fire_once_in_the_order_of_their_times() -> None:
    async def story() -> None:
        fired: list[object] = []
        timers = Timers(fired.append)
        for key, delay_s in (("c", 0.03), ("a", 0.0), ("b", 0.01), ("never", 60.0)):
            timers.arm(key, delay_s)
        await until(lambda: len(fired) >= 3, "three timers")
        assert fired == ["a", "b", "c"] and len(timers) == 1
        timers.close()
        assert len(timers) == 0

    asyncio.run(story())


def test_the_last_time_of_a_key_counts() -> None:
    async def story() -> None:
        fired: list[object] = []
        timers = Timers(fired.append)
        timers.arm("later", 0.001)
        timers.arm("later", 60.0)
        timers.arm("sooner", 60.0)
        timers.arm("sooner", 0.001)
        timers.arm("gone", 0.001)
        timers.disarm("gone")
        timers.disarm("never armed")
        timers.arm("end", 0.01)
        await until(lambda: "end" in fired, "the last timer")
        assert fired == ["sooner", "end"] and len(timers) == 1
        timers.close()

    asyncio.run(story())


def test_other_tasks_get_a_turn_while_thousands_are_due() -> None:
    async def story() -> None:
        fired: list[object] = []
        timers = Timers(fired.append)
        for number in range(1_000):
            timers.arm(number, 0.0)
        seen = []
        while len(fired) < 1_000:
            await asyncio.sleep(0)
            seen.append(len(fired))
        assert fired == list(range(1_000))
        assert len(set(seen)) > 10
        timers.close()

    asyncio.run(story())


def test_a_timer_may_arm_and_close_while_it_fires() -> None:
    async def story() -> None:
        fired: list[object] = []

        def fire(key: object) -> None:
            fired.append(key)
            if len(fired) < 3:
                timers.arm(f"after {key}", 0.0)
            else:
                timers.close()

        timers = Timers(fire)
        timers.arm("a", 0.0)
        timers.arm("far", 60.0)
        await until(lambda: len(fired) == 3, "three timers")
        assert fired == ["a", "after a", "after after a"] and len(timers) == 0

    asyncio.run(story())


def test_an_overdue_timer_fires_at_once() -> None:
    async def story() -> None:
        fired: list[object] = []
        timers = Timers(fired.append)
        timers.arm("overdue", -1_000.0)
        await until(lambda: fired, "the timer")
        timers.close()

    asyncio.run(story())


def test_heartbeats_do_not_pile_up() -> None:
    """A session is postponed with every heartbeat; it keeps its heap entry until its turn."""

    async def story() -> None:
        timers = Timers(lambda key: None)
        for round_number in range(200):
            for member in range(100):
                timers.arm(member, 60.0 + round_number)
        assert len(timers) == len(timers._heap) == 100
        timers.close()

    asyncio.run(story())


def test_outdated_times_and_keys_are_dropped() -> None:
    async def story() -> None:
        timers = Timers(lambda key: None)
        for round_number in range(200):
            for member in range(100):
                timers.arm(member, 600.0 - round_number)
                timers.arm((member, round_number), 60.0)
                timers.disarm((member, round_number))
        assert len(timers) == 100
        assert len(timers._heap) < 2_000 and len(timers._queued) < 2_000
        timers.close()

    asyncio.run(story())


def test_postponed_timers_fire_in_their_new_order() -> None:
    async def story() -> None:
        fired: list[object] = []
        timers = Timers(fired.append)
        timers.arm("put off", 0.0)
        timers.arm("next", 0.001)
        timers.arm("put off", 0.02)
        timers.arm("back and forth", 60.0)
        timers.arm("back and forth", 0.0)
        timers.arm("back and forth", 0.01)
        await until(lambda: len(fired) >= 3, "three timers")
        assert fired == ["next", "back and forth", "put off"] and len(timers) == 0
        timers.close()

    asyncio.run(story())
