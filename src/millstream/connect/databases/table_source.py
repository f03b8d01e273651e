"""A database table as a stream of rows, read in the order of a column.

The offset is the position of the last row that was read: the values of the ordering columns. A
batch is all rows after one position and up to another, so it can be read again. Rows are read as
JSON and decoded like the values of a topic. A value that contradicts its declared type, as SQLite
allows, becomes a dead letter.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from millstream.connect.databases.database import Database, Position, connect
from millstream.connect.databases.snapshot_horizon import SnapshotHorizon
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.formats.registry import RECORD, struct_type, value_format
from millstream.pipelines.origins import SOURCE
from millstream.pipelines.run.failures import CHANGED
from millstream.spark.registration import register
from millstream.spark.source.data_loss import one_line_errors, say

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from millstream.connect.databases.table import DatabaseTable

FORMAT = "millstream-database"
SAY_AFTER_MS = 10_000
ROWS = pa.schema([("value", pa.binary())])


def table_rows(spark: SparkSession, table: DatabaseTable) -> DataFrame:
    """Return the rows of a table, decoded: its columns, ``_error`` and ``_record``."""
    from pyspark.sql import functions as F

    schema = struct_type(table.read_schema(), format="json")
    register(spark, DatabaseSource)
    options = {
        "url": table.url,
        "table": table.name,
        "order": list(table.order()),
        "columns": {field.name: field.dataType.simpleString() for field in schema.fields},
        "lag_ms": table.lag_ms,
        "rows": table.rows_per_batch,
        "poll_ms": table.poll_ms,
    }
    raw = spark.readStream.format(FORMAT).option("table", json.dumps(options)).load()
    rows = value_format("json", schema).decode(raw)
    return rows.withColumn(RECORD, F.col(RECORD).withField(SOURCE, F.lit(str(table))))


class DatabaseSource(DataSource):
    """``format("millstream-database")`` with one option, which ``table_rows`` builds."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "value binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TableReader(json.loads(self.options["table"]))


class PositionRange(InputPartition):
    """The rows between two positions."""

    def __init__(self, start: Position | None, end: Position) -> None:
        super().__init__((start, end))
        self.start, self.end = start, end


class TableReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Decides on the driver how far to read, and reads on an executor."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._db: Database | None = None
        self._horizon = SnapshotHorizon(options["lag_ms"])
        self._available_now = False
        self._last: Position | None = None
        """Where a run with the trigger availableNow ends."""
        self._nullable: list[str] = []
        self._say_after_ms = SAY_AFTER_MS

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_db": None}

    @property
    def db(self) -> Database:
        if self._db is None:
            db = connect(self._options["url"])
            columns = db.catalog.columns(self._options["table"])
            if columns is None:
                raise PipelineError(
                    f"table {self._options['table']} of {db.connection.shown} does not exist",
                    hint="create it first, or check the name",
                )
            nullable = {column.name for column in columns if column.nullable}
            self._nullable = [name for name in self._options["order"] if name in nullable]
            for name in self._nullable:
                self._reject_nulls(db, name)
            self._db = db
        return self._db

    def _reject_nulls(
        self, db: Database, column: str, within: tuple[str, Any, Any] | None = None
    ) -> None:
        """Raise if an ordering column has a NULL, which has no order: its row would be skipped."""
        if db.reader.has_null(self._options["table"], column, within):
            raise PipelineError(
                f"table {self._options['table']} of {db.connection.shown} has rows without a value in "
                f"{column}, by which it is read",
                hint="give them one, declare the column NOT NULL, or read by another column (by=, key=)",
            )

    def initialOffset(self) -> dict[str, Any]:
        return self._offset(None)

    def _offset(self, position: Position | None) -> dict[str, Any]:
        """Return an offset for the checkpoint; values mean nothing without their columns."""
        after = None if position is None else [_portable(value) for value in position]
        return {"after": after, "order": self._options["order"]}

    def _position(self, offset: dict[str, Any]) -> Position | None:
        order = self._options["order"]
        if offset.get("order", order) != order:
            before, now = ", ".join(offset["order"]), ", ".join(order)
            raise PipelineError(
                f"{CHANGED[0]}: table {self._options['table']} was read in the order of {before}, "
                f"and now of {now}",
                hint=CHANGED[1],
            )
        return None if offset["after"] is None else tuple(map(_value, offset["after"]))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options["rows"])

    def prepareForTriggerAvailableNow(self) -> None:
        """Wait until all rows that are in the table now can be read."""
        with one_line_errors():
            self._available_now = True
            self._look()
            self._last = self._horizon.newest
            pause_s = 0.05
            while self._horizon.position != self._last:
                time.sleep(pause_s)
                pause_s = min(pause_s * 1.5, 1.0)
                self._advance()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with one_line_errors():
            before = self._position(start)
            end = self._end(before, isinstance(limit, ReadAllAvailable))
            if end == before and not self._available_now:
                time.sleep(self._options["poll_ms"] / 1000)
                end = self._end(before, isinstance(limit, ReadAllAvailable))
            return self._offset(end)

    def _look(self) -> Position | None:
        """Look for a newer last position.

        The next change is read first, so changes that start in between are waited for too.
        """
        next_change = self.db.reader.next_change()
        order = self._options["order"]
        # Every time: a row with a NULL does not move the last position.
        if order[0] in self._nullable:
            self._reject_nulls(self.db, order[0])
        last = self.db.reader.last_position(self._options["table"], order)
        self._horizon.see(last, _now_ms(), next_change)
        return self._advance()

    def _advance(self) -> Position | None:
        table, order = self._options["table"], self._options["order"]
        readable = self._horizon.advance(
            _now_ms(), self.db.reader.oldest_open_change(table, order[0])
        )
        overdue_ms = self._horizon.overdue_ms(_now_ms())
        if not overdue_ms:
            self._say_after_ms = SAY_AFTER_MS
        elif overdue_ms >= self._say_after_ms:
            self._say_after_ms = 2 * overdue_ms
            say(
                f"table {table} has rows that are not read yet: "
                f"{self.db.reader.describe_oldest_change()} is still open, "
                "and could write rows that come before them"
            )
        return readable

    def _end(self, start: Position | None, everything: bool) -> Position | None:
        """Return the end of the next batch.

        It is the position of an existing row, so it never precedes start, even if the last rows
        were deleted.
        """
        readable = self._last if self._available_now else self._look()
        if readable is None:
            return start
        limit = sys.maxsize if everything else self._options["rows"]
        order = self._options["order"]
        end = self.db.reader.position_after(self._options["table"], order, start, readable, limit)
        if end is not None and start is not None:
            for name in self._nullable:
                if name != order[0]:
                    self._reject_nulls(self.db, name, (order[0], start[0], end[0]))
        return end or start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with one_line_errors():
            last = self._position(end)
            return [] if last is None else [PositionRange(self._position(start), last)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PositionRange)
        options = self._options
        db = connect(options["url"])
        try:
            for values in db.reader.rows(
                options["table"],
                options["columns"],
                options["order"],
                partition.start,
                partition.end,
            ):
                yield pa.record_batch([pa.array(values, pa.binary())], schema=ROWS)
        finally:
            db.connection.close()

    def commit(self, end: dict[str, Any]) -> None:
        pass

    def stop(self) -> None:
        if self._db is not None:
            self._db.connection.close()


def _portable(value: Any) -> Any:
    """Return a value that JSON can hold: keys of SQLite may be bytes."""
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _value(portable: Any) -> Any:
    return base64.b64decode(portable["base64"]) if isinstance(portable, dict) else portable


def _now_ms() -> int:
    return int(time.monotonic() * 1000)
