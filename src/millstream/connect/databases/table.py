"""``table("postgresql://...", "orders", key="id")``: a table of a database as the target of a flow, or as what a stream reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from millstream.connect.addresses import file_path, names_file
from millstream.connect.databases import registry
from millstream.connect.databases.database import connect
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
    """A table. Written: each batch in one transaction. Read: bit by bit in the order of the column ``by``."""

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

    # ---------------------------------------------------------------- as what is read

    def rows(self, spark: SparkSession) -> DataFrame:
        from millstream.connect.databases.table_source import table_rows

        return table_rows(spark, self)

    def explainer(self) -> Explain | None:
        return value_format("json", self.read_schema()).explainer()

    def order(self) -> tuple[str, ...]:
        """The columns that order the rows so that no two are alike: ``by``, and the key behind it where values of ``by`` repeat."""
        if self.by is None:
            raise PipelineError(
                f"{self} cannot be read without an order",
                hint="give by= a column that grows with every change, such as id or updated_at",
            )
        db = connect(self.url)
        try:
            known = self._known(db)
            names = [one.name for one in known]
            for one in (self.by, *self.key):
                if one not in names:
                    raise PipelineError(f"{self} has no column {one!r}", hint=nearest(one, names))
            unique = db.unique_keys(self.name)
        finally:
            db.close()
        if (self.by,) in unique:
            return (self.by,)
        # Rows without a value are unique to no index; where there is no better one (SQLite), they are looked for when it is read.
        gaps = {one.name for one in known if one.nullable}
        key = self.key or next(iter(sorted(unique, key=lambda one: bool(gaps.intersection(one)))), ())
        if not key:
            raise PipelineError(
                f"{self} has no key, so rows with the same {self.by} cannot be told apart",
                hint="give key= the columns that name a row",
            )
        return (self.by, *(one for one in key if one != self.by))

    def read_schema(self) -> Any:
        """The one that is declared, or what the table has."""
        if self.schema is not None:
            return self.schema
        db = connect(self.url)
        try:
            return ", ".join(f"{quoted(one.name)} {db.spark_type(one)}" for one in self._known(db))
        finally:
            db.close()

    def _known(self, db: Any) -> Any:
        if names_file(self.url) and not Path(file_path(self.url)).exists():
            # Looking into it would make it.
            raise PipelineError(f"{db.shown} does not exist", hint="create it first, or check the name")
        found = db.columns(self.name)
        if found is None:
            raise PipelineError(f"{self} does not exist", hint="create it first, or check the name")
        return found

    def __str__(self) -> str:
        return f"table {self.name} of {connect(self.url).shown}"


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
    """A table of SQLite (``sqlite:///shop.db``) or PostgreSQL (``postgresql://user@host/shop``), ``name`` or ``schema.name``.

    As a target: rows are added, or put by their ``key``; ``deletes`` names a column that is true for rows to remove. The table is made when
    it is missing. For a stream: ``by`` is the column that grows with every change, ``key`` tells rows of the same value apart, ``lag``
    is how long a change may take to be committed, ``schema`` replaces that of the table.
    """
    connect(url)  # an address that cannot be read, or a missing package, fails where it is declared
    kind = registry.find(url)
    assert kind is not None
    if kind.is_file:  # the process that reads it may have another working directory
        url = f"{kind.scheme}:///{quote(str(Path(file_path(url)).absolute()))}"
    if deletes and not key:
        raise PipelineError("rows can only be removed by a key", hint="give key= the columns that name a row")
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
