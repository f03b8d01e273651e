"""For programs that run the processes of a peer.

They end these processes after a signal, or when their parent is gone.
"""

import signal
import sys
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def exit_on_signals() -> None:
    """Raise SystemExit at the first signal. The cleanup after it is not interrupted."""
    for number in SIGNALS:
        signal.signal(number, _end)


def ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def wait_for_parent() -> None:
    """Wait until the parent process is gone."""
    sys.stdin.read()


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    ignore_signals()
    raise SystemExit(0)
