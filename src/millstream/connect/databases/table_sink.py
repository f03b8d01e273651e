"""Tables of databases in which every batch is exactly once.

A batch is computed first and then written in one transaction of the database, in which the row of ``millstream_progress`` is written too: query,
batch, offsets, and the rows that were refused. That row is locked before anything is written, so of two writers with the same name
one waits and then finds the batch there. A crash leaves all or nothing; an answer to the commit that was lost is found out
by reading the row. Batches pass through the memory of the driver.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from millstream.connect.databases.column_guards import Guard, fault, guards
from millstream.connect.databases.database import Change, Progress, connect
from millstream.connect.schemas import differing
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.stores import RejectedRow, WriteResult, is_written
from millstream.spark.sink.checkpoint import BatchIdentity
from millstream.spark.sink.commit_rule import CommittedBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from millstream.connect.databases.table import DatabaseTable

NO_KEY = "the key {} has no value"
_PARTS = ("struct", "array", "map", "variant")
_SPECIAL = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


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
        self._db.open()
        self._db.prepare(self.target.name)

    def close(self) -> None:
        self._db.close()

    def write(self, batch: DataFrame, batch_id: int, identity: BatchIdentity) -> WriteResult:
        """Write one batch; nothing when it is there already."""
        if (
            self._first
        ):  # only the first batch after a start can be there already: it need not be computed then
            with self._db.transaction():
                if (last := self._committed(batch_id, identity)) is not None:
                    return WriteResult(0, replayed=True, rejected=_refused(last))
        stored = self._stored(batch)
        self._check(stored.schema)
        changes = self._changes(batch)  # Spark computes before anything is locked
        with self._explained(stored.schema), self._db.transaction():
            if (last := self._committed(batch_id, identity)) is not None:
                return WriteResult(0, replayed=True, rejected=_refused(last))
            refused = self._put(stored.columns, changes)
            rows = len(changes) - len(refused)
            progress = Progress(identity.query, batch_id, identity.offsets, rows, json.dumps(refused))
            self._record(progress)
        self._reset_progress = self._first = False
        return WriteResult(rows, replayed=False, rejected=refused)

    def _committed(self, batch_id: int, identity: BatchIdentity) -> Progress | None:
        """The progress of this very batch, if it is in the table already."""
        found = self._db.locked_progress(self.writer, self.target.name)
        last = found and CommittedBatch.compare(found.batch, found.query, found.offsets, identity)
        there = is_written(
            last, batch_id, writer=self.writer, where=str(self.target), reset_progress=self._reset_progress
        )
        return found if there else None

    def _record(self, progress: Progress) -> None:
        self._db.record(self.writer, self.target.name, progress)

    # ---------------------------------------------------------------- rows

    def _stored(self, batch: DataFrame) -> DataFrame:
        """The columns that are stored: not the one that says what is removed."""
        return batch.drop(self.target.deletes) if self.target.deletes else batch

    def _changes(self, batch: DataFrame) -> list[Change]:
        from pyspark.sql import functions as F

        from millstream.pipelines.formats.registry import WRITTEN_TIMES, quoted

        stored = self._stored(batch)
        selected = [
            (F.to_json(F.col(quoted(one.name)), WRITTEN_TIMES) if one.dataType.typeName() in _PARTS else F.col(quoted(one.name)))
            .alias(one.name)
            for one in stored.schema.fields
        ]  # fmt: skip
        if self.target.deletes:
            selected.append(F.coalesce(F.col(quoted(self.target.deletes)), F.lit(False)))
        found = batch.select(*selected).toArrow()
        columns = [one.to_pylist() for one in found.columns]
        width = len(stored.columns)
        rows = zip(*columns[:width], strict=True)
        if not self.target.deletes:
            return [Change(one) for one in rows]
        return [Change(one, gone) for one, gone in zip(rows, columns[width], strict=True)]

    def _put(self, columns: list[str], changes: list[Change]) -> tuple[RejectedRow, ...]:
        key = list(self.target.key)
        where = [columns.index(one) for one in key]
        whole, bad = [], []
        for one in changes:
            missing = [columns[i] for i in where if one.values[i] is None]
            reason = NO_KEY.format(", ".join(missing)) if missing else None
            if reason is None and not one.deleted:
                reason = fault(one, self._guards)
            if reason is not None:
                bad.append(self._letter(columns, one, reason))
            else:
                whole.append(one)
        for one, reason in self._db.apply(self.target.name, columns, key, whole):
            bad.append(self._letter(columns, one, reason))
        return tuple(bad)

    def _letter(self, columns: list[str], change: Change, reason: str) -> RejectedRow:
        row = dict(zip(columns, change.values, strict=True))
        values = [row[one] for one in self.target.key]
        key = str(values[0]) if len(values) == 1 else json.dumps(values, default=str)
        named = bool(values) and None not in values
        shown = {name: _SPECIAL[str(one)] if _is_special(one) else one for name, one in row.items()}
        value = None if change.deleted else json.dumps(shown, default=_text)
        return RejectedRow(key if named else None, value, reason)

    # ---------------------------------------------------------------- what has to fit

    @contextmanager
    def _explained(self, schema: StructType) -> Iterator[None]:
        """A table that was changed since it was looked at is told with both schemas, too."""
        try:
            yield
        except PipelineError:
            self._checked = None
            self._check(schema)
            raise

    def _check(self, schema: StructType) -> None:
        """Once for each start and whenever the schema changes; a table that is missing is made."""
        if schema == self._checked:
            return
        table = self.target.name
        columns = self._db.columns(table)
        if columns is None:
            with self._db.transaction():
                self._db.create(table, schema, self.target.key)
            made = {one.name: one for one in self._db.columns(table) or ()}
            self._guards = guards(self._db, made, {one.name: one.dataType for one in schema.fields})
        else:
            there = {one.name: one for one in columns}
            here = {one.name: one.dataType for one in schema.fields}
            required = {name for name, one in there.items() if one.required and name not in here}
            unknown = here.keys() - there.keys()
            wrong = {name for name in here if name in there and not self._db.takes(there[name], here[name])}
            if required or unknown or wrong:
                # A column that is missing here has its default; it is named where it may be meant by an unknown one.
                kept = [one for one in columns if one.name in here or one.name in required or unknown]
                raise differing(
                    str(self.target),
                    self.writer,
                    {one.name: one.kind + (" NOT NULL" if one.required else "") for one in kept},
                    {name: kind.simpleString() for name, kind in here.items()},
                    wrong,
                )
            self._check_key()
            self._guards = guards(self._db, there, here)
        self._checked = schema

    def _check_key(self) -> None:
        key = self.target.key
        if key and not any(set(one) == set(key) for one in self._db.unique_keys(self.target.name)):
            raise PipelineError(
                f"{self.target} has no unique index on {', '.join(key)}, so rows cannot be put there by that key",
                hint="create a unique index on them, or declare key= as the table has it",
            )


def _refused(progress: Progress) -> tuple[RejectedRow, ...]:
    return tuple(RejectedRow(*one) for one in json.loads(progress.refused))


def _is_special(value: Any) -> bool:
    """Whether JSON has no number for a number."""
    return isinstance(value, float) and not math.isfinite(value)


def _text(value: Any) -> str:
    import base64

    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
