"""Timers of coordinator shards: many keys, one timer of the event loop.

A shard postpones the same timers thousands of times a second, so this costs one dictionary entry. A
key keeps its place in the heap, and moves back when its turn comes. Times are monotonic, so that a
jump of the wall clock expires nothing.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from millstream.core.decisions import TimerKey

_COMPACT_AT = 1024
# When a network fails, thousands of members expire at once. Other tasks get a turn in between.
_MAX_PER_TURN = 16


class Timers:
    """Calls ``fire(key)`` when a key is due."""

    def __init__(self, fire: Callable[[TimerKey], None]) -> None:
        self._fire = fire
        self._loop = asyncio.get_running_loop()
        self._due: dict[TimerKey, float] = {}
        # The time of a key's valid heap entry, which is not after it is due. Its other entries are
        # stale.
        self._queued: dict[TimerKey, float] = {}
        self._heap: list[tuple[float, int, TimerKey]] = []
        self._count = 0
        self._handle: asyncio.TimerHandle | None = None
        self._handle_at = 0.0

    def arm(self, key: TimerKey, delay_s: float) -> None:
        at = self._loop.time() + max(delay_s, 0.0)
        self._due[key] = at
        queued = self._queued.get(key)
        if queued is not None and queued <= at:
            return
        self._push(key, at)
        if len(self._heap) > _COMPACT_AT and len(self._heap) > 2 * len(self._due):
            self._compact()
        if self._handle is None or at < self._handle_at:
            self._schedule()

    def _push(self, key: TimerKey, at: float) -> None:
        self._queued[key] = at
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, key))

    def disarm(self, key: TimerKey) -> None:
        self._due.pop(key, None)

    def __len__(self) -> int:
        return len(self._due)

    def close(self) -> None:
        self._due.clear()
        self._queued.clear()
        self._heap.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _compact(self) -> None:
        self._queued = {key: at for key, at in self._queued.items() if key in self._due}
        self._heap = [(at, n, key) for at, n, key in self._heap if self._queued.get(key) == at]
        heapq.heapify(self._heap)

    def _schedule(self) -> None:
        """Schedule the loop's timer for the first key. It may be too early, never too late."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._heap:
            self._handle_at = self._heap[0][0]
            self._handle = self._loop.call_at(self._handle_at, self._on_time)

    def _on_time(self) -> None:
        self._handle = None
        try:
            self._fire_due(self._loop.time())
        finally:
            self._schedule()  # a key that fails must not delay the others

    def _fire_due(self, now: float) -> None:
        fired = 0
        while self._heap and self._heap[0][0] <= now and fired < _MAX_PER_TURN:
            at, _, key = heapq.heappop(self._heap)
            if self._queued.get(key) != at:
                continue
            del self._queued[key]
            due = self._due.get(key)
            if due is None:
                continue
            if due > now:
                self._push(key, due)
            else:
                fired += 1
                del self._due[key]
                self._fire(key)
