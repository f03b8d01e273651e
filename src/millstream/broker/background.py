"""Tasks that run for as long as the broker does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger("millstream.broker")


class BackgroundTasks:
    """Keeps the tasks. If one ends while the broker runs, that is a bug: the broker shuts down.

    ``failed`` gets the reason why the broker cannot continue. The starter of the broker watches it.
    """

    def __init__(self) -> None:
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []

    def run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and not self.failed.done():
                logger.error("%s ended unexpectedly", name, exc_info=task.exception())
                self.fail(f"{name} ended unexpectedly; the log above says why")

        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(ended)
        self._tasks.append(task)

    def fail(self, reason: str) -> None:
        """Report that the broker cannot continue; the first reason counts."""
        if not self.failed.done():
            self.failed.set_result(reason)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
