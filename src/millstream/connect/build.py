"""The pipeline of ``millstream connect FROM TO``: one stream and one flow between two addresses.

Building it reads at most the schema of a table.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.connect.addresses import (
    DELTA,
    FILES,
    PARQUET,
    TOPIC,
    Address,
    AddressError,
    file_path,
    names_file,
)
from millstream.connect.databases.database import connect
from millstream.connect.databases.table import table
from millstream.connect.delta.declare import delta
from millstream.connect.files.declare import files
from millstream.pipelines.declare import Pipeline
from millstream.pipelines.errors import NOWHERE, nearest
from millstream.pipelines.formats.codec import DELETED
from millstream.pipelines.formats.registry import TOMBSTONES, UNPARSED, quoted
from millstream.pipelines.origins import Origin
from millstream.pipelines.targets import Target, parquet, topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FLOW = "connect"
DATE = "date"
_META = ("_key", "_topic", "_partition", "_offset", "_timestamp")
# Options after ? of each kind of address, as a source and as a target.
_SOURCE_OPTIONS = {
    TOPIC: ("value", "schema", "starting", "records", "tombstones"),
    "database": ("by", "key", "lag", "rows", "poll", "schema"),
}
_TARGET_OPTIONS = {
    TOPIC: ("value", "key", "partitions"),
    PARQUET: ("by",),
    DELTA: ("by",),
    "database": ("key",),
}


@dataclass(frozen=True)
class ConnectOptions:
    """The options of the command; options of an address take precedence."""

    bootstrap: str
    name: str | None = None
    value: str | None = None
    schema: str | None = None
    key: tuple[str, ...] = ()
    by: str | None = None
    partition_by: tuple[str, ...] = ()
    starting: str | None = None
    tombstones: str | None = None


def connection(source: Address, target: Address, options: ConnectOptions) -> Pipeline:
    """Return the pipeline between two addresses.

    Raises AddressError or PipelineError if they cannot be connected.
    """
    _check(source, target, options)
    pipeline = Pipeline(options.name or default_name(source, target), bootstrap=options.bootstrap)
    keyed = target.is_database and bool(_key(target, options))
    if source.kind == TOPIC:
        name = _topic_stream(pipeline, source, target, options)
    else:
        name = pipeline.stream(_base(source), _origin(source, options), meta=True).name
    keep_tombstones = source.kind == TOPIC and _tombstones(source, target, options) == "keep"
    deletes = keyed and keep_tombstones
    step = _step(target, options, deletes=deletes, keep_tombstones=keep_tombstones)
    pipeline.flow(to=_target(target, options, deletes=DELETED if deletes else None), name=FLOW)(
        step
    )
    # The name of a stream need not be valid for a parameter: in, 2026.
    pipeline.flows[FLOW] = replace(
        pipeline.flows[FLOW],
        inputs=(name,),
        function=lambda **inputs: step(inputs[name]),
        place=NOWHERE,
    )
    return pipeline


def default_name(source: Address, target: Address) -> str:
    """Return the name for two places, which determines the checkpoint.

    It is always the same for the same places, so that the command continues where it stopped.
    """
    both = hashlib.sha256(f"{_absolute(source)} {_absolute(target)}".encode()).hexdigest()[:6]
    return f"{_base(source)}-to-{_base(target)}-{both}"


def _absolute(address: Address) -> Address:
    """Resolve a relative path: it means another place in another working directory."""
    if address.is_database:
        if not names_file(address.place):
            return address
        return replace(
            address, place=f"{address.kind}:///{Path(file_path(address.place)).absolute()}"
        )
    if address.kind in (FILES, PARQUET, DELTA):
        return replace(address, place=str(Path(address.place).absolute()))
    return address


def _base(address: Address) -> str:
    last = address.table or address.place.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", last).strip("-") or address.kind


def _check(source: Address, target: Address, options: ConnectOptions) -> None:
    if source.kind == DELTA:
        raise AddressError(
            "a Delta table cannot be read as a stream",
            hint="read its files once with Spark, or the topic it comes from",
        )
    if target.kind == FILES:
        raise AddressError(
            "files: can only be read", hint=f"write parquet:{target.place} or delta:{target.place}"
        )
    if options.tombstones and source.kind != TOPIC:
        raise AddressError(
            f"{source} has no records without a value",
            hint="omit --tombstones; it applies to topics",
        )
    clusters = source.cluster or target.cluster
    if source.kind == target.kind == TOPIC and clusters:
        raise AddressError(
            "topics of two clusters are connected by `millstream mirror`, which keeps partitions, "
            "times and offsets of groups",
            hint="millstream mirror --from HOST:PORT --to HOST:PORT --topics NAME",
        )
    if source.kind == target.kind == TOPIC:
        raise AddressError(
            "a topic is derived from another one by a flow, which defines its rows",
            hint="use `millstream sql`: CREATE STREAM copy AS SELECT * FROM ...; "
            "to another cluster: `millstream mirror`",
        )
    if clusters:
        raise AddressError(
            "the cluster is not part of the address", hint=f"give it as --bootstrap {clusters}"
        )
    for address, known in ((source, _SOURCE_OPTIONS), (target, _TARGET_OPTIONS)):
        names = known.get(
            "database" if address.is_database else address.kind, tuple(address.options)
        )
        for name in address.options:
            if name not in names:
                raise AddressError(f"{address} has no option {name!r}", hint=nearest(name, names))


# ---------------------------------------------------------------- reading


def _topic_stream(
    pipeline: Pipeline, source: Address, target: Address, options: ConnectOptions
) -> str:
    value = _value(source, options)
    arguments: dict[str, Any] = {"value": value, "topic": source.place, "meta": True}
    if value not in ("raw", "string"):
        arguments["schema"] = (
            source.options.get("schema") or options.schema or _schema_of(target, options)
        )
    if tombstones := _tombstones(source, target, options):
        arguments["tombstones"] = tombstones
    if starting := source.options.get("starting") or options.starting:
        arguments["starting"] = starting
    if records := source.options.get("records"):
        arguments["source"] = {"maxOffsetsPerTrigger": records}
    return pipeline.stream(_base(source), **arguments).name


def _tombstones(source: Address, target: Address, options: ConnectOptions) -> str | None:
    """Return the meaning of a record without a value; None is the default of streams, to drop it.

    A table with a key deletes the row.
    """
    declared = source.options.get("tombstones") or options.tombstones
    if _value(source, options) in UNPARSED:
        if declared:
            raise AddressError(
                f"values of {_value(source, options)} are not parsed: null is passed on",
                hint="omit tombstones",
            )
        return None
    keyed = target.is_database and bool(_key(target, options))
    if declared and declared not in TOMBSTONES:
        raise AddressError(
            f"tombstones={declared!r} is unknown", hint=f"it is one of {', '.join(TOMBSTONES)}"
        )
    if declared == "keep" and target.is_database and not keyed:
        raise AddressError(
            f"{target} has no key, so a record without a value cannot delete a row",
            hint="give --key, or drop them",
        )
    return declared or ("keep" if keyed else None)


def _value(address: Address, options: ConnectOptions) -> str:
    return address.options.get("value") or options.value or "json"


def _origin(source: Address, options: ConnectOptions) -> Origin:
    arguments: dict[str, Any] = dict(source.options)
    schema = arguments.pop("schema", None) or options.schema
    if source.is_database:
        assert source.table is not None
        return table(
            source.place,
            source.table,
            by=arguments.get("by") or options.by,
            key=columns_in(arguments.get("key")),
            lag=arguments.get("lag"),
            poll=arguments.get("poll"),
            schema=schema,
            **_number(arguments, "rows", "rows_per_batch"),
        )
    kind = "parquet" if source.kind == PARQUET else arguments.pop("format", None)
    arguments |= _number(arguments, "files_per_batch", "files_per_batch")
    return files(source.place, format=kind, schema=schema, **arguments)


def _schema_of(target: Address, options: ConnectOptions) -> str:
    """Return the schema of the target table, if it exists."""
    spark_types: Mapping[str, str] = {}
    if target.is_database:
        db = connect(target.place)
        try:
            assert target.table is not None
            columns = db.catalog.columns(target.table) or ()
            spark_types = {column.name: db.types.read_type(column) for column in columns}
        finally:
            db.connection.close()
    if not spark_types:
        raise AddressError(
            "the values of the topic need a schema",
            hint="give --schema 'id int NOT NULL, name string'",
        )
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in spark_types.items())


# ---------------------------------------------------------------- writing


def _target(target: Address, options: ConnectOptions, *, deletes: str | None) -> Target:
    by = columns_in(target.options.get("by")) or options.partition_by
    if by and target.kind not in (PARQUET, DELTA):
        raise AddressError(f"{target} cannot be partitioned by columns", hint="omit --partition-by")
    key = _key(target, options)
    if target.is_database:
        assert target.table is not None
        return table(target.place, target.table, key=key, deletes=deletes)
    if target.kind == TOPIC:
        value = _value(target, options)
        return topic(
            target.place,
            key=key,
            value=value,
            **_number(target.options, "partitions", "partitions"),
        )
    if options.key:
        raise AddressError(f"{target} has no keys: every row is added", hint="omit --key")
    return (delta if target.kind == DELTA else parquet)(target.place, by=by)


def _step(
    target: Address, options: ConnectOptions, *, deletes: bool, keep_tombstones: bool
) -> Callable[[DataFrame], DataFrame]:
    """Return the step that drops metadata columns, and adds the date to partition by."""
    by = columns_in(target.options.get("by")) or options.partition_by
    key = _key(target, options)

    def step(rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        if DATE in by and DATE not in rows.columns:
            rows = rows.withColumn(DATE, F.to_date("_timestamp"))
        if deletes:
            return _with_key(rows, key).drop(*_META)
        # A tombstone means nothing without its key.
        return rows.drop(*(name for name in _META if not keep_tombstones or name != "_key"))

    return step


def _with_key(rows: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """Fill key columns from the key of the record: a tombstone has no other values."""
    from pyspark.sql import functions as F

    text = F.col("_key").cast("string")
    if len(key) == 1:
        parts = {key[0]: text}
    else:
        schema = ", ".join(f"{quoted(name)} string" for name in key)
        parsed = F.from_json(text, schema)
        parts = {name: parsed.getField(name) for name in key}
    for name, part in parts.items():
        if name in rows.columns:
            from_key = part.try_cast(rows.schema[name].dataType)
            rows = rows.withColumn(name, F.coalesce(F.col(quoted(name)), from_key))
    return rows


# ---------------------------------------------------------------- options


def _key(target: Address, options: ConnectOptions) -> tuple[str, ...]:
    return columns_in(target.options.get("key")) or options.key


def columns_in(text: str | None) -> tuple[str, ...]:
    """Return the columns of ``a,b``."""
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text else ()


def _number(options: Mapping[str, str], name: str, parameter: str) -> dict[str, Any]:
    text = options.get(name)
    if text is None:
        return {}
    if not text.isdigit():
        raise AddressError(f"{name}={text!r} is not a number")
    return {parameter: int(text)}
