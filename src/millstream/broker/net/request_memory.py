"""The memory of received requests, shared by all connections (queued.max.request.bytes).

It counts the received bytes of incomplete frames, and the copies that requests hold while they are
handled. Above the limit, connections with large frames stop reading and wait here, first come,
first served. Small frames never wait: heartbeats and fetches continue.

Incomplete frames alone can fill the memory, and then none of them could ever be completed.
Therefore one connection, the favoured one, reads on above the limit. It loses its place to the next
one if little arrives for it. Each of them keeps the bytes it has received, so this ends at one
request above the limit. From there on, a favoured connection that stays silent is closed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

# Interval at which the favoured connection is checked while others wait, and the bytes that must
# have arrived for it since the last check.
_STALLED_S = 0.1
_PROGRESS_BYTES = 64 * 1024
# Without progress for this long it is closed, if there is no memory to favour another one.
_GIVE_UP_S = 10.0
_SHARE_OF_MEMORY = 4
_SHARE_OF_IDS = 32
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class Reader(Protocol):
    """A connection as the request memory sees it."""

    @property
    def received_bytes(self) -> int:
        """The received bytes of frames that are not handled yet."""

    @property
    def missing_bytes(self) -> int:
        """The bytes of the frame that have not arrived."""

    def stop_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def give_up(self) -> None:
        """Close the connection, which releases its bytes."""


class RequestMemory:
    """The bytes in use, and the connections that wait for free bytes."""

    __slots__ = (
        "_favoured",
        "_favoured_bytes",
        "_held",
        "_silent_s",
        "_timer",
        "_waiting",
        "crowded",
        "hard_limit",
        "limit",
        "used",
    )

    def __init__(self, limit: int = sys.maxsize, largest_request: int = sys.maxsize) -> None:
        self.limit = limit
        # From here on no other connection is favoured.
        self.hard_limit = limit + largest_request
        # Connections add the bytes that arrive and subtract those that are handled. After that they
        # call ``released`` if the memory is ``crowded``.
        self.used = 0
        self.crowded = False
        self._held = 0
        self._waiting: dict[Reader, None] = {}
        self._favoured: Reader | None = None
        self._favoured_bytes = 0
        self._silent_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def admits(self, reader: Reader) -> bool:
        """Return whether a connection may read on above the limit.

        Otherwise it waits until its ``resume_reading`` is called.
        """
        if reader is self._favoured:
            return True
        if self._favoured is None and not self._held and not self._waiting:
            self._favour(reader)
            return True
        self._waiting[reader] = None
        self._resume_waiting()
        return False

    def released(self, reader: Reader | None = None) -> None:
        """Note that fewer bytes are in use: a frame was handled, or the connection is closed."""
        if reader is not None:
            self._waiting.pop(reader, None)
            if reader is self._favoured:
                self._favoured = None
        self._resume_waiting()

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Count a copy that a request holds while it is handled."""
        self.used += size
        self._held += size
        try:
            yield
        finally:
            self.used -= size
            self._held -= size
            if self.crowded:
                self._resume_waiting()

    def _resume_waiting(self) -> None:
        """Let connections read on while there is room for their missing bytes."""
        room = self.limit - self.used
        while self._waiting and room > 0:
            reader = self._next()
            room -= reader.missing_bytes
            reader.resume_reading()
        # Held requests end, and then there is room. Only a favour completes incomplete frames.
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
        self._favoured, self._favoured_bytes, self._silent_s = reader, reader.received_bytes, 0.0
        self.crowded = True

    def _replace_stalled(self) -> None:
        self._timer = None
        reader = self._favoured
        if reader is not None and self._waiting:
            if reader.received_bytes >= self._favoured_bytes + _PROGRESS_BYTES:
                self._favoured_bytes, self._silent_s = reader.received_bytes, 0.0
            elif self.used <= self.hard_limit:
                self._favoured = None
                reader.stop_reading()
                self._waiting[reader] = None
            else:
                self._silent_s += _STALLED_S
                if self._silent_s >= _GIVE_UP_S:
                    # This releases its memory and its place.
                    reader.give_up()
        self._resume_waiting()


def limit_of(setting: object, largest_request: int) -> int:
    """Return the limit in bytes: the setting (0 or less: none), or else a share of all memory.

    The share has room for at least one request.
    """
    if not isinstance(setting, int):
        return max(machine_memory() // _SHARE_OF_MEMORY, largest_request)
    return setting if setting > 0 else sys.maxsize


def ids_limit_of(setting: object) -> int:
    """Return the memory for transactional ids (transactional.ids.memory.max.bytes).

    A share of all memory unless it is set.
    """
    if not isinstance(setting, int):
        return machine_memory() // _SHARE_OF_IDS
    return setting if setting > 0 else sys.maxsize


def machine_memory() -> int:
    """Return the memory of the machine, or of the container of this process."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP_LIMITS:
        try:
            limits.append(int(Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):
            pass  # no control group here, or "max"
    return min(limits)
