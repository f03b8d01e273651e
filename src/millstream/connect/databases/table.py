"""``table("postgresql://...", "orders", key="id")``: a database table as source or target.

A flow writes each batch in one transaction. A stream reads the table in the order of a column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from millstream.connect.addresses import file_path, names_file, without_password
from millstream.connect.databases import registry
from millstream.connect.databases.database import Column, Database, connect
from millstream.pipelines.durations import parse_duration_ms
from millstream.pipelines.errors import PipelineError, nearest
from millstream.pipelines.formats.registry import Explain, quoted, value_format
from millstream.pipelines.origins import Origin
from millstream.pipelines.stores import Store, StoreSink
from millstream.pipelines.targets import columns_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_BATCH = 100_000
POLL_MS = 500


@dataclass(frozen=True)
class DatabaseTable(Store, Origin):
    """A table: written one transaction per batch, read in the order of the column ``by``."""

    rejects_rows: ClassVar[bool] = True

    url: str
    name: str
    key: tuple[str, ...] = ()
    deletes: str | None = None
    by: str | None = None
    schema: Any = None
    lag_ms: int = 0
    rows_per_batch: int = ROWS_PER_BATCH
    poll_ms: int = POLL_MS

    # ---------------------------------------------------------------- as a target

    @property
    def modes(self) -> tuple[str, ...]:
        return ("append", "update", "complete") if self.key else ("append",)

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.key, *self.unstored_columns)

    @property
    def unstored_columns(self) -> tuple[str, ...]:
        return (self.deletes,) if self.deletes else ()

    def sink(self, writer: str, *, reset_progress: bool = False) -> StoreSink:
        from millstream.connect.databases.table_sink import TableSink

        return TableSink(self, writer, reset_progress=reset_progress)

    # ---------------------------------------------------------------- as a source

    def rows(self, spark: SparkSession) -> DataFrame:
        from millstream.connect.databases.table_source import table_rows

        return table_rows(spark, self)

    def explainer(self) -> Explain | None:
        return value_format("json", self.read_schema()).explainer()

    def order(self) -> tuple[str, ...]:
        """Return the columns that order the rows uniquely.

        The key follows ``by`` if values of ``by`` may repeat.
        """
        if self.by is None:
            raise PipelineError(
                f"{self} cannot be read without an order",
                hint="give by= a column that grows with every change, such as id or updated_at",
            )
        db = connect(self.url)
        try:
            columns = self._columns(db)
            names = [column.name for column in columns]
            for name in (self.by, *self.key):
                if name not in names:
                    raise PipelineError(f"{self} has no column {name!r}", hint=nearest(name, names))
            unique_keys = db.catalog.unique_keys(self.name)
        finally:
            db.connection.close()
        if (self.by,) in unique_keys:
            return (self.by,)
        # A unique index does not order rows with NULLs, so a key without nullable columns is
        # better. If there is none (SQLite), the reader looks for NULLs.
        nullable = {column.name for column in columns if column.nullable}
        by_nullable = sorted(unique_keys, key=lambda key: bool(nullable.intersection(key)))
        key = self.key or next(iter(by_nullable), ())
        if not key:
            raise PipelineError(
                f"{self} has no key, so the order of rows with the same {self.by} is undefined",
                hint="give key= the columns that identify a row",
            )
        return (self.by, *(name for name in key if name != self.by))

    def read_schema(self) -> Any:
        """Return the declared schema, or that of the table."""
        if self.schema is not None:
            return self.schema
        db = connect(self.url)
        try:
            columns = self._columns(db)
            return ", ".join(
                f"{quoted(column.name)} {db.types.read_type(column)}" for column in columns
            )
        finally:
            db.connection.close()

    def _columns(self, db: Database) -> list[Column]:
        # Connecting to a missing file would create it.
        if names_file(self.url) and not Path(file_path(self.url)).exists():
            raise PipelineError(
                f"{db.connection.shown} does not exist", hint="create it first, or check the name"
            )
        columns = db.catalog.columns(self.name)
        if columns is None:
            raise PipelineError(f"{self} does not exist", hint="create it first, or check the name")
        return columns

    def __str__(self) -> str:
        return f"table {self.name} of {without_password(self.url)}"


def table(
    url: str,
    name: str,
    *,
    key: str | Sequence[str] | None = None,
    deletes: str | None = None,
    by: str | None = None,
    schema: Any = None,
    lag: str | None = None,
    rows_per_batch: int = ROWS_PER_BATCH,
    poll: str | None = None,
) -> DatabaseTable:
    """Declare a table of SQLite (``sqlite:///shop.db``) or PostgreSQL.

    The URL of PostgreSQL is ``postgresql://user@host/shop``, the table ``name`` or ``schema.name``.

    As a target, rows are inserted, or upserted by their ``key``. ``deletes`` names a column that is
    true for rows to delete. A missing table is created.

    As a source, ``by`` is the column that grows with every change. ``key`` orders rows with the
    same value. ``lag`` is how long a change may take to commit. ``schema`` replaces that of the
    table.
    """
    # An address that cannot be parsed, or a missing package, fails at the declaration.
    connect(url)
    kind = registry.find(url)
    assert kind is not None
    # The process that reads the file may have another working directory.
    if kind.is_file:
        url = f"{kind.scheme}:///{quote(str(Path(file_path(url)).absolute()))}"
    if deletes and not key:
        raise PipelineError(
            "rows can only be deleted by a key", hint="give key= the columns that identify a row"
        )
    return DatabaseTable(
        url,
        name,
        columns_of(key),
        deletes,
        by,
        schema,
        kind.lag_ms if lag is None else parse_duration_ms(lag),
        int(rows_per_batch),
        POLL_MS if poll is None else parse_duration_ms(poll),
    )
