"""What a pipeline says when it cannot be declared, checked or run: where in the user's file, what, and what to do next."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from millstream.client.errors import ClientError

HERE = str(Path(__file__).parent)


class Place(NamedTuple):
    """A line of the user's file; false where there is none."""

    file: str
    line: int

    def __bool__(self) -> bool:
        return bool(self.file)

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


NOWHERE = Place("", 0)
"""Of what no file declares."""


class PipelineError(ClientError):
    """The declaration is wrong, or the pipeline cannot go on as it is; trying again would not help."""

    def __init__(self, message: str, *, hint: str = "", place: Place | None = None) -> None:
        super().__init__(f"{place}: {message}" if place else message, hint=hint)
        self.place = place


class Unavailable(ClientError):
    """What a flow reads or writes cannot be reached at the moment. The flow waits for it, for as long as it takes."""


def caller() -> Place:
    """The line outside this package that called into it; what a dataclass writes for itself has no file, and what we declare ourselves no place."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((HERE, "<")):
        frame = frame.f_back
    if str(frame.f_globals.get("__name__", "")).startswith("millstream."):
        return NOWHERE
    return Place(frame.f_code.co_filename, frame.f_lineno)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint with the nearest known name, or with what there is."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"there are {', '.join(names)}" if names else "nothing is declared yet"
