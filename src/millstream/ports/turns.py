"""Fair sharing of the event loop between long pieces of work.

One append may complete hundreds of delayed fetches, and one request may name a hundred thousand
resources. In a single turn (iteration) of the loop, either would block all other work for seconds.
Potentially long work is therefore done in steps:

* a generator that yields after each step (``in_slices``), whose first slice runs at once
  (``run_first_slice``);
* a coroutine that rests between its steps (``Pace``).

All of them share each turn, round robin.
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

# Time per turn for all such work together, and for a single piece of it.
_SLICE_S = 0.004
_QUANTUM_S = 0.001


class _Turn:
    """The remaining time of the current turn of a loop, and the work queued for the next turns."""

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
        """Give each piece of work a quantum until the turn ends; the first always gets one."""
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
                # Its task runs in the next turn, for about a quantum.
                work.set_result(None)
                until -= _QUANTUM_S
            if now >= until:
                break
        self._scheduled = bool(waiting)
        if waiting:
            loop.call_soon(self._run, loop)


class _Job:
    """A running generator, and the future of its result."""

    __slots__ = ("_loop", "_steps", "result")

    def __init__(self, steps: Steps[Any], loop: asyncio.AbstractEventLoop) -> None:
        self._steps = steps
        self._loop = loop
        self.result: asyncio.Future[Any] = loop.create_future()

    def run(self, until: float) -> bool:
        """Run for a quantum. Return whether the work ended: result, error or cancelled waiter."""
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
    """Return whether the turn has time for another piece of work; always true for the first one.

    If not, the caller tries again in the next turn (``call_soon``).
    """
    loop = asyncio.get_running_loop()
    turn = _turns.get(loop) or _turn(loop)
    if not turn.open:
        turn.open = True
        turn.until = loop.time() + _SLICE_S
        # Scheduled before all callers that must wait for the next turn.
        loop.call_soon(turn.end)
        return True
    return loop.time() < turn.until


def run_first_slice(steps: Steps[T]) -> tuple[T] | None:
    """Run as many steps as fit into a quantum.

    Return the result if that completed the work, else None: continue with ``in_slices``.
    """
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
    """Run the steps in slices of the coming turns, and return the generator's result."""
    loop = asyncio.get_running_loop()
    job = _Job(steps, loop)
    _turn(loop).add(job, loop)
    return job.result


async def run_steps(steps: Steps[T]) -> T:
    """Run the steps: at once if they fit into a quantum, else in slices."""
    finished = run_first_slice(steps)
    return finished[0] if finished is not None else await in_slices(steps)


class Pace:
    """Lets other work run between the steps of a coroutine."""

    __slots__ = ("_loop", "_until")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + _QUANTUM_S

    async def rest(self) -> None:
        """Wait between two steps, until it is the coroutine's turn; not while the quantum lasts."""
        if self._loop.time() >= self._until:
            turn: asyncio.Future[None] = self._loop.create_future()
            _turn(self._loop).add(turn, self._loop)
            await turn
            self._until = self._loop.time() + _QUANTUM_S


async def once_each(items: Iterable[K], work: Callable[[K], Awaitable[T]]) -> list[T]:
    """Return the result of the work for each item, in order; repeated items are worked on once."""
    pace = Pace()
    known: dict[K, T] = {}
    results: list[T] = []
    for item in items:
        if item not in known:
            known[item] = await work(item)
        results.append(known[item])
        await pace.rest()
    return results
