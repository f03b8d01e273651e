"""Writes every batch of a flow into a database table exactly once.

Spark computes a batch first; then it is written in one transaction of the database. The same
transaction writes the row of ``millstream_progress``: query, batch, offsets and rejected rows. That
row is locked before anything is written. Of two writers with the same name, the second waits and
then sees that the batch exists. A crash leaves all or nothing. If the response to a commit is lost,
reading the row shows whether it succeeded. Batches pass through the memory of the driver.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from millstream.connect.databases.column_guards import Guard, fault, guards
from millstream.connect.databases.database import Change, Column, Progress, connect
from millstream.connect.schemas import differing
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.stores import RejectedRow, WriteResult, is_written
from millstream.spark.sink.checkpoint import BatchIdentity
from millstream.spark.sink.commit_rule import CommittedBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

    from millstream.connect.databases.table import DatabaseTable

NO_KEY = "the key {} has no value"
_NESTED = ("struct", "array", "map", "variant")
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class TableSink:
    """The rows that one flow writes into one table."""

    def __init__(self, target: DatabaseTable, writer: str, *, reset_progress: bool = False) -> None:
        self.target = target
        self.writer = writer
        self._reset_progress = reset_progress
        self._db = connect(target.url)
        self._checked: StructType | None = None
        self._first = True
        self._guards: list[tuple[int, str, Guard]] = []

    def open(self) -> None:
        self._checked, self._first = None, True
        self._db.connection.open()
        self._db.writer.create_progress_table(self.target.name)

    def close(self) -> None:
        self._db.connection.close()

    def write(self, batch: DataFrame, batch_id: int, identity: BatchIdentity) -> WriteResult:
        """Write one batch, unless the table has it already."""
        # Only the first batch after a start can exist already; then it need not be computed.
        if self._first:
            with self._db.connection.transaction():
                if (last := self._committed(batch_id, identity)) is not None:
                    self._reset_progress = False  # it was for this batch, which needs no reset
                    return WriteResult(0, replayed=True, rejected=_refused(last))
        stored = self._stored(batch)
        self._check(stored.schema)
        # Spark computes before anything is locked.
        changes = self._changes(batch)
        with self._both_schemas_in_errors(stored.schema), self._db.connection.transaction():
            if (last := self._committed(batch_id, identity)) is not None:
                return WriteResult(0, replayed=True, rejected=_refused(last))
            refused = self._put(stored.columns, changes)
            rows = len(changes) - len(refused)
            progress = Progress(
                identity.query, batch_id, identity.offsets, rows, json.dumps(refused)
            )
            self._db.writer.record_progress(self.writer, self.target.name, progress)
        self._reset_progress = self._first = False
        return WriteResult(rows, replayed=False, rejected=refused)

    def _committed(self, batch_id: int, identity: BatchIdentity) -> Progress | None:
        """Return the progress of this batch if the table has it already."""
        progress = self._db.writer.lock_progress(self.writer, self.target.name)
        last = progress and CommittedBatch.compare(
            progress.batch, progress.query, progress.offsets, identity
        )
        written = is_written(
            last,
            batch_id,
            writer=self.writer,
            where=str(self.target),
            reset_progress=self._reset_progress,
        )
        return progress if written else None

    # ---------------------------------------------------------------- rows

    def _stored(self, batch: DataFrame) -> DataFrame:
        """Return the columns that are stored, without the one that marks deletions."""
        return batch.drop(self.target.deletes) if self.target.deletes else batch

    def _changes(self, batch: DataFrame) -> list[Change]:
        from pyspark.sql import functions as F

        from millstream.pipelines.formats.registry import WRITTEN_TIMES, quoted

        stored = self._stored(batch)
        selected = []
        for field in stored.schema.fields:
            column = F.col(quoted(field.name))
            if field.dataType.typeName() in _NESTED:
                column = F.to_json(column, WRITTEN_TIMES)
            selected.append(column.alias(field.name))
        if self.target.deletes:
            selected.append(F.coalesce(F.col(quoted(self.target.deletes)), F.lit(False)))
        columns = [column.to_pylist() for column in batch.select(*selected).toArrow().columns]
        width = len(stored.columns)
        rows = zip(*columns[:width], strict=True)
        if not self.target.deletes:
            return [Change(row) for row in rows]
        return [Change(row, deleted) for row, deleted in zip(rows, columns[width], strict=True)]

    def _put(self, columns: list[str], changes: list[Change]) -> tuple[RejectedRow, ...]:
        """Write changes in order, and return the rows that are rejected."""
        key = list(self.target.key)
        indexes = [columns.index(name) for name in key]
        valid, refused = [], []
        for change in changes:
            missing = [columns[i] for i in indexes if change.values[i] is None]
            reason = NO_KEY.format(", ".join(missing)) if missing else None
            if reason is None and not change.deleted:
                reason = fault(change, self._guards)
            if reason is not None:
                refused.append(self._refused_row(columns, change, reason))
            else:
                valid.append(change)
        for change, reason in self._db.writer.apply(self.target.name, columns, key, valid):
            refused.append(self._refused_row(columns, change, reason))
        return tuple(refused)

    def _refused_row(self, columns: list[str], change: Change, reason: str) -> RejectedRow:
        row = dict(zip(columns, change.values, strict=True))
        values = [row[name] for name in self.target.key]
        key = str(values[0]) if len(values) == 1 else json.dumps(values, default=str)
        has_key = bool(values) and None not in values
        shown = {
            name: value if _has_json_number(value) else _NOT_FINITE[str(value)]
            for name, value in row.items()
        }
        value = None if change.deleted else json.dumps(shown, default=_text)
        return RejectedRow(key if has_key else None, value, reason)

    # ---------------------------------------------------------------- the schema of the table

    @contextmanager
    def _both_schemas_in_errors(self, schema: StructType) -> Iterator[None]:
        """After an error, check the schema again: the table may have been altered."""
        try:
            yield
        except PipelineError:
            self._checked = None
            self._check(schema)
            raise

    def _check(self, schema: StructType) -> None:
        """Compare the schemas after a start and if ours has changed; create a missing table."""
        if schema == self._checked:
            return
        table = self.target.name
        spark_types = {field.name: field.dataType for field in schema.fields}
        existing = self._db.catalog.columns(table)
        if existing is None:
            with self._db.connection.transaction():
                self._db.catalog.create(table, schema, self.target.key)
        else:
            self._compare(existing, spark_types)
            self._check_key()
        columns = {
            column.name: column for column in existing or self._db.catalog.columns(table) or ()
        }
        self._guards = guards(self._db.types, columns, spark_types)
        self._checked = schema

    def _compare(self, existing: list[Column], ours: dict[str, DataType]) -> None:
        """Raise if the table has other columns than the flow, or other types."""
        theirs = {column.name: column for column in existing}
        required = {name for name, column in theirs.items() if column.required and name not in ours}
        unknown = ours.keys() - theirs.keys()
        accepts = self._db.types.accepts
        wrong = {name for name in ours if name in theirs and not accepts(theirs[name], ours[name])}
        if not (required or unknown or wrong):
            return
        # A column that we do not write gets its default. It is shown if an unknown column may be a
        # misspelling of it.
        shown = [
            column
            for column in existing
            if column.name in ours or column.name in required or unknown
        ]
        raise differing(
            str(self.target),
            self.writer,
            {
                column.name: column.sql_type + (" NOT NULL" if column.required else "")
                for column in shown
            },
            {name: spark_type.simpleString() for name, spark_type in ours.items()},
            wrong,
        )

    def _check_key(self) -> None:
        key = self.target.key
        unique_keys = self._db.catalog.unique_keys(self.target.name) if key else []
        if key and not any(set(unique) == set(key) for unique in unique_keys):
            raise PipelineError(
                f"{self.target} has no unique index on {', '.join(key)}, so rows cannot be upserted by "
                "that key",
                hint="create a unique index on them, or declare key= as the table has it",
            )


def _refused(progress: Progress) -> tuple[RejectedRow, ...]:
    return tuple(RejectedRow(*fields) for fields in json.loads(progress.refused))


def _has_json_number(value: Any) -> bool:
    """Return whether JSON can hold a value, which it cannot for NaN and infinities."""
    return not isinstance(value, float) or math.isfinite(value)


def _text(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
