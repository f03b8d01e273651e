"""The databases that connectors know, one row each.

A new database is a package in this folder, named after the scheme of its URLs, and a row here. Its
function ``database(url)`` returns a ``Database``.
Addresses, help texts, `table(...)` and `connect(url)` all read the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.connect.databases.database import Database


@dataclass(frozen=True)
class DatabaseKind:
    """One kind of database. Its driver is imported when a connection is made."""

    scheme: str
    form: str
    """The address of a table, as help and errors show it."""
    lag_ms: int = 0
    """The default of ``lag``: how long after it got its number a change may commit."""
    aliases: tuple[str, ...] = ()
    """Other schemes of its URLs."""
    is_file: bool = False
    """The URL names a file.

    Options after ``?`` are then those of the connector, not of a driver.
    """

    @property
    def url_form(self) -> str:
        """The URL of a database, without a table."""
        return self.form.partition("#")[0]

    def database(self, url: str) -> Database:
        """Return the database of a URL, not opened yet."""
        module = import_module(f"millstream.connect.databases.{self.scheme}")
        database: Database = module.database(url)
        return database


KINDS = (
    DatabaseKind("sqlite", "sqlite:///FILE#TABLE", is_file=True),
    # The lag is for changes that have taken their number and not yet written a row. Changes that
    # have written one are waited for in any case.
    DatabaseKind(
        "postgresql",
        "postgresql://USER@HOST/DATABASE#TABLE",
        lag_ms=1000,
        aliases=("postgres",),
    ),
)
ALIASES = {alias: kind.scheme for kind in KINDS for alias in kind.aliases}
_BY_SCHEME = {kind.scheme: kind for kind in KINDS}


def find(url: str) -> DatabaseKind | None:
    """Return the kind of database that a URL or its scheme names; None if no row does."""
    scheme = url.partition(":")[0]
    return _BY_SCHEME.get(ALIASES.get(scheme, scheme))
