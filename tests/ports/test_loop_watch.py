"""A stuck event loop is told from one that is starved, suspended, or turns slowly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from millstream.ports.loop_watch import LoopWatch
from support.processes import wait_until

TIMEOUT_S = 6.0
LOOK_S = 2.0


class World:
    """A loop that turns when it is told to, watched every two seconds."""

    def __init__(self) -> None:
        self.now = 100.0
        self.starved = 0.0
        self.loop = asyncio.new_event_loop()
        self.watch = LoopWatch(
            self.loop, TIMEOUT_S, now=lambda: self.now, starved_s=lambda: self.starved
        )

    def look(self, *, after_s: float = LOOK_S, starved_s: float = 0.0, turns: bool = False) -> bool:
        self.now += after_s
        self.starved += starved_s
        if turns:
            self.loop.run_until_complete(asyncio.sleep(0))
        return self.watch.is_stuck()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.close()


def test_loop_is_stuck_after_the_timeout_without_a_turn() -> None:
    with World() as world:
        assert [world.look() for _ in range(5)] == [False, False, False, True, True]
        assert not world.look(turns=True)
        assert [world.look() for _ in range(3)] == [False, False, True]


def test_loop_that_turns_once_in_a_while_is_not_stuck() -> None:
    with World() as world:
        assert not any(world.look(turns=n % 3 == 2) for n in range(30))


def test_waiting_for_a_processor_does_not_count() -> None:
    with World() as world:
        assert not any(world.look(starved_s=LOOK_S) for _ in range(30))
        # Half of the time it could have turned.
        looks = [world.look(starved_s=LOOK_S / 2) for _ in range(6)]
        assert looks == [False] * 5 + [True]


def test_suspended_process_is_not_stuck_when_it_continues() -> None:
    with World() as world:
        world.look()
        assert not world.look(after_s=3600.0)
        assert not world.look(turns=True)


def test_closed_loop_is_not_stuck() -> None:
    with World() as world:
        world.look(turns=True)
        world.loop.close()
        assert not any(world.look() for _ in range(10))


def blocking(over: threading.Event) -> None:
    over.wait(120)


def computing(over: threading.Event) -> None:
    while not over.is_set():
        sum(range(1000))


@pytest.mark.parametrize("hold", [blocking, computing])
def test_callback_that_holds_the_loop_is_noticed_and_named(
    hold: Callable[[threading.Event], None],
) -> None:
    loop = asyncio.new_event_loop()
    watches: list[LoopWatch] = []
    over = threading.Event()

    def begin() -> None:
        watches.append(LoopWatch(asyncio.get_running_loop(), 0.2))
        hold(over)

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    loop.call_soon_threadsafe(begin)
    try:
        wait_until(lambda: watches and watches[0].is_stuck(), "the stuck loop to be noticed")
        assert hold.__name__ in watches[0].where()
    finally:
        over.set()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
