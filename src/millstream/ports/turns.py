"""Turns of the event loop, shared by everything that has much to do.

One append may end the waiting of hundreds of fetches, and one request may name a hundred thousand resources. In one turn
of the loop either would take seconds in which no one else is served. Work that can be long is therefore done in steps:

* a generator that yields after each step (``in_slices``), whose first slice runs at once (``run_first_slice``);
* a coroutine that rests between its steps (``Pace``).

A turn is shared by all of them, round robin.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

K = TypeVar("K")
T = TypeVar("T")
Steps = Generator[Any, None, T]

# How long the work of one turn may hold the loop, together, and one piece of it.
_SLICE_S = 0.004
_QUANTUM_S = 0.001


class _Turn:
    """What is left of the turn that a loop is in, and the work that waits for its share of the next ones."""

    __slots__ = ("_scheduled", "_waiting", "open", "until")

    def __init__(self) -> None:
        self.until = 0.0
        self.open = False
        self._scheduled = False
        self._waiting: deque[_Job | asyncio.Future[None]] = deque()

    def end(self) -> None:
        self.open = False

    def add(self, work: _Job | asyncio.Future[None], loop: asyncio.AbstractEventLoop) -> None:
        self._waiting.append(work)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._run, loop)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give each in turn a quantum, for as long as a turn may last; the first always gets one."""
        waiting = self._waiting
        now = loop.time()
        until = now + _SLICE_S
        while waiting:
            work = waiting.popleft()
            if isinstance(work, _Job):
                if not work.run(now + _QUANTUM_S):
                    waiting.append(work)
                now = loop.time()
            elif not work.done():
                work.set_result(None)  # its task runs in the next turn, for about a quantum
                until -= _QUANTUM_S
            if now >= until:
                break
        self._scheduled = bool(waiting)
        if waiting:
            loop.call_soon(self._run, loop)


class _Job:
    """A generator on its way, and the future of its result."""

    __slots__ = ("_loop", "_steps", "result")

    def __init__(self, steps: Steps[Any], loop: asyncio.AbstractEventLoop) -> None:
        self._steps = steps
        self._loop = loop
        self.result: asyncio.Future[Any] = loop.create_future()

    def run(self, until: float) -> bool:
        """Whether the work has ended: with its result, by an error, or because no one waits for it."""
        if self.result.done():
            self._steps.close()
            return True
        time = self._loop.time
        try:
            next(self._steps)
            while time() < until:
                next(self._steps)
        except StopIteration as end:
            self.result.set_result(end.value)
            return True
        except Exception as error:
            self.result.set_exception(error)
            return True
        return False


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turn] = WeakKeyDictionary()


def _turn(loop: asyncio.AbstractEventLoop) -> _Turn:
    turn = _turns.get(loop)
    if turn is None:
        turn = _turns[loop] = _Turn()
    return turn


def has_time() -> bool:
    """Whether the turn has time left for one more piece of work; the first of a turn always has.

    Whoever has to wait asks again in the next turn (``call_soon``).
    """
    loop = asyncio.get_running_loop()
    turn = _turns.get(loop) or _turn(loop)
    if not turn.open:
        turn.open = True
        turn.until = loop.time() + _SLICE_S
        # In line before all who are told to wait for the next turn.
        loop.call_soon(turn.end)
        return True
    return loop.time() < turn.until


def run_first_slice(steps: Steps[T]) -> tuple[T] | None:
    """Do as much as fits into a quantum. Return the result if that was all, else None: go on with ``in_slices``."""
    time = asyncio.get_running_loop().time
    until = time() + _QUANTUM_S
    try:
        next(steps)
        while time() < until:
            next(steps)
    except StopIteration as end:
        return (end.value,)
    return None


def in_slices(steps: Steps[T]) -> Awaitable[T]:
    """Carry out the steps in slices of the coming turns, and return what the generator returns."""
    loop = asyncio.get_running_loop()
    job = _Job(steps, loop)
    _turn(loop).add(job, loop)
    return job.result


async def run_steps(steps: Steps[T]) -> T:
    """Carry out the steps: at once if they fit into a quantum, else in slices."""
    finished = run_first_slice(steps)
    return finished[0] if finished is not None else await in_slices(steps)


class Pace:
    """Lets others have their turns between the steps of a coroutine."""

    __slots__ = ("_loop", "_until")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + _QUANTUM_S

    async def rest(self) -> None:
        """Between two steps: returns at once while the quantum lasts, else when it is the coroutine's turn again."""
        if self._loop.time() >= self._until:
            place: asyncio.Future[None] = self._loop.create_future()
            _turn(self._loop).add(place, self._loop)
            await place
            self._until = self._loop.time() + _QUANTUM_S


async def once_each(items: Iterable[K], work: Callable[[K], Awaitable[T]]) -> list[T]:
    """What the work gives for each item, one after the other. For one that is repeated it is done once."""
    pace = Pace()
    known: dict[K, T] = {}
    results: list[T] = []
    for item in items:
        if item not in known:
            known[item] = await work(item)
        results.append(known[item])
        await pace.rest()
    return results
