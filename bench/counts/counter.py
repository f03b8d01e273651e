"""Count calls on one thread with ``sys.setprofile``: functions of the broker, and C functions they
call.

Calls within the standard library are not counted, so that changes of asyncio between versions of
Python do not matter. Neither are comprehensions, which are functions only up to Python 3.11.
"""

import asyncio
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import millstream

_PACKAGE = str(Path(millstream.__file__).parent)
_INLINE = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>"})
_TURN = asyncio.BaseEventLoop._run_once.__code__  # type: ignore[attr-defined]


class Counts(NamedTuple):
    """The counts of one operation."""

    python: int  # functions of the broker that were called
    c: int  # functions written in C that those called
    receives: int
    sends: int
    files: int  # system calls on files
    turns: int  # of the event loop


class Calls:
    """The calls between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self.python: Counter[CodeType] = Counter()
        self.c: Counter[tuple[CodeType, str]] = Counter()
        self.files = 0
        self.turns = 0
        self._ours: dict[CodeType, bool] = {}

    def start(self) -> None:
        self.python.clear()
        self.c.clear()
        self.files = self.turns = 0
        sys.setprofile(self._on_event)

    def stop(self) -> None:
        sys.setprofile(None)

    def where(self) -> Counter[str]:
        """Return how often each function was called; C functions with their caller."""
        calls: Counter[str] = Counter(
            {_location(code): count for code, count in self.python.items()}
        )
        for (code, name), count in self.c.items():
            calls[f"{_location(code)} -> {name}"] += count
        return calls

    def _on_event(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        ours = self._ours.get(code)
        if ours is None:
            ours = self._ours[code] = _is_ours(code)
        if event == "call":
            if ours:
                self.python[code] += 1
            elif code is _TURN:
                self.turns += 1
        elif event == "c_call" and (ours or (code.co_name in _INLINE and _is_file(code))):
            self.c[code, arg.__qualname__] += 1
            if arg.__module__ == "posix":
                self.files += 1


def _is_file(code: CodeType) -> bool:
    """Return whether code is the broker's, or generated and without a file name: codecs, named
    tuples.
    """
    name = code.co_filename
    return name.startswith(_PACKAGE) or (name.startswith("<") and not name.startswith("<frozen"))


def _is_ours(code: CodeType) -> bool:
    return code.co_name not in _INLINE and _is_file(code)


def _location(code: CodeType) -> str:
    path = code.co_filename.removeprefix(_PACKAGE).lstrip("/")
    return f"{path}:{code.co_firstlineno} {code.co_qualname}"
