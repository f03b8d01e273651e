"""Child processes, simulated: the job runs in this process, as one step, on the simulated disk."""

from __future__ import annotations

import asyncio
from typing import Any

from millstream.log.cleaner import compaction, job
from millstream.ports.files import Files
from millstream.ports.worker_child import resolve
from millstream.ports.workers import JobRunner, NewWorker

_BEGIN = f"{job.JOBS}:begin"


class SimWorker:
    """Implements `JobRunner`.

    The code of a compaction round keeps its state in its process. Here each worker keeps its own.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._round: Any = None

    async def run(self, function: str, *args: Any) -> Any:
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(None, self._run, function, args)
        if isinstance(result, bytes | bytearray | memoryview):
            return memoryview(bytearray(result))  # writable, as from a child
        return result

    def _run(self, function: str, args: tuple[Any, ...]) -> Any:
        child = compaction._child
        child.round = self._round
        try:
            if function == _BEGIN:
                args = (*args, self._files)
            return resolve(function)(*args)
        finally:
            self._round, child.round = child.round, None

    async def close(self) -> None:
        pass


def workers_on(files: Files) -> NewWorker:
    """Return the factory of a broker's workers."""

    def new(
        name: str, *, idle_exit_s: float | None = None, kill_on_cancel: bool = False
    ) -> JobRunner:
        return SimWorker(files)

    return new
