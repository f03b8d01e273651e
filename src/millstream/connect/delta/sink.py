"""Writes every row into a Delta table exactly once.

``pipelines/parquet_sink.py`` stages, plans and moves the data files of a batch. A commit in the
Delta log makes them visible. It contains the files and the transaction identifiers (``txn``
actions) of this writer: the number of the batch, and hashes of the query and of the offsets that
the batch reads. So the table itself records whether it has a batch. After a crash before the
commit, the next ``open`` rolls the batch forward. After a later crash, the identifiers show that
the commit succeeded. If two writers with the same name commit at the same time, Delta rejects the
second, since both name the same application.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from millstream.connect.packages import need
from millstream.connect.schemas import differing
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.parquet_sink import PENDING, ParquetSink, read_json
from millstream.pipelines.stores import is_written
from millstream.spark.sink import jobs
from millstream.spark.sink.checkpoint import BatchIdentity
from millstream.spark.sink.commit_rule import CommittedBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millstream.connect.delta.declare import DeltaTarget

APPLICATION = "millstream."
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
MAX_BOUND_CHARACTERS = 32
TIMESTAMPS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
# Table features that every writer must respect and that this one does not implement.
_UNSUPPORTED = (
    "delta.constraints.",
    "delta.columnMapping.mode",
    "delta.generationExpression",
    "delta.invariants",
)


class DeltaSink(ParquetSink):
    """The rows that one flow writes into one Delta table."""

    def __init__(self, target: DeltaTarget, writer: str, *, reset_progress: bool = False) -> None:
        super().__init__(target, writer, reset_progress=reset_progress)
        self.delta = need("deltalake", "Delta tables")
        self._application = APPLICATION + writer

    def committed(self, batch_id: int, identity: BatchIdentity) -> bool:
        last = self._last_batch(self._table(), identity)
        where, reset = self.target.path, self._reset_progress
        return is_written(last, batch_id, writer=self.writer, where=where, reset_progress=reset)

    def _table(self) -> Any:
        """Return the current version of the table, or None if it does not exist."""
        if not self.delta.DeltaTable.is_deltatable(str(self.root)):
            return None
        return self.delta.DeltaTable(str(self.root))

    def _last_batch(self, table: Any, identity: BatchIdentity) -> CommittedBatch | None:
        batch = None if table is None else table.transaction_version(self._application)
        if batch is None:
            return None
        same = [
            table.transaction_version(name) == hashed for name, hashed in self._hashes(identity)
        ]
        return CommittedBatch(batch, *same)

    def _hashes(self, identity: BatchIdentity) -> list[tuple[str, int]]:
        """Return the identifiers for texts: these can only hold numbers, so 63 bits of a hash."""
        return [
            (f"{self._application}.query", _number(identity.query)),
            (f"{self._application}.offsets", _number(identity.offsets)),
        ]

    # ---------------------------------------------------------------- steps that differ from
    # Parquet

    def _stage(self, batch: DataFrame, batch_id: int) -> Path:
        self._check(self._table(), batch.schema.jsonValue())
        self._schema = batch.schema.jsonValue()
        with jobs.settings(batch.sparkSession, TIMESTAMPS):
            return super()._stage(batch, batch_id)

    def _plan(self, staging: Path, batch_id: int, identity: BatchIdentity) -> dict[str, Any]:
        self._check_required(staging)
        return super()._plan(staging, batch_id, identity)

    def _plan_fields(self) -> dict[str, Any]:
        return {"schema": self._schema}

    def _file_name(self, identity: BatchIdentity, batch_id: int, number: int) -> str:
        return f"part-{number:05d}-{uuid.uuid4()}.parquet"

    def _recover(self) -> None:
        """Undo a planned batch if the table was altered and it does not fit; Spark repeats it."""
        plan = read_json(self.hidden / PENDING)
        if plan is not None and not self._is_committed(plan):
            try:
                self._check(self._table(), plan["schema"])
            except PipelineError:
                for _, final in plan["moves"]:
                    (self.root / final).unlink(missing_ok=True)
                self._clean()
                return
        super()._recover()

    def _is_committed(self, plan: Mapping[str, Any]) -> bool:
        """Return whether the commit of a batch succeeded before a crash."""
        last = self._last_batch(self._table(), BatchIdentity(plan["query"], plan["offsets"]))
        return last == CommittedBatch(plan["batch"], True, True)

    def _record(self, plan: dict[str, Any]) -> None:
        if self._is_committed(plan):
            return
        table = self._table()
        self._check(table, plan["schema"])
        self._commit(table, plan, BatchIdentity(plan["query"], plan["offsets"]))

    def _commit(self, table: Any, plan: Mapping[str, Any], identity: BatchIdentity) -> None:
        transaction = need("deltalake.transaction", "Delta tables")
        adds = [
            transaction.AddAction(**add_action(self.root, final, self.target.by))
            for _, final in plan["moves"]
        ]
        identifiers = [(self._application, plan["batch"]), *self._hashes(identity)]
        properties = self.delta.CommitProperties(
            app_transactions=[self.delta.Transaction(name, number) for name, number in identifiers]
        )
        by = list(self.target.by)
        try:
            if table is None:
                schema = self.delta.Schema.from_json(json.dumps(_nullable(plan["schema"])))
                transaction.create_table_with_add_actions(
                    str(self.root), schema, adds, partition_by=by, commit_properties=properties
                )
            else:
                table.create_write_transaction(
                    adds, "append", table.schema(), partition_by=by, commit_properties=properties
                )
        except self.delta.exceptions.CommitFailedError as error:
            raise PipelineError(
                f"{self.writer} cannot commit batch {plan['batch']} to {self.target.path}: {error}",
                hint="another writer of the same name is running, or the table was changed at the same time; "
                "start again",
            ) from None

    # ---------------------------------------------------------------- the schema of the table

    def _check(self, table: Any, schema: Mapping[str, Any]) -> None:
        if table is None:
            return
        ours, theirs = _types(schema), _types(json.loads(table.schema().to_json()))
        if ours != theirs:
            raise differing(f"the Delta table {self.target.path}", self.writer, theirs, ours)
        partitions = list(table.metadata().partition_columns)
        if partitions != list(self.target.by):
            raise PipelineError(
                f"the Delta table {self.target.path} is partitioned by {partitions}, and flow "
                f"{self.writer} writes by {list(self.target.by)}",
                hint="declare by= as the table has it",
            )
        fields = json.loads(table.schema().to_json())["fields"]
        of_columns = [name for field in fields for name in field["metadata"]]
        for name in [*table.metadata().configuration, *of_columns]:
            if name.startswith(_UNSUPPORTED):
                raise PipelineError(
                    f"the Delta table {self.target.path} has {name}, which this writer does not support",
                    hint="write to a table without it",
                )

    def _check_required(self, staging: Path) -> None:
        """Raise if a file has nulls in a column that the table declares NOT NULL."""
        table = self._table()
        fields = [] if table is None else json.loads(table.schema().to_json())["fields"]
        required = {field["name"] for field in fields if not field["nullable"]}
        for path in staging.rglob("*.parquet") if required else ():
            nulls = statistics(path)["nullCount"]
            for name in required:
                if nulls.get(name):
                    raise PipelineError(
                        f"the column {name!r} of the Delta table {self.target.path} is NOT NULL, and "
                        f"{nulls[name]} rows of flow {self.writer} have no value there",
                        hint="filter such rows in the flow, or declare the field NOT NULL where it is "
                        "read: then they become dead letters",
                    )


def add_action(root: Path, final: str, by: tuple[str, ...]) -> dict[str, Any]:
    """Return the ``add`` action of a data file; its directories are the values of its partition."""
    path = root / final
    pairs = [part.split("=", 1) for part in Path(final).parts[:-1]]
    values = {unquote(name): None if value == NO_VALUE else unquote(value) for name, value in pairs}
    stat = path.stat()
    return {
        "path": final,
        "size": stat.st_size,
        "partition_values": {name: values[name] for name in by},
        "modification_time": int(stat.st_mtime * 1000),
        "data_change": True,
        "stats": json.dumps(statistics(path)),
    }


def statistics(path: Path) -> dict[str, Any]:
    """Return rows, nulls and bounds of a file's columns. Readers skip files by them."""
    import pyarrow.parquet

    meta = pyarrow.parquet.read_metadata(path)
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    unbounded: set[str] = set()
    for group in range(meta.num_row_groups):
        for index in range(meta.num_columns):
            column = meta.row_group(group).column(index)
            name, known = column.path_in_schema, column.statistics
            if "." in name or known is None or not known.has_null_count:
                continue
            nulls[name] = nulls.get(name, 0) + known.null_count
            if not known.has_min_max:
                unbounded |= {name} if known.null_count < column.num_values else set()
                continue
            lowest[name] = min(lowest.get(name, known.min), known.min)
            highest[name] = max(highest.get(name, known.max), known.max)
    bounded = [
        name for name in lowest if name not in unbounded and _exact(lowest[name], highest[name])
    ]
    return {
        "numRecords": meta.num_rows,
        "minValues": {name: _bound(lowest[name]) for name in bounded},
        "maxValues": {name: _bound(highest[name], up=True) for name in bounded},
        "nullCount": nulls,
    }


def _exact(low: Any, high: Any) -> bool:
    """Return whether JSON can hold bounds of this type without narrowing them."""
    if isinstance(low, str):
        return max(len(low), len(high)) <= MAX_BOUND_CHARACTERS
    return isinstance(low, int | date) and not isinstance(low, bool)


def _bound(value: Any, *, up: bool = False) -> Any:
    # Bounds are milliseconds, so the upper one is rounded up.
    if isinstance(value, datetime):
        rounded = value + timedelta(milliseconds=1) if up else value
        zone = "Z" if value.tzinfo else ""
        return f"{rounded.strftime('%Y-%m-%dT%H:%M:%S')}.{rounded.microsecond // 1000:03d}{zone}"
    return value.isoformat() if isinstance(value, date) else value


def _types(schema: Mapping[str, Any]) -> dict[str, str]:
    """Return names and types of a schema, without nullability."""
    return {field["name"]: _type(field["type"]) for field in schema["fields"]}


def _type(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    inner = {"struct": "fields", "array": "elementType", "map": "valueType"}[kind["type"]]
    if inner == "fields":
        fields = ",".join(f"{field['name']}:{_type(field['type'])}" for field in kind["fields"])
        return f"struct<{fields}>"
    key = f"{_type(kind['keyType'])}," if kind["type"] == "map" else ""
    return f"{kind['type']}<{key}{_type(kind[inner])}>"


def _nullable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with nullable columns, as Spark's streaming sinks create tables."""
    return {**schema, "fields": [{**field, "nullable": True} for field in schema["fields"]]}


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1
