"""Startup steps are undone in reverse order, each once, even after a partial startup."""

from __future__ import annotations

import asyncio

import pytest

from millstream.broker.lifecycle import Lifecycle


def lifecycle(done: list[str]) -> Lifecycle:
    made = Lifecycle()

    async def later(what: str) -> None:
        await asyncio.sleep(0)
        done.append(what)

    made.push(lambda: done.append("close storage"), abandon=lambda: done.append("release storage"))
    made.push(lambda: later("stop tasks"))
    made.push(lambda: later("close server"), abandon=lambda: later("abort server"))
    return made


def test_stop_runs_in_reverse_order_and_once() -> None:
    async def story() -> None:
        done: list[str] = []
        made = lifecycle(done)
        await made.stop()
        assert done == ["close server", "stop tasks", "close storage"]
        await made.stop()
        await made.abandon()
        assert len(done) == 3

    asyncio.run(story())


def test_abandon_only_releases() -> None:
    async def story() -> None:
        done: list[str] = []
        made = lifecycle(done)
        await made.abandon()
        assert done == ["abort server", "release storage"]
        await made.stop()
        assert len(done) == 2

    asyncio.run(story())


def test_failing_step_does_not_prevent_the_others() -> None:
    async def story() -> None:
        done: list[str] = []
        made = lifecycle(done)

        async def fail() -> None:
            raise OSError("no")

        made.push(fail)
        with pytest.raises(OSError, match="no"):
            await made.stop()
        assert done == ["close server", "stop tasks", "close storage"]

    asyncio.run(story())


def test_step_pushed_during_stop_is_undone_too() -> None:
    """The startup may still be in progress when the broker is stopped."""

    async def story() -> None:
        done: list[str] = []
        made = lifecycle(done)
        made.push(lambda: made.push(lambda: done.append("pushed late")))
        await made.stop()
        assert done == ["pushed late", "close server", "stop tasks", "close storage"]

    asyncio.run(story())
