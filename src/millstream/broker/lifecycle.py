"""Shutdown of a broker: each startup step pushes its own stop, and these run in reverse order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

Step = Callable[[], Awaitable[None] | None]


class Lifecycle:
    """The steps that undo a complete or partial startup.

    ``stop`` is a clean shutdown. ``abandon`` releases sockets, files and child processes as a
    killed process does: no response is sent, nothing is flushed or marked as closed. Either undoes
    each step once.
    """

    def __init__(self) -> None:
        self._stops = AsyncExitStack()
        self._abandons = AsyncExitStack()

    def push(self, stop: Step, *, abandon: Step | None = None) -> None:
        self._stops.push_async_callback(_run, stop)
        if abandon is not None:
            self._abandons.push_async_callback(_run, abandon)

    async def stop(self) -> None:
        self._abandons.pop_all()
        await self._stops.aclose()

    async def abandon(self) -> None:
        self._stops.pop_all()
        await self._abandons.aclose()


async def _run(step: Step) -> None:
    result = step()
    if result is not None:
        await result
