"""Long work in slices of the loop's turns: shared round robin, ended when no one waits for it, done
once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import pytest
import uvloop

from millstream.ports import turns
from millstream.ports.turns import Pace, in_slices, once_each, run_first_slice

Scenario = Callable[[], Awaitable[None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop

    def run_scenario(scenario: Scenario) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(scenario(), 120))

    return run_scenario


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step is all that fits into a quantum, and one quantum into a turn."""
    monkeypatch.setattr(turns, "_QUANTUM_S", 0.0)
    monkeypatch.setattr(turns, "_SLICE_S", 0.0)


def counting(done: list[Any], name: str, count: int) -> Generator[None, None, str]:
    for n in range(count):
        done.append((name, n))
        yield
    return f"{name} is done"


def test_short_work_ends_in_its_first_slice(run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(turns, "_QUANTUM_S", 60.0)  # a busy machine may stop the process in between

    async def scenario() -> None:
        assert run_first_slice(counting([], "a", 3)) == ("a is done",)

    run(scenario)


@pytest.mark.usefixtures("tiny")
def test_long_work_goes_on_where_the_first_slice_ended(run):
    async def scenario() -> None:
        done: list[Any] = []
        steps = counting(done, "a", 5)
        assert run_first_slice(steps) is None
        assert done == [("a", 0)]
        assert await in_slices(steps) == "a is done"
        assert done == [("a", n) for n in range(5)]

    run(scenario)


@pytest.mark.usefixtures("tiny")
def test_turns_are_shared_round_robin(run):
    async def scenario() -> None:
        done: list[Any] = []

        async def paced() -> None:
            pace = Pace()
            for n in range(5):
                done.append(("paced", n))
                await pace.rest()

        await asyncio.gather(
            in_slices(counting(done, "a", 5)), in_slices(counting(done, "b", 5)), paced()
        )
        assert sorted(done) == [(name, n) for name in ("a", "b", "paced") for n in range(5)]
        for n in range(4):  # none is more than two steps ahead of another
            first = {name for name, step in done[: 3 * n + 6] if step >= n}
            assert first == {"a", "b", "paced"}

    run(scenario)


@pytest.mark.usefixtures("tiny")
def test_others_have_turns_between_the_slices(run):
    async def scenario() -> None:
        done: list[Any] = []
        work = asyncio.ensure_future(in_slices(counting(done, "a", 100)))
        seen = []
        while not work.done():
            await asyncio.sleep(0)
            seen.append(len(done))
        assert len(set(seen)) >= 50

    run(scenario)


@pytest.mark.usefixtures("tiny")
def test_work_ends_when_no_one_waits_for_it(run):
    async def scenario() -> None:
        done: list[Any] = []
        ended: list[str] = []

        def work() -> Generator[None, None, None]:
            try:
                yield from counting(done, "a", 1_000_000)
            finally:
                ended.append("closed")

        task = asyncio.ensure_future(in_slices(work()))
        while len(done) < 10:  # noqa: ASYNC110 - turns are counted
            await asyncio.sleep(0)
        task.cancel()
        while not ended:  # noqa: ASYNC110 - turns are counted
            await asyncio.sleep(0)
        assert len(done) < 1000

    run(scenario)


def test_error_of_a_step_reaches_whoever_waits(run):
    def broken() -> Generator[None, None, None]:
        yield
        raise ValueError("a bad item")

    async def scenario() -> None:
        with pytest.raises(ValueError, match="a bad item"):
            run_first_slice(broken())
        with pytest.raises(ValueError, match="a bad item"):
            await in_slices(broken())

    run(scenario)


def test_repeated_items_are_worked_out_once(run):
    async def scenario() -> None:
        asked: list[str] = []

        async def work(item: str) -> str:
            asked.append(item)
            return item.upper()

        assert await once_each(["a", "b", "a", "c", "b"], work) == ["A", "B", "A", "C", "B"]
        assert asked == ["a", "b", "c"]

    run(scenario)
