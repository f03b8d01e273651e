"""A limit on open descriptors and loaded indexes, shared by all logs of a broker.

Segments open their file on first use and register here. If there are too many, those not used since
the last round are released (second chance: the hot path only sets a flag). A periodic sweep
releases all idle ones, so thousands of idle partitions hold no descriptors at all.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import Protocol

logger = logging.getLogger("millstream.log.open_files")


class Releasable(Protocol):
    """A resource that can be closed and loaded again."""

    used: bool

    def release(self, *, idle: bool) -> None:
        """Close the file.

        Loaded indexes go too, unless they are still being written to and it is not idle.
        """


class OpenFiles:
    """The registered segments, oldest first."""

    def __init__(self, max_open: int = 1024, max_index_bytes: int = 64 << 20) -> None:
        self.max_open = max_open
        self.max_index_bytes = max_index_bytes
        self._open: dict[Releasable, int] = {}  # -> bytes of indexes
        self._index_bytes = 0
        self._lock = threading.Lock()  # readers of cold data run in threads

    def __len__(self) -> int:
        return len(self._open)

    @property
    def index_bytes(self) -> int:
        return self._index_bytes

    def opened(self, item: Releasable, index_bytes: int = 0) -> None:
        """Record that an item has opened its file, or loaded indexes of this many bytes."""
        with self._lock:
            item.used = True
            self._open[item] = self._open.get(item, 0) + index_bytes
            self._index_bytes += index_bytes
            if len(self._open) > self.max_open or self._index_bytes > self.max_index_bytes:
                self._evict(keep=item)

    def relieve(self) -> None:
        """Halve the number of open files: the limit of the system is lower than `max_open`."""
        with self._lock:
            self.max_open = max(len(self._open) // 2, 1)
            logger.warning(
                "too many open files; keeping at most %d segments open from now on", self.max_open
            )
            self._evict(keep=None)

    def _evict(self, keep: Releasable | None) -> None:
        for _ in range(2 * len(self._open)):
            if len(self._open) <= self.max_open and self._index_bytes <= self.max_index_bytes:
                return
            item = next(iter(self._open))
            size = self._open.pop(item)
            if item.used or item is keep:
                item.used = False
                self._open[item] = size
            else:
                self._index_bytes -= size
                item.release(idle=False)

    def closed(self, item: Releasable) -> None:
        """Record that an item closed itself: it was deleted, or its log closes."""
        with self._lock:
            self._index_bytes -= self._open.pop(item, 0)

    def idle(self) -> list[Releasable]:
        """Return the items that were not used since the last call. `release` them in slices."""
        with self._lock:
            idle = [item for item in self._open if not item.used]
            for item in self._open:
                item.used = False
            return idle

    def release(self, items: Iterable[Releasable]) -> None:
        """Close idle items, except those used since. On the loop's thread."""
        with self._lock:
            for item in items:
                if item in self._open and not item.used:
                    self._index_bytes -= self._open.pop(item)
                    item.release(idle=True)

    def sweep(self) -> None:
        self.release(self.idle())
