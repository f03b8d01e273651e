"""The child's side of a worker process, and the frames that both sides exchange.

A frame carries a short tuple. Its bytes-like elements are sent raw, beside the pickle of the
others, and arrive as writable memoryviews. So a 10 MB batch is neither copied by the pickler nor
held twice. This module imports nothing heavy, because its imports determine how fast a child
starts.
"""

from __future__ import annotations

import importlib
import os
import pickle
import queue
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

# Size of the pickle, and total size of the raw elements.
_HEAD = struct.Struct(">QQ")

FramePart = bytes | memoryview


class JobFailed(Exception):
    """A job raised an exception that cannot be pickled; the text describes it."""


def pack_frame(values: Sequence[Any]) -> list[FramePart]:
    """Return the parts of a frame, to be written one after the other."""
    raw = {
        i: memoryview(v).cast("B")
        for i, v in enumerate(values)
        if isinstance(v, bytes | bytearray | memoryview)
    }
    plain = [None if i in raw else v for i, v in enumerate(values)]
    pickled = pickle.dumps((plain, [(i, len(v)) for i, v in raw.items()]), protocol=5)
    head = _HEAD.pack(len(pickled), sum(map(len, raw.values())))
    return [head + pickled, *(view for view in raw.values() if len(view))]


def _unpack_body(body: bytearray, pickled_size: int) -> list[Any]:
    view = memoryview(body)
    values: list[Any]
    values, raw = pickle.loads(view[:pickled_size])
    at = pickled_size
    for i, size in raw:
        values[i] = view[at : at + size]
        at += size
    return values


class FrameReader:
    """Extracts frames from a stream: read into `space()`, then call `filled()` with the count."""

    def __init__(self) -> None:
        self._expect_head()

    def _expect_head(self) -> None:
        self._pickled_size = -1
        self._buffer = bytearray(_HEAD.size)
        self._at = 0

    def space(self) -> memoryview:
        return memoryview(self._buffer)[self._at :]

    def filled(self, count: int) -> list[Any] | None:
        """Return the values of a frame if it is now complete, else None."""
        self._at += count
        if self._at < len(self._buffer):
            return None
        if self._pickled_size < 0:
            self._pickled_size, raw_size = _HEAD.unpack(self._buffer)
            self._buffer = bytearray(self._pickled_size + raw_size)
            self._at = 0
            return None
        body, pickled_size = self._buffer, self._pickled_size
        self._expect_head()
        return _unpack_body(body, pickled_size)


def resolve(function: str) -> Callable[..., Any]:
    """Return the callable named `module:name`."""
    module, _, name = function.partition(":")
    resolved: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return resolved


def _portable(error: BaseException) -> BaseException:
    """Return the exception itself if the parent can unpickle it, else a JobFailed with its text."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return JobFailed(f"{type(error).__name__}: {error}")


def _run_job(function: str, args: Sequence[Any]) -> list[FramePart]:
    try:
        return pack_frame((True, resolve(function)(*args), ""))
    except BaseException as error:
        where = "in the worker:\n" + "".join(traceback.format_exception(error))
        return pack_frame((False, _portable(error), where))


def _write_all(fd: int, parts: Sequence[FramePart]) -> None:
    """Write all parts. Exit silently if the parent has exited."""
    try:
        for part in parts:
            view = memoryview(part)
            while len(view):
                view = view[os.write(fd, view) :]
    except BrokenPipeError:
        os._exit(0)


def _read_jobs(fd: int, jobs: queue.SimpleQueue[list[Any]]) -> None:
    """Read jobs until the parent closes the pipe or dies, then exit at once, even during a job.

    A job that outlives its broker would write to the same files as the next broker.
    """
    reader = FrameReader()
    while count := os.readv(fd, [reader.space()]):
        values = reader.filled(count)
        if values is not None:
            jobs.put(values)
    os._exit(0)


def _lower_priority(nice: int) -> None:
    """Give the broker precedence: lower CPU priority, and killed first when memory runs out."""
    os.nice(nice)
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    except OSError:
        pass  # not Linux, or /proc is read-only


def main() -> None:
    # Ctrl-C is for the broker, which then closes its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _lower_priority(int(sys.argv[1]))
    replies = os.dup(1)
    # A job that prints must not break the frames.
    os.dup2(2, 1)
    jobs: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(os.dup(0), jobs), daemon=True).start()
    while True:
        function, *args = jobs.get()
        _write_all(replies, _run_job(function, args))
        del args
