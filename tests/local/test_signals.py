"""Ctrl-C and SIGTERM: interrupts arrive at safe points, and a child can always be waited for."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from millstream.local.process import LocalProcess
from millstream.local.signals import stopped_by_signals, uninterrupted


class Sleeper(LocalProcess):
    """A child that is ready at once and sleeps."""

    title = "sleeper"

    def command(self) -> list[str]:
        return [sys.executable, "-c", "import time; time.sleep(600)"]

    def is_ready(self) -> bool:
        return True


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_interrupt_follows_at_the_end_of_an_uninterrupted_block() -> None:
    steps = []
    with stopped_by_signals(), pytest.raises(KeyboardInterrupt):
        with uninterrupted():
            with uninterrupted():
                interrupt()
                steps.append("inner")
            steps.append("outer")
        steps.append("after")
    assert steps == ["inner", "outer"]


def test_interrupt_outside_a_block_is_raised_at_once() -> None:
    with stopped_by_signals(), pytest.raises(KeyboardInterrupt):
        with uninterrupted():
            pass
        interrupt()
        raise AssertionError("not interrupted")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_double_key_press_and_second_sigterm_interrupt_once(number: signal.Signals) -> None:
    with stopped_by_signals():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        for again in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), again)


class InterruptedLock:
    """Popen's lock, with an interrupt between the acquire and the block that would release it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.interrupted = False

    def acquire(self, blocking: bool = True) -> bool:
        acquired = self._lock.acquire(blocking)
        if acquired and not self.interrupted:
            self.interrupted = True
            interrupt()
        return acquired

    def release(self) -> None:
        self._lock.release()


def test_child_can_be_killed_after_an_interrupt_inside_a_poll(tmp_path: Path) -> None:
    child = Sleeper(tmp_path, "sleeper.log")
    child.start()
    assert child._process is not None
    child._process._waitpid_lock = lock = InterruptedLock()  # type: ignore[attr-defined]
    with stopped_by_signals(), pytest.raises(KeyboardInterrupt):
        assert child.running
    assert lock.interrupted
    child.kill()
    assert child.exit_code == -signal.SIGKILL
