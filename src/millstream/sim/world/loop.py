"""Event loops with virtual time: every simulated process has one, and one scheduler runs them all.

Nothing sleeps. The scheduler takes the earliest event, sets the time to it, and lets its loop run
one iteration as asyncio would: callbacks that are due, in the order they became ready. Each
callback takes a little virtual time, so that code which measures its slices has something to
measure.

A loop can be paused (its callbacks wait, as in a stopped process) and killed (they never run).
Blocking calls meant for a thread run as one step, some time later. The same seed gives the same
order: tasks and futures hash by number, because sets of them are iterated.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

Callback = Callable[..., Any]

_CALLBACK_S = 0.000_01


class SimulationError(Exception):
    """The simulation cannot continue. The message shows where every task waits."""


class SimFuture(asyncio.Future[Any]):
    """A future whose hash does not depend on its address in memory."""

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class SimTask(asyncio.Task[Any]):
    """A task whose hash does not depend on its address in memory."""

    def __init__(
        self,
        number: int,
        work: Coroutine[Any, Any, Any],
        loop: asyncio.AbstractEventLoop,
        name: str | None,
        context: Context | None,
    ) -> None:
        self._number = number  # first: the base class hashes it
        super().__init__(work, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self._number


class Scheduler:
    """Virtual time and the events. Also keeps the fingerprint of the run."""

    def __init__(self, seed: int | str = 0) -> None:
        self.now = 0.0
        self.events = 0
        self.fingerprint = 0
        self.dice = random.Random(f"{seed}/scheduler")
        self.loops: list[SimLoop] = []
        self.killed: list[SimLoop] = []  # kept: see SimLoop.kill
        self.errors: list[str] = []
        self.heap: list[tuple[float, int, Callback, tuple[Any, ...]]] = []
        self._number = itertools.count(1)

    def number(self) -> int:
        return next(self._number)

    def at(self, when: float, callback: Callback, *args: Any) -> None:
        """Call back at a time, outside of every loop: for kernels, links and faults."""
        heapq.heappush(
            self.heap, (when if when > self.now else self.now, next(self._number), callback, args)
        )

    def run_until(self, done: Callable[[], bool], limit_s: float) -> None:
        """Run events until `done`.

        Raises SimulationError if nothing is scheduled, or the limit of virtual time is passed.
        """
        heap, pop = self.heap, heapq.heappop
        while not done():
            if not heap:
                raise SimulationError("deadlock: nothing is scheduled\n" + self.dump())
            when, _, callback, args = pop(heap)
            if when > limit_s:
                raise SimulationError(
                    f"not done after {limit_s:.0f} simulated seconds\n" + self.dump()
                )
            if when > self.now:
                self.now = when
            self.events += 1
            callback(*args)

    def end(self) -> None:
        """Kill all loops, and close the tasks of killed ones.

        Errors of their cleanup are ignored. Left to the garbage collector, they would appear at
        some other time.
        """
        for loop in list(self.loops):
            loop.kill()
        for loop in self.killed:
            loop.close_killed_tasks()
        self.killed.clear()

    def dump(self) -> str:
        """Return where every task of every living loop waits."""
        lines = []
        for loop in self.loops:
            for task in sorted(asyncio.all_tasks(loop), key=hash):
                frames = "".join(
                    traceback.format_list(
                        [traceback.extract_stack(frame, 1)[-1] for frame in task.get_stack()]
                    )
                )
                lines.append(f"{loop.name}: {task.get_name()}\n{frames.rstrip()}")
        return "\n".join(lines)


class SimLoop(asyncio.AbstractEventLoop):
    """The event loop of one simulated process."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.name = name
        self._number = scheduler.number()
        self.dead = False
        self.on_death: list[Callable[[], None]] = []
        # The duration of calls in threads, as a multiple of that with a fast disk.
        self.slowness = 1.0
        self._scheduler = scheduler
        self._dice = random.Random(scheduler.dice.random())
        self._local = scheduler.now
        self._paused_until = 0.0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._wake_at: float | None = None
        self._iterating = False
        self._killed_tasks: list[asyncio.Task[Any]] = []
        scheduler.loops.append(self)

    # -- pause and kill

    def pause(self, seconds: float) -> None:
        """Stop the process for a while (SIGSTOP). Its sockets stay open."""
        self._paused_until = max(self._paused_until, self._scheduler.now + seconds)

    @property
    def paused(self) -> bool:
        return self._scheduler.now < self._paused_until

    def kill(self) -> None:
        """Kill the process: nothing of it runs any more, not even cleanup."""
        if self.dead:
            return
        self.dead = True
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            # Kept, or its `finally` would run when it is collected, in the middle of the run.
            self._killed_tasks.append(task)
        self._ready.clear()
        self._timers.clear()
        self._scheduler.loops.remove(self)
        self._scheduler.killed.append(self)
        for listener in self.on_death:
            listener()

    def close_killed_tasks(self) -> None:
        with warnings.catch_warnings():
            # A killed process leaves coroutines that never started.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            for task in self._killed_tasks:
                work = task.get_coro()
                try:
                    if work is not None and not task.done():
                        work.close()
                except BaseException:
                    pass  # it waited for something that is dead as well
            self._killed_tasks.clear()

    # -- running

    def time(self) -> float:
        now = self._scheduler.now
        return now if now > self._local else self._local

    def _wake(self, when: float) -> None:
        if self._wake_at is None or when < self._wake_at:
            self._wake_at = when
            self._scheduler.at(when, self._run_once, when)

    def _run_once(self, woken_for: float) -> None:
        if self.dead or woken_for != self._wake_at:
            return  # killed since, or already woken earlier
        scheduler = self._scheduler
        self._wake_at = None
        if scheduler.now < self._paused_until:
            self._wake(self._paused_until)
            return
        if self._local > scheduler.now:
            self._wake(self._local)  # still busy with the previous iteration
            return
        self._local = scheduler.now
        heap = scheduler.heap
        self._collect_timers()
        while self._ready:
            self._iterate()
            if self.dead:
                return
            if heap and heap[0][0] <= self._local:
                break
            scheduler.now = self._local  # nothing else happens before the next iteration
            scheduler.events += 1
            self._collect_timers()
        timers = self._timers
        while timers and timers[0][2]._cancelled:  # no need to wake for these
            heapq.heappop(timers)
        if self._ready:
            self._wake(self._local)
        elif timers:
            self._wake(max(timers[0][0], self._local))

    def _collect_timers(self) -> None:
        timers, now = self._timers, self._local
        while timers and (timers[0][2]._cancelled or timers[0][0] <= now):
            handle = heapq.heappop(timers)[2]
            if not handle._cancelled:
                self._ready.append(handle)

    def _iterate(self) -> None:
        ready, scheduler = self._ready, self._scheduler
        count = len(ready)
        # Numbers hash the same everywhere.
        scheduler.fingerprint = (
            hash((scheduler.fingerprint, self._local, self._number, count)) & 0xFFFFFFFF
        )
        asyncio._set_running_loop(self)
        self._iterating = True
        try:
            for _ in range(count):
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                self._local += _CALLBACK_S
                try:
                    handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    message = f"Exception in callback {handle!r}"
                    self.call_exception_handler(
                        {"message": message, "exception": error, "handle": handle}
                    )
                if self.dead:
                    return
        finally:
            self._iterating = False
            asyncio._set_running_loop(None)

    # -- the interface of asyncio

    def call_soon(  # type: ignore[override]
        self, callback: Callback, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self.dead:
            self._ready.append(handle)
            if not self._iterating:
                self._wake(self.time())
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callback, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callback, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callback, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.dead:
            heapq.heappush(self._timers, (when, self._scheduler.number(), handle))
            if not self._iterating:
                self._wake(max(when, self.time()))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # dropped when its time comes

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture(self._scheduler.number(), self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        return SimTask(self._scheduler.number(), coro, self, name, context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callback, *args: Any
    ) -> asyncio.Future[Any]:
        """Simulate a thread: the effect comes after the call, the end after the effect."""
        future = self.create_future()
        delay = self.slowness * self._thread_delay()
        effect = delay * self._dice.random()
        self._scheduler.at(
            self.time() + effect, self._do_in_thread, future, func, args, delay - effect
        )
        return future

    def _do_in_thread(
        self, future: asyncio.Future[Any], func: Callback, args: tuple[Any, ...], rest_s: float
    ) -> None:
        if self.dead:
            return
        scheduler = self._scheduler
        if scheduler.now < self._paused_until:
            scheduler.at(self._paused_until, self._do_in_thread, future, func, args, rest_s)
            return
        result, error = None, None
        try:
            result = func(*args)
        except BaseException as raised:
            error = raised
        scheduler.at(scheduler.now + rest_s, self.call_soon, _set_outcome, future, result, error)

    def _thread_delay(self) -> float:
        """Usually short; sometimes the disk is busy."""
        dice = self._dice
        if dice.random() < 0.02:
            return dice.uniform(0.02, 0.3)
        return dice.uniform(0.000_05, 0.002)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Record an unhandled exception as an error of the run."""
        if self.dead:
            return
        error = context.get("exception")
        text = "".join(traceback.format_exception(error)) if error is not None else ""
        where = context.get("task") or context.get("future") or context.get("handle") or ""
        self._scheduler.errors.append(
            f"{self.name} at {self.time():.3f}: {context['message']} {where}\n{text}"
        )

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)


def _set_outcome(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def spawn(
    loop: SimLoop, work: Coroutine[Any, Any, Any], name: str | None = None
) -> asyncio.Task[Any]:
    """Start work on the loop of another process."""
    return loop.create_task(work, name=name)


class ProcessDied(Exception):
    """The process that should have done the work was killed."""


async def across(loop: SimLoop, work: Coroutine[Any, Any, Any]) -> Any:
    """Run work on the loop of another process. Raises ProcessDied if that is killed first."""
    mine = asyncio.get_running_loop()
    done: asyncio.Future[Any] = mine.create_future()
    if loop.dead:
        work.close()
        raise ProcessDied(loop.name)

    def ended(task: asyncio.Task[Any]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        mine.call_soon(_set_outcome, done, None if error is not None else task.result(), error)

    def died() -> None:
        mine.call_soon(_set_outcome, done, None, ProcessDied(loop.name))

    loop.on_death.append(died)
    task = spawn(loop, work)
    task.add_done_callback(ended)
    try:
        return await done
    finally:
        loop.on_death.remove(died)
