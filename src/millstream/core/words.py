"""Numbers in sentences."""

from __future__ import annotations

from collections.abc import Collection


def counted(count: int, singular: str, plural: str | None = None) -> str:
    """Return a number with its noun, and verb if given: 1 record, 2 records, 1,000 records have."""
    if count == 1:
        return f"1 {singular}"
    return f"{count:,} {plural or singular + 's'}"


def listed(things: Collection[object], singular: str, plural: str | None = None) -> str:
    """Return a noun with the things it names: broker 1; brokers 1, 2."""
    return f"{singular if len(things) == 1 else plural or singular + 's'} {', '.join(map(str, things))}"
