"""Errors of a pipeline: the line of the user's file, the problem, and the remedy."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from millstream.client.errors import ClientError

HERE = str(Path(__file__).parent)


class SourceLine(NamedTuple):
    """A line of the user's file. It is false if there is no such line."""

    file: str
    line: int

    def __bool__(self) -> bool:
        return bool(self.file)

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


NOWHERE = SourceLine("", 0)
"""The place of declarations that are in no file."""


class PipelineError(ClientError):
    """The declaration is wrong, or the pipeline cannot continue. A retry would not help."""

    def __init__(self, message: str, *, hint: str = "", place: SourceLine | None = None) -> None:
        super().__init__(f"{place}: {message}" if place else message, hint=hint)
        self.place = place


class Unavailable(ClientError):
    """A source or target of a flow is unreachable. The flow waits for it without a time limit."""


def caller() -> SourceLine:
    """Return the line outside this package that called into it.

    Generated code of dataclasses has no file and is skipped. Declarations of ours have no place.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((HERE, "<")):
        frame = frame.f_back
    if str(frame.f_globals.get("__name__", "")).startswith("millstream."):
        return NOWHERE
    return SourceLine(frame.f_code.co_filename, frame.f_lineno)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint with the nearest known name, or with all known names."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"there are {', '.join(names)}" if names else "nothing is declared yet"
