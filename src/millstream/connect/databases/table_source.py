"""A table of a database as a stream of rows: bit by bit, in the order of a column.

The offset is the position of the last row that was read: the values of the ordering columns. A batch is all rows after one position and up to
another, so it can be read again. Rows come as JSON and are decoded like the values of a topic, so that what a database with loose types
holds against its own declaration becomes a dead letter.
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
from millstream.connect.databases.snapshot_horizon import Settling
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
    """The rows of a table, decoded: its columns, ``_error`` and ``_record``."""
    from pyspark.sql import functions as F

    schema = struct_type(table.read_schema(), format="json")
    register(spark, DatabaseSource)
    given = {
        "url": table.url,
        "table": table.name,
        "order": list(table.order()),
        "columns": {one.name: one.dataType.simpleString() for one in schema.fields},
        "lag_ms": table.lag_ms,
        "rows": table.rows_per_batch,
        "poll_ms": table.poll_ms,
    }
    raw = spark.readStream.format(FORMAT).option("table", json.dumps(given)).load()
    rows = value_format("json", schema).decode(raw)
    return rows.withColumn(RECORD, F.col(RECORD).withField(SOURCE, F.lit(str(table))))


class DatabaseSource(DataSource):
    """``format("millstream-database")``; what it reads is one option, made by ``table_rows``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "value binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TableReader(json.loads(self.options["table"]))


class Part(InputPartition):
    """The rows between two positions."""

    def __init__(self, start: Position | None, end: Position) -> None:
        super().__init__((start, end))
        self.start, self.end = start, end


class TableReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """On the driver it says how far can be read; on an executor it reads."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given
        self._db: Database | None = None
        self._settling = Settling(given["lag_ms"])
        self._only: Position | None = None
        self._once = False
        self._nullable: list[str] = []
        self._say_after_ms = SAY_AFTER_MS

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_db": None}

    @property
    def db(self) -> Database:
        if self._db is None:
            db = connect(self._given["url"])
            columns = db.columns(self._given["table"])
            if columns is None:
                raise PipelineError(
                    f"table {self._given['table']} of {db.shown} does not exist",
                    hint="create it first, or check the name",
                )
            nullable = {one.name for one in columns if one.nullable}
            self._nullable = [one for one in self._given["order"] if one in nullable]
            for one in self._nullable:
                self._refuse_gaps(db, one)
            self._db = db
        return self._db

    def _refuse_gaps(self, db: Database, column: str, within: tuple[str, Any, Any] | None = None) -> None:
        """Nothing is greater or less than no value, so such rows would never be seen."""
        if db.any_without(self._given["table"], column, within):
            raise PipelineError(
                f"table {self._given['table']} of {db.shown} has rows without a value in {column}, by which it is read",
                hint="give them one, declare the column NOT NULL, or read by another column (by=, key=)",
            )

    def initialOffset(self) -> dict[str, Any]:
        return self._offset(None)

    def _offset(self, position: Position | None) -> dict[str, Any]:
        """As the checkpoint keeps it: with the columns, since values say nothing about another order."""
        after = None if position is None else [_portable(one) for one in position]
        return {"after": after, "order": self._given["order"]}

    def _position(self, offset: dict[str, Any]) -> Position | None:
        order = self._given["order"]
        if offset.get("order", order) != order:
            was, now = ", ".join(offset["order"]), ", ".join(order)
            raise PipelineError(
                f"{CHANGED[0]}: table {self._given['table']} was read in the order of {was}, and now of {now}",
                hint=CHANGED[1],
            )
        return None if offset["after"] is None else tuple(map(_value, offset["after"]))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._given["rows"])

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now, as soon as nothing can come before it any more."""
        with one_line_errors():
            self._once = True
            self._look()
            self._only = self._settling.newest
            pause_s = 0.05
            while self._settling.settled != self._only:
                time.sleep(pause_s)
                pause_s = min(pause_s * 1.5, 1.0)
                self._settle()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with one_line_errors():
            before = self._position(start)
            end = self._end(before, isinstance(limit, ReadAllAvailable))
            if end == before and not self._once:
                time.sleep(self._given["poll_ms"] / 1000)
                end = self._end(before, isinstance(limit, ReadAllAvailable))
            return self._offset(end)

    def _look(self) -> Position | None:
        """The number of the next change is asked for first: what begins in between is waited for too."""
        number = self.db.next_change()
        first = self._given["order"][0]
        if first in self._nullable:  # at every look: a row without a value makes nothing newer
            self._refuse_gaps(self.db, first)
        newest = self.db.newest(self._given["table"], self._given["order"])
        self._settling.see(newest, _now_ms(), number)
        return self._settle()

    def _settle(self) -> Position | None:
        settled = self._settling.settle(
            _now_ms(), self.db.horizon(self._given["table"], self._given["order"][0])
        )
        waited_ms = self._settling.waits_ms(_now_ms())
        if not waited_ms:
            self._say_after_ms = SAY_AFTER_MS
        elif waited_ms >= self._say_after_ms:
            self._say_after_ms = 2 * waited_ms
            say(
                f"table {self._given['table']} has rows that are not read yet: {self.db.under_way()} is still open, "
                "and could write some that come before them"
            )
        return settled

    def _end(self, start: Position | None, everything: bool) -> Position | None:
        """The position of a row that is there, so never before the start: rows at the end may have been removed meanwhile."""
        settled = self._only if self._once else self._look()
        if settled is None:
            return start
        most = sys.maxsize if everything else self._given["rows"]
        order = self._given["order"]
        end = self.db.position_after(self._given["table"], order, start, settled, most)
        if end is not None and start is not None:
            for one in self._nullable:
                if one != order[0]:
                    self._refuse_gaps(self.db, one, (order[0], start[0], end[0]))
        return end or start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with one_line_errors():
            last = self._position(end)
            return [] if last is None else [Part(self._position(start), last)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        db = connect(self._given["url"])
        try:
            given = self._given
            for values in db.rows(
                given["table"], given["columns"], given["order"], partition.start, partition.end
            ):
                yield pa.record_batch([pa.array(values, pa.binary())], schema=ROWS)
        finally:
            db.close()

    def commit(self, end: dict[str, Any]) -> None:
        pass

    def stop(self) -> None:
        if self._db is not None:
            self._db.close()


def _portable(value: Any) -> Any:
    """What JSON has no word for: keys of SQLite may be bytes."""
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _value(kept: Any) -> Any:
    return base64.b64decode(kept["base64"]) if isinstance(kept, dict) else kept


def _now_ms() -> int:
    return int(time.monotonic() * 1000)
