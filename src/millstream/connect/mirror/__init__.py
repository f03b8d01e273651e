"""Mirrors: topics of one cluster as topics of another, exactly once, with the offsets of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.connect.mirror.declare import mirror as mirror


def __getattr__(name: str) -> Any:
    if name != "mirror":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from millstream.connect.mirror.declare import mirror

    return mirror
