"""The error for a flow and a target that have different columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from millstream.pipelines.errors import PipelineError

MAX_SHOWN = 8


def differing(
    where: str,
    writer: str,
    theirs: Mapping[str, str],
    ours: Mapping[str, str],
    wrong_types: Collection[str] | None = None,
) -> PipelineError:
    """Return the error for a flow and its target, or a file and its schema, that do not match.

    It names only the columns that differ. ``wrong_types`` are the columns whose types do not fit,
    if the two sides have different names for the same type.
    """
    return PipelineError(
        f"{where} and flow {writer} have different columns: {_difference(theirs, ours, wrong_types)}",
        hint="change one of the two, then start again: nothing of this batch was written",
    )


def _difference(
    theirs: Mapping[str, str], ours: Mapping[str, str], wrong_types: Collection[str] | None
) -> str:
    parts = [
        f"{name!r} ({kind}) is only there" for name, kind in theirs.items() if name not in ours
    ]
    parts += [
        f"{name!r} ({kind}) is only here" for name, kind in ours.items() if name not in theirs
    ]
    parts += [
        f"{name!r} is {theirs[name]} there and {kind} here"
        for name, kind in ours.items()
        if name in theirs and (theirs[name] != kind if wrong_types is None else name in wrong_types)
    ]
    more = f" and {len(parts) - MAX_SHOWN} more" if len(parts) > MAX_SHOWN else ""
    return ", ".join(parts[:MAX_SHOWN]) + more or "in another order"
