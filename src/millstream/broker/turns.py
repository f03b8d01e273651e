"""Turns of the event loop, shared by many tasks that all become ready at once.

One append may end the waiting of hundreds of fetches, each with a thousand partitions to read: done in one turn of the loop
that would be a second in which nobody else is answered.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

# How long the tasks of one turn may hold the loop, together.
_SLICE_S = 0.004


class _Slice:
    """What is left of the turn that a loop is in."""

    __slots__ = ("open", "until")

    def __init__(self) -> None:
        self.open = False
        self.until = 0.0

    def end(self) -> None:
        self.open = False


_slices: WeakKeyDictionary[asyncio.AbstractEventLoop, _Slice] = WeakKeyDictionary()


def has_time() -> bool:
    """Whether the turn has time left for one more piece of work; the first of a turn always has. Who is told no asks again in the next turn
    (``call_soon``)."""
    loop = asyncio.get_running_loop()
    current = _slices.get(loop)
    if current is None:
        current = _slices[loop] = _Slice()
    if not current.open:
        current.open = True
        current.until = loop.time() + _SLICE_S
        # In line before all who are told to wait for the next turn.
        loop.call_soon(current.end)
        return True
    return loop.time() < current.until
