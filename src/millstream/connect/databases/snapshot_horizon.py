"""The position up to which a table can be read without missing a late commit. Pure: time comes in.

A table is read in the order of a column, and rows before the last position are never read again. A
change that took a low number and commits late would be missed. So a position becomes readable only
after two waits:

- every change that was open when the position was seen has ended (PostgreSQL reports them);
- ``lag_ms`` have passed, for changes that no database reports: numbers taken before the first
  write, times taken from another clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.connect.databases.database import Moment, Position


class Sighting(NamedTuple):
    """A last position, when it was seen, and the earliest moment of changes that began later."""

    position: Position
    at_ms: int
    next_change: Moment


@dataclass
class SnapshotHorizon:
    """Last positions on their way from seen to readable."""

    lag_ms: int
    position: Position | None = None
    """The last readable position."""
    _pending: deque[Sighting] = field(default_factory=deque)

    @property
    def newest(self) -> Position | None:
        return self._pending[-1].position if self._pending else self.position

    def see(self, position: Position | None, now_ms: int, next_change: Moment) -> None:
        """Add the current last position; a known one keeps its time."""
        if position is not None and position != self.newest:
            self._pending.append(Sighting(position, now_ms, next_change))

    def overdue_ms(self, now_ms: int) -> int:
        """Return how long a position has been waiting for changes, beyond the lag."""
        return max(0, now_ms - self._pending[0].at_ms - self.lag_ms) if self._pending else 0

    def advance(self, now_ms: int, oldest_open_change: Moment) -> Position | None:
        """Return the newest position that no later commit can precede."""
        while self._pending:
            first = self._pending[0]
            due = now_ms - first.at_ms >= self.lag_ms
            if not due or not _reached(oldest_open_change, first.next_change):
                break
            self.position = self._pending.popleft().position
        return self.position


def _reached(current: Moment, target: Moment) -> bool:
    return all(now >= then for now, then in zip(current, target, strict=True))
