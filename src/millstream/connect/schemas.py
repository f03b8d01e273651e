"""Columns of both sides that do not fit, for the message that says so."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from millstream.pipelines.errors import PipelineError

MOST_SHOWN = 8


def differing(
    where: str,
    writer: str,
    theirs: Mapping[str, str],
    ours: Mapping[str, str],
    wrong_types: Collection[str] | None = None,
) -> PipelineError:
    """What is said when a flow and its target, or a file and what it is declared as, have different columns.

    Only those that differ are named. ``wrong_types`` are the columns whose types do not fit, where the two sides
    have other names for the same type.
    """
    return PipelineError(
        f"{where} and flow {writer} have different columns: {_difference(theirs, ours, wrong_types)}",
        hint="change one of the two, then start again: nothing of this batch was written",
    )


def _difference(
    theirs: Mapping[str, str], ours: Mapping[str, str], wrong_types: Collection[str] | None
) -> str:
    parts = [f"{name!r} ({kind}) is only there" for name, kind in theirs.items() if name not in ours]
    parts += [f"{name!r} ({kind}) is only here" for name, kind in ours.items() if name not in theirs]
    parts += [
        f"{name!r} is {theirs[name]} there and {kind} here"
        for name, kind in ours.items()
        if name in theirs and (theirs[name] != kind if wrong_types is None else name in wrong_types)
    ]
    more = f" and {len(parts) - MOST_SHOWN} more" if len(parts) > MOST_SHOWN else ""
    return ", ".join(parts[:MOST_SHOWN]) + more or "in another order"
