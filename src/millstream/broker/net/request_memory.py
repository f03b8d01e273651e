"""The memory of received requests, shared by all connections (queued.max.request.bytes).

Counted are the bytes that have arrived of frames that are not complete, and the copies that requests hold while they
are carried out. Above the limit the connections of large frames stop reading and wait here, first come, first served.
Small frames are never held up: heartbeats and fetches go on.

Incomplete frames alone can fill the memory, and none of them could ever be completed. One connection therefore reads on
above the limit, the favoured one. It loses its place to the next when little arrives for it. Each of them keeps what it
has received, so that this ends one request above the limit: from there on a favoured connection that stays silent is closed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

# How often the favoured connection is looked at while others wait, and how much must have arrived for it since.
_STALLED_S = 0.1
_PROGRESS_BYTES = 64 * 1024
# Without such progress for this long it is closed, if there is no memory to favour another one as well.
_GIVE_UP_S = 10.0
_SHARE_OF_MEMORY = 4
_SHARE_OF_IDS = 32
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class Reader(Protocol):
    """A connection, as far as its memory is concerned."""

    @property
    def received_bytes(self) -> int:
        """What has arrived of the frames that are not handled yet."""

    @property
    def missing_bytes(self) -> int:
        """What is still to come of the frame."""

    def stop_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def give_up(self) -> None:
        """Close the connection, to release what has arrived."""


class RequestMemory:
    """Bytes in use, and who waits for some of them to be released."""

    __slots__ = (
        "_favoured",
        "_favoured_had",
        "_held",
        "_silent_s",
        "_timer",
        "_waiting",
        "crowded",
        "limit",
        "most",
        "used",
    )

    def __init__(self, limit: int = sys.maxsize, largest_request: int = sys.maxsize) -> None:
        self.limit = limit
        self.most = limit + largest_request  # here no other connection is favoured
        # Connections add and subtract what arrives and what is done; then they call ``released``, if ``crowded``.
        self.used = 0
        self.crowded = False
        self._held = 0
        self._waiting: dict[Reader, None] = {}
        self._favoured: Reader | None = None
        self._favoured_had = 0
        self._silent_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def admits(self, reader: Reader) -> bool:
        """Whether a connection may read on above the limit; else it waits until ``resume_reading`` is called."""
        if reader is self._favoured:
            return True
        if self._favoured is None and not self._held and not self._waiting:
            self._favour(reader)
            return True
        self._waiting[reader] = None
        self._look()
        return False

    def released(self, reader: Reader | None = None) -> None:
        """Less is in use: a frame of this connection was handled, or the connection is closed."""
        if reader is not None:
            self._waiting.pop(reader, None)
            if reader is self._favoured:
                self._favoured = None
        self._look()

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Count a copy that a request holds while it is carried out."""
        self.used += size
        self._held += size
        try:
            yield
        finally:
            self.used -= size
            self._held -= size
            if self.crowded:
                self._look()

    def _look(self) -> None:
        """Let connections read on, as far as there is room for what they still miss."""
        room = self.limit - self.used
        while self._waiting and room > 0:
            reader = self._next()
            room -= reader.missing_bytes
            reader.resume_reading()
        # Held requests end by themselves, and then there is room. Nothing but a favour ends incomplete frames.
        if self._waiting and self._favoured is None and not self._held:
            reader = self._next()
            self._favour(reader)
            reader.resume_reading()
        self.crowded = bool(self._waiting) or self._favoured is not None
        if self._waiting and self._favoured is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_STALLED_S, self._replace_stalled)

    def _next(self) -> Reader:
        reader = next(iter(self._waiting))
        del self._waiting[reader]
        return reader

    def _favour(self, reader: Reader) -> None:
        self._favoured, self._favoured_had, self._silent_s = reader, reader.received_bytes, 0.0
        self.crowded = True

    def _replace_stalled(self) -> None:
        self._timer = None
        reader = self._favoured
        if reader is not None and self._waiting:
            if reader.received_bytes >= self._favoured_had + _PROGRESS_BYTES:
                self._favoured_had, self._silent_s = reader.received_bytes, 0.0
            elif self.used <= self.most:
                self._favoured = None
                reader.stop_reading()
                self._waiting[reader] = None
            else:
                self._silent_s += _STALLED_S
                if self._silent_s >= _GIVE_UP_S:
                    reader.give_up()  # which releases its memory, and its place
        self._look()


def limit_of(given: object, largest_request: int) -> int:
    """The limit in bytes as it was set, where 0 and less mean none; else a share of memory with room for any request."""
    if not isinstance(given, int):
        return max(machine_memory() // _SHARE_OF_MEMORY, largest_request)
    return given if given > 0 else sys.maxsize


def ids_limit_of(given: object) -> int:
    """The memory for transactional ids (transactional.ids.memory.max.bytes): a share of all memory unless it was set."""
    if not isinstance(given, int):
        return machine_memory() // _SHARE_OF_IDS
    return given if given > 0 else sys.maxsize


def machine_memory() -> int:
    """The memory of the machine, or of the container that this process runs in."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP_LIMITS:
        try:
            limits.append(int(Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):
            pass  # no control group here, or "max"
    return min(limits)
