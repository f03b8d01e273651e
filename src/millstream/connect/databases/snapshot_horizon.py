"""Which rows of a table can be read so that no earlier one comes after them. Pure: time comes in.

A table is read in the order of a column, and what is behind the last row that was read is never looked at again. A change that
has taken a low number and is committed late would be behind it. So the newest position is not read when it is seen, but when
every change that was under way then has ended (PostgreSQL tells), and ``lag_ms`` have passed besides, for those that no database tells of:
numbers taken before the first write, times taken by another clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.connect.databases.database import Moment, Position


class Seen(NamedTuple):
    """A newest position: when it was seen, and the moment that changes have which began after."""

    position: Position
    at_ms: int
    next_change: Moment


@dataclass
class Settling:
    """Positions on their way from seen to settled."""

    lag_ms: int
    settled: Position | None = None
    _seen: deque[Seen] = field(default_factory=deque)

    @property
    def newest(self) -> Position | None:
        return self._seen[-1].position if self._seen else self.settled

    def see(self, position: Position | None, now_ms: int, next_change: Moment) -> None:
        """The newest position as it is now; one that was seen before keeps its time."""
        if position is not None and position != self.newest:
            self._seen.append(Seen(position, now_ms, next_change))

    def waits_ms(self, now_ms: int) -> int:
        """For how long a position has been waiting for changes, beyond the lag."""
        return max(0, now_ms - self._seen[0].at_ms - self.lag_ms) if self._seen else 0

    def settle(self, now_ms: int, horizon: Moment) -> Position | None:
        """The newest position before which nothing can come any more."""
        while self._seen:
            first = self._seen[0]
            if now_ms - first.at_ms < self.lag_ms or not _reached(horizon, first.next_change):
                break
            self.settled = self._seen.popleft().position
        return self.settled


def _reached(horizon: Moment, moment: Moment) -> bool:
    return all(there >= wanted for there, wanted in zip(horizon, moment, strict=True))
