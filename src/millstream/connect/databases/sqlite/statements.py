"""Names of tables and columns within SQLite statements. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quoted_list(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))
