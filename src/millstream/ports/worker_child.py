"""The child's side of a worker process, and the frames that both sides speak.

A frame carries a short tuple. Its bytes-like elements travel raw beside the pickle of the others, so that a 10 MB
batch is neither copied by the pickler nor held twice: they arrive as writable memoryviews. This module imports
nothing heavy: it decides how fast a child starts.
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

_HEAD = struct.Struct(">QQ")  # size of the pickle, size of the raw elements together

Part = bytes | memoryview


class JobFailed(Exception):
    """A job raised something that cannot be pickled; the text says what it was."""


def pack_frame(values: Sequence[Any]) -> list[Part]:
    """The parts of a frame, to be written one after the other."""
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
    """Takes frames out of a stream as its bytes come: read into `space()`, then tell `filled()` how many came."""

    def __init__(self) -> None:
        self._expect_head()

    def _expect_head(self) -> None:
        self._pickled_size = -1
        self._buffer = bytearray(_HEAD.size)
        self._at = 0

    def space(self) -> memoryview:
        return memoryview(self._buffer)[self._at :]

    def filled(self, count: int) -> list[Any] | None:
        """The values of a frame that is now complete, or None."""
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
    """The callable named `module:name`."""
    module, _, name = function.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def _portable(error: BaseException) -> BaseException:
    """The exception itself when the parent can unpickle it, else one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return JobFailed(f"{type(error).__name__}: {error}")


def _answer(function: str, args: Sequence[Any]) -> list[Part]:
    try:
        return pack_frame((True, resolve(function)(*args), ""))
    except BaseException as error:
        where = "in the worker:\n" + "".join(traceback.format_exception(error))
        return pack_frame((False, _portable(error), where))


def _write_all(fd: int, parts: Sequence[Part]) -> None:
    """A parent that is gone wants no answer: then this process ends without a word."""
    try:
        for part in parts:
            view = memoryview(part)
            while len(view):
                view = view[os.write(fd, view) :]
    except BrokenPipeError:
        os._exit(0)


def _read_jobs(fd: int, jobs: queue.SimpleQueue[list[Any]]) -> None:
    """Reads until the parent closes the pipe or dies. Then this process ends at once, also in the middle of a job:
    a job that outlives its broker would write beside the next one."""
    reader = FrameReader()
    while count := os.readv(fd, [reader.space()]):
        values = reader.filled(count)
        if values is not None:
            jobs.put(values)
    os._exit(0)


def _be_humble(nice: int) -> None:
    """Lets the broker go first: lower priority, and the first to go when memory runs out."""
    os.nice(nice)
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    except OSError:
        pass  # not Linux, or a sealed /proc


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which then closes us
    _be_humble(int(sys.argv[1]))
    replies = os.dup(1)
    os.dup2(2, 1)  # a job that prints must not break the frames
    jobs: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(os.dup(0), jobs), daemon=True).start()
    while True:
        function, *args = jobs.get()
        _write_all(replies, _answer(function, args))
        del args
