"""Child processes for work that would block the event loop.

Examples are compaction, recompression and format conversion. A Python thread beside the loop costs
it milliseconds of latency at every switch; a process costs it nothing. One `Worker` is one child,
which is started at the first job and restarted after it died. Jobs are named `"module:function"`
and run one at a time, in order. Their arguments and results are pickled (see `worker_child` for raw
bytes).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any, Protocol

from millstream.ports.worker_child import FramePart, FrameReader, JobFailed, pack_frame, resolve

__all__ = [
    "InlineWorker",
    "JobFailed",
    "JobRunner",
    "NewWorker",
    "Worker",
    "WorkerBusy",
    "WorkerClosed",
    "WorkerDied",
]

# Maximum bytes written to the pipe per callback: about 30 us.
_WRITE_CHUNK = 1 << 18
# fcntl.F_SETPIPE_SZ on Linux.
_F_SETPIPE_SZ = 1031
_PIPE_BYTES = 1 << 18
_CHILD = "from millstream.ports.worker_child import main; main()"


class WorkerDied(Exception):
    """The child died during this job: killed, out of memory, or a crash in native code."""


class WorkerBusy(Exception):
    """The queue of this worker is full."""


class WorkerClosed(Exception):
    """The worker was closed before the job completed."""


class JobRunner(Protocol):
    """Runs jobs: a worker process, or in simulation the event loop itself."""

    async def run(self, function: str, *args: Any) -> Any: ...

    async def close(self) -> None: ...


class NewWorker(Protocol):
    """A factory of workers: `Worker`, or in simulation a class that needs no process."""

    def __call__(
        self, name: str, *, idle_exit_s: float | None = None, kill_on_cancel: bool = False
    ) -> JobRunner: ...


class InlineWorker:
    """Runs each job at once in this process: for simulation and for tests of the callers.

    Bytes-like results are returned as writable memoryviews, as from a child.
    """

    async def run(self, function: str, *args: Any) -> Any:
        result = resolve(function)(*args)
        if isinstance(result, bytes | bytearray | memoryview):
            return memoryview(bytearray(result))
        return result

    async def close(self) -> None:
        pass


class Worker:
    """A child process that runs one job at a time.

    `queue_limit` is the maximum number of queued jobs; a further job raises WorkerBusy. A child
    without a job for `idle_exit_s` exits, which frees its memory. With `kill_on_cancel`, cancelling
    `run` kills the child and returns when it has exited. Otherwise a cancelled job completes and
    its result is dropped.
    """

    def __init__(
        self,
        name: str = "worker",
        *,
        queue_limit: int = 1024,
        idle_exit_s: float | None = None,
        kill_on_cancel: bool = False,
        nice: int = 10,
    ) -> None:
        self.name = name
        self.queue_limit = queue_limit
        self.idle_exit_s = idle_exit_s
        self.kill_on_cancel = kill_on_cancel
        self.nice = nice
        self.waiting = 0
        self._turn = asyncio.Lock()
        self._child: _Child | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process id of the child, or None if it is not running."""
        return (
            self._child.process.pid if self._child is not None and not self._child.ended else None
        )

    @property
    def busy(self) -> bool:
        return self._turn.locked()

    async def run(self, function: str, *args: Any) -> Any:
        """Call `module:name` with args in the child and return its result.

        Raise the exception that the job raised, or WorkerDied.
        """
        await self._take_turn()
        try:
            if self._closed:
                raise WorkerClosed(f"{self.name} is closed")
            child = self._running_child()
            reply = child.send(pack_frame((function, *args)))
        except BaseException:
            self._turn.release()
            raise
        # The turn ends with the job, not with its caller: a cancelled caller must not admit a
        # second job while the first one runs.
        reply.add_done_callback(self._job_done)
        return await self._result(child, reply)

    async def _take_turn(self) -> None:
        if self._closed:
            raise WorkerClosed(f"{self.name} is closed")
        if self.waiting >= self.queue_limit:
            raise WorkerBusy(f"the queue of {self.name} is full: {self.waiting} jobs")
        self.waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self.waiting -= 1

    async def _result(self, child: _Child, reply: asyncio.Future[list[Any]]) -> Any:
        try:
            outcome = await asyncio.shield(reply)
        except asyncio.CancelledError:
            if self.kill_on_cancel:
                await child.kill()
            raise
        done, value, where = outcome
        if done:
            return value
        value.add_note(where)
        # The traceback of an error refers to the frames of all callers, and so to the bytes of the
        # job. If these frames referred to the error, that would be a cycle, and the garbage
        # collector runs rarely.
        outcome.clear()
        try:
            raise value
        finally:
            del value

    def _running_child(self) -> _Child:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self._child is not None and self._child.process.poll() is not None:
            # It died while idle, and the loop has not noticed yet.
            self._child.dismiss()
        if self._child is None or self._child.ended:
            self._child = _Child(self.name, self.nice)
        return self._child

    def _job_done(self, reply: asyncio.Future[list[Any]]) -> None:
        # Mark the exception as retrieved, even if the caller was cancelled.
        reply.exception()
        self._turn.release()
        if self.idle_exit_s is not None and not self.waiting and not self._closed:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(self.idle_exit_s, self._end_idle_child)

    def _end_idle_child(self) -> None:
        self._idle_timer = None
        if self._child is not None and not self._turn.locked():
            self._child.dismiss()

    async def close(self) -> None:
        """Kill the child. Running and queued jobs fail with WorkerClosed."""
        self._closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self._child is not None:
            await self._child.kill(WorkerClosed(f"{self.name} was closed"))


class _Child:
    """A process and its two pipes, driven by callbacks of the loop. It runs one job at a time."""

    def __init__(self, name: str, nice: int) -> None:
        self.name = name
        self.ended = False
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader()
        self._to_write: list[memoryview] = []
        self._reply: asyncio.Future[list[Any]] | None = None
        self._exited: asyncio.Future[int] | None = None
        self.process = _spawn(name, nice)
        assert self.process.stdin is not None and self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)
        self._loop.add_reader(self._stdout, self._on_readable)

    def send(self, parts: list[FramePart]) -> asyncio.Future[list[Any]]:
        self._reply = self._loop.create_future()
        self._to_write = [memoryview(part) for part in parts]
        self._on_writable()
        if self._to_write:
            self._loop.add_writer(self._stdin, self._on_writable)
        return self._reply

    def _on_writable(self) -> None:
        try:
            count = os.write(self._stdin, self._to_write[0][:_WRITE_CHUNK])
        except BlockingIOError:
            return
        except OSError:
            # The child has exited; the end of its output fails the job.
            self._stop_writing()
            return
        rest = self._to_write[0][count:]
        self._to_write[:1] = [rest] if len(rest) else []
        if not self._to_write:
            self._stop_writing()

    def _stop_writing(self) -> None:
        self._to_write = []
        self._loop.remove_writer(self._stdin)

    def _on_readable(self) -> None:
        try:
            count = os.readv(self._stdout, [self._reader.space()])
        except BlockingIOError:
            return
        if not count:
            self._end(None)
            return
        try:
            values = self._reader.filled(count)
        except Exception as error:
            # Only the child can unpickle this result.
            values = [False, JobFailed("the result cannot be unpickled"), repr(error)]
        if values is not None and self._reply is not None:
            reply, self._reply = self._reply, None
            reply.set_result(values)

    def dismiss(self) -> None:
        """End an idle child."""
        self._end(None)

    async def kill(self, why: Exception | None = None) -> None:
        """Kill the child, even during a job, and return when it has exited."""
        self._end(why)
        assert self._exited is not None
        await asyncio.shield(self._exited)

    def _end(self, why: Exception | None) -> None:
        if self.ended:
            return
        self.ended = True
        self._stop_writing()
        self._loop.remove_reader(self._stdout)
        self.process.kill()
        self._exited = self._loop.run_in_executor(None, self._reap)
        self._exited.add_done_callback(lambda _: self._fail_job(why))

    def _reap(self) -> int:
        """Close the pipes and wait, in a thread: a swapped-out process exits slowly."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        return self.process.wait()

    def _fail_job(self, why: Exception | None) -> None:
        if self._reply is not None:
            reply, self._reply = self._reply, None
            died = WorkerDied(
                f"{self.name} (process {self.process.pid}) exited with {self.process.returncode} during a job"
            )
            reply.set_exception(why or died)


def _spawn(name: str, nice: int) -> subprocess.Popen[bytes]:
    """Start the child with this process's import path; takes about a millisecond (vfork)."""
    path = os.pathsep.join(p for p in sys.path if p)
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _CHILD, str(nice), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, "PYTHONPATH": path},
    )
    _enlarge_pipes(process)
    return process


def _enlarge_pipes(process: subprocess.Popen[bytes]) -> None:
    """Enlarge the pipes, for fewer wake-ups; keep the default size if the system rejects it."""
    import fcntl

    for pipe in (process.stdin, process.stdout):
        try:
            fcntl.fcntl(pipe.fileno(), _F_SETPIPE_SZ, _PIPE_BYTES)  # type: ignore[union-attr]
        except OSError:
            pass
