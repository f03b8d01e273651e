"""Ctrl-C and SIGTERM: interrupts arrive at safe points, and a child can always be waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from millstream.local.process import LocalProcess, child_environment
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


def check_interrupted_poll(directory: Path) -> None:
    child = Sleeper(directory, "sleeper.log")
    child.start()
    assert child._process is not None
    child._process._waitpid_lock = lock = InterruptedLock()  # type: ignore[attr-defined]
    with stopped_by_signals(), pytest.raises(KeyboardInterrupt):
        assert child.running
    assert lock.interrupted
    child.kill()
    assert child.exit_code == -signal.SIGKILL


def test_child_can_be_killed_after_an_interrupt_inside_a_poll(tmp_path: Path) -> None:
    """In a process with one thread, so that the signal is handled at once."""
    program = "import sys; from pathlib import Path; import test_signals as t; "
    program += "t.check_interrupted_poll(Path(sys.argv[1]))"
    environment = child_environment()
    environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).parent)
    words = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_earlier_handler_that_raises_does_not_tear_a_block_apart() -> None:
    def earlier(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, earlier)
    try:
        steps = []
        with stopped_by_signals(), pytest.raises(KeyboardInterrupt), uninterrupted():
            interrupt()
            steps.append("inside")
        assert steps == ["inside"]
    finally:
        signal.signal(signal.SIGINT, before)
