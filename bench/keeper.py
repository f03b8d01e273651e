"""Programs that keep the processes of a peer: told to end, by a signal or because whoever started them is gone, they end them all."""

import signal
import sys
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def end_by_signals() -> None:
    """The first one raises SystemExit. What is cleared up after it is not to be interrupted."""
    for number in SIGNALS:
        signal.signal(number, _end)


def no_more_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def wait_for_the_end() -> None:
    """Until whoever started this is gone."""
    sys.stdin.read()


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    no_more_signals()
    raise SystemExit(0)
