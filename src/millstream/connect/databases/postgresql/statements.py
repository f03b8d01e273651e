"""Names of tables and columns within PostgreSQL statements. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def quoted(name: str) -> str:
    """Quote a name for a statement; psycopg would take a single % as a placeholder."""
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def quoted_list(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def quoted_table(table: str) -> str:
    """Quote ``orders`` or ``sales.orders``."""
    schema, dot, name = table.rpartition(".")
    return f"{quoted(schema)}.{quoted(name)}" if dot else quoted(name)


def unescaped(text: str) -> str:
    """Undo the doubling of %, for a name that is passed as a value or in a plain query."""
    return text.replace("%%", "%")
