"""How commands in the foreground take Ctrl-C and SIGTERM: as KeyboardInterrupt, at a safe point.

Python raises KeyboardInterrupt between any two instructions. If that happens inside
``subprocess.Popen.poll``, its lock stays locked and the child can never be waited for; inside
``Popen()`` the child has been started, but its id is lost. Code that must not be torn apart
runs under ``uninterrupted()``, and the interrupt follows at the end of the block.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

# A second Ctrl-C this soon counts as the same key press, or was delivered twice.
_SAME_PRESS_S = 1.0


class _Shield:
    """Delays interrupts while a block of the main thread must not be torn apart."""

    def __init__(self) -> None:
        self._depth = 0
        self._delayed = False

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt now, or at the end of the block. Called by signal handlers."""
        if self._depth:
            self._delayed = True
        else:
            raise KeyboardInterrupt

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if threading.current_thread() is threading.main_thread():
            self._depth -= 1
            if not self._depth and self._delayed:
                self._delayed = False
                raise KeyboardInterrupt


_shield = _Shield()


def uninterrupted() -> _Shield:
    """Delay the interrupts of ``stopped_by_signals`` to the end of a short block. Blocks may nest.

    In threads other than the main thread it has no effect: signal handlers do not run there.
    """
    return _shield


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt for SIGTERM as for Ctrl-C.

    A clean shutdown is not interrupted by a second SIGTERM or a double key press. A later Ctrl-C
    interrupts it with another KeyboardInterrupt, and nothing interrupts the cleanup after that.
    """
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    stopped_s: float | None = None

    def stop(number: int, frame: Any) -> None:
        nonlocal stopped_s
        if stopped_s is not None and (
            number != signal.SIGINT or time.monotonic() - stopped_s < _SAME_PRESS_S
        ):
            return
        if stopped_s is not None:
            for ignored in numbers:
                signal.signal(ignored, signal.SIG_IGN)
        stopped_s = time.monotonic()
        interrupted = before[signal.SIGINT]
        if callable(interrupted) and interrupted is not signal.default_int_handler:
            # So that a handler that records Ctrl-C records this too. One that raises must not
            # tear a block apart either.
            with suppress(KeyboardInterrupt):
                interrupted(number, frame)
        _shield.interrupt()

    for number in numbers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
