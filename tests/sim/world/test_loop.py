"""The simulated loop: virtual time, order, pauses, deaths, threads and deadlocks."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Coroutine
from typing import Any

import pytest

from millstream.sim.world.isolation import isolated
from millstream.sim.world.loop import ProcessDied, SimLoop, SimulationError, across, spawn
from millstream.sim.world.machines import World


def run(
    work: Coroutine[Any, Any, Any], world: World | None = None, limit_s: float = 10_000.0
) -> Any:
    world = world or World(1)
    with isolated(world.scheduler, 1):
        task = world.process("main").start(work)
        world.scheduler.run_until(task.done, limit_s)
        assert not world.scheduler.errors
        return task.result()


def test_an_hour_passes_at_once() -> None:
    async def story() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert 3600 <= run(story()) < 3601


def test_timeouts_and_timers_fire_in_the_order_of_their_times() -> None:
    async def story() -> list[str]:
        seen: list[str] = []
        loop = asyncio.get_running_loop()
        loop.call_later(3, seen.append, "third")
        loop.call_later(1, seen.append, "first")
        cancelled = loop.call_later(1.5, seen.append, "never")
        cancelled.cancel()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await asyncio.Event().wait()
        seen.append("second")
        await asyncio.sleep(2)
        return seen

    assert run(story()) == ["first", "second", "third"]


def test_callbacks_run_in_the_order_they_became_ready() -> None:
    async def story() -> list[int]:
        seen: list[int] = []

        async def callback(n: int) -> None:
            for step in range(3):
                seen.append(10 * step + n)
                await asyncio.sleep(0)

        await asyncio.gather(*(callback(n) for n in range(3)))
        return seen

    assert run(story()) == [0, 1, 2, 10, 11, 12, 20, 21, 22]


def test_callbacks_take_a_little_time_so_that_turns_end() -> None:
    async def story() -> int:
        loop = asyncio.get_running_loop()
        turns, until = 0, loop.time() + 0.004
        while loop.time() < until:
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert run(story()) > 10


def test_executor_work_runs_later_and_reports_failure() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        results: list[str] = []
        future = loop.run_in_executor(None, results.append, "done")
        assert results == []
        await future
        assert results == ["done"]
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, divmod, 1, 0)

    run(story())


def test_paused_process_does_nothing_until_it_resumes() -> None:
    world = World(1)

    async def ticks(seen: list[float]) -> None:
        while True:
            await asyncio.sleep(1)
            seen.append(asyncio.get_running_loop().time())

    async def story() -> None:
        seen: list[float] = []
        other = world.process("other")
        other.start(ticks(seen))
        await asyncio.sleep(2.5)
        other.loop.pause(10)
        await asyncio.sleep(9.9)
        assert len(seen) == 2
        await asyncio.sleep(2)
        assert len(seen) >= 3 and 12.5 <= seen[2] < 13

    run(story(), world)


def test_killed_process_runs_nothing_not_even_cleanup() -> None:
    world = World(1)

    async def story() -> None:
        seen: list[str] = []

        async def lives() -> None:
            try:
                await asyncio.sleep(5)
            finally:
                seen.append("cleaned up")

        other = world.process("other")
        with pytest.raises(ProcessDied):
            asyncio.get_running_loop().call_later(1, other.loop.kill)
            await across(other.loop, lives())
        await asyncio.sleep(10)
        assert seen == []
        with pytest.raises(ProcessDied):
            await across(other.loop, lives())

    run(story(), world)


def test_deadlock_reports_where_every_task_waits() -> None:
    async def waits_for_nothing() -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimulationError, match=r"deadlock(.|\n)*waits_for_nothing"):
        run(waits_for_nothing())


def test_endless_run_reports_where_every_task_waits() -> None:
    async def goes_on_for_ever() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(1)

    with pytest.raises(SimulationError, match=r"not done after 50(.|\n)*goes_on_for_ever"):
        run(goes_on_for_ever(), limit_s=50)


def test_unhandled_exception_is_an_error_of_the_run() -> None:
    world = World(1)

    async def story() -> None:
        asyncio.get_running_loop().call_soon(divmod, 1, 0)
        await asyncio.sleep(1)

    with pytest.raises(AssertionError):
        run(story(), world)
    assert "ZeroDivisionError" in world.scheduler.errors[0]


def test_time_and_random_numbers_come_from_the_simulation() -> None:
    def ids() -> tuple[float, uuid.UUID]:
        async def story() -> tuple[float, uuid.UUID]:
            await asyncio.sleep(7)
            with pytest.raises(SimulationError):
                time.sleep(1)  # noqa: ASYNC251
            return time.monotonic(), uuid.uuid4()

        drawn: tuple[float, uuid.UUID] = run(story())
        return drawn

    real = time.monotonic
    assert ids() == ids() and 7 <= ids()[0] < 8
    assert time.monotonic is real


def test_tasks_in_a_set_come_out_in_the_same_order_every_time() -> None:
    def order() -> list[str]:
        world = World(1)
        loop = SimLoop(world.scheduler, "other")  # type: ignore[abstract]

        async def nothing() -> None:
            pass

        tasks = {spawn(loop, nothing(), str(n)) for n in range(50)}
        names = [task.get_name() for task in tasks]
        world.scheduler.run_until(lambda: all(task.done() for task in tasks), 10)
        return names

    assert order() == order()
