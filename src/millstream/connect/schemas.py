"""Schemas of both sides side by side, for the message that says that they do not fit."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.pipelines.errors import PipelineError


def differing(where: str, writer: str, theirs: Mapping[str, str], ours: Mapping[str, str]) -> PipelineError:
    """What is said when a flow and its target, or a file and what it is declared as, have different columns."""
    return PipelineError(
        f"{where} and flow {writer} have different columns ({_difference(theirs, ours)}): "
        f"there {shown(theirs)}; here {shown(ours)}",
        hint="change one of the two, then start again: nothing of this batch was written",
    )


def shown(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items()) or "nothing"


def _difference(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    parts = [f"{name!r} is only there" for name in theirs if name not in ours]
    parts += [f"{name!r} is only here" for name in ours if name not in theirs]
    parts += [
        f"{name!r} is {theirs[name]} there and {kind} here"
        for name, kind in ours.items()
        if name in theirs and theirs[name] != kind
    ]
    return ", ".join(parts) or "in another order"
