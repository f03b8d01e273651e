"""What ``millstream connect FROM TO`` runs: a pipeline with one stream and one flow, made of two addresses. Nothing is opened but schemas."""

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
# What may be said behind ? of each kind of address, as it is read and as it is written.
_READ = {
    TOPIC: ("value", "schema", "starting", "records", "tombstones"),
    "database": ("by", "key", "lag", "rows", "poll", "schema"),
}
_WRITTEN = {
    TOPIC: ("value", "key", "partitions"),
    PARQUET: ("by",),
    DELTA: ("by",),
    "database": ("key",),
}


@dataclass(frozen=True)
class Wishes:
    """What the command was told besides the two addresses."""

    bootstrap: str
    name: str | None = None
    value: str | None = None
    schema: str | None = None
    key: tuple[str, ...] = ()
    by: str | None = None
    partition_by: tuple[str, ...] = ()
    starting: str | None = None
    tombstones: str | None = None


def connection(source: Address, target: Address, wishes: Wishes) -> Pipeline:
    """The pipeline between two addresses; AddressError or PipelineError where they cannot be connected."""
    _check(source, target, wishes)
    made = Pipeline(wishes.name or default_name(source, target), bootstrap=wishes.bootstrap)
    keyed = target.is_database and bool(_key(target, wishes))
    if source.kind == TOPIC:
        name = _topic_stream(made, source, target, wishes)
    else:
        name = made.stream(_base(source), _origin(source, wishes), meta=True).name
    kept = source.kind == TOPIC and _tombstones(source, target, wishes) == "keep"
    removes = keyed and kept
    step = _step(target, wishes, keyed=removes, kept=kept)
    made.flow(to=_target(target, wishes, deletes=DELETED if removes else None), name=FLOW)(step)
    # A stream may be called what no parameter can be: in, 2026.
    made.flows[FLOW] = replace(
        made.flows[FLOW], inputs=(name,), function=lambda **given: step(given[name]), place=NOWHERE
    )
    return made


def default_name(source: Address, target: Address) -> str:
    """The same for the same two places, so that the command goes on where it was; checkpoints are below it."""
    both = hashlib.sha256(f"{_absolute(source)} {_absolute(target)}".encode()).hexdigest()[:6]
    return f"{_base(source)}-to-{_base(target)}-{both}"


def _absolute(address: Address) -> Address:
    """What is named from the working directory is another place in another one."""
    if address.is_database:
        if not names_file(address.place):
            return address
        return replace(address, place=f"{address.kind}:///{Path(file_path(address.place)).absolute()}")
    if address.kind in (FILES, PARQUET, DELTA):
        return replace(address, place=str(Path(address.place).absolute()))
    return address


def _base(address: Address) -> str:
    last = address.table or address.place.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", last).strip("-") or address.kind


def _check(source: Address, target: Address, wishes: Wishes) -> None:
    if source.kind == DELTA:
        raise AddressError(
            "a Delta table cannot be read as a stream",
            hint="read its files once with Spark, or the topic it comes from",
        )
    if target.kind == FILES:
        raise AddressError(
            "files: can only be read", hint=f"write parquet:{target.place} or delta:{target.place}"
        )
    if wishes.tombstones and source.kind != TOPIC:
        raise AddressError(
            f"{source} has no records without a value", hint="leave --tombstones out; it is said of topics"
        )
    clusters = source.cluster or target.cluster
    if source.kind == target.kind == TOPIC and clusters:
        raise AddressError(
            "topics of two clusters are connected by `millstream mirror`, which keeps partitions, times and offsets of groups",
            hint="millstream mirror --from HOST:PORT --to HOST:PORT --topics NAME",
        )
    if source.kind == target.kind == TOPIC:
        raise AddressError(
            "one topic is made of another by a flow, which says what its rows become",
            hint="`millstream sql`: CREATE STREAM copy AS SELECT * FROM ...; to another cluster: `millstream mirror`",
        )
    if clusters:
        raise AddressError(
            "the cluster is not part of the address", hint=f"give it as --bootstrap {clusters}"
        )
    for address, known in ((source, _READ), (target, _WRITTEN)):
        names = known.get("database" if address.is_database else address.kind, tuple(address.options))
        for name in address.options:
            if name not in names:
                raise AddressError(f"{address} has no option {name!r}", hint=nearest(name, names))


# ---------------------------------------------------------------- reading


def _topic_stream(made: Pipeline, source: Address, target: Address, wishes: Wishes) -> str:
    value = _value(source, wishes)
    given: dict[str, Any] = {"value": value, "topic": source.place, "meta": True}
    if value not in ("raw", "string"):
        given["schema"] = source.options.get("schema") or wishes.schema or _schema_of(target, wishes)
    if tombstones := _tombstones(source, target, wishes):
        given["tombstones"] = tombstones
    if starting := source.options.get("starting") or wishes.starting:
        given["starting"] = starting
    if records := source.options.get("records"):
        given["source"] = {"maxOffsetsPerTrigger": records}
    return made.stream(_base(source), **given).name


def _tombstones(source: Address, target: Address, wishes: Wishes) -> str | None:
    """What a record without a value means. A table with a key removes the row; None: a stream's default, which leaves it out."""
    given = source.options.get("tombstones") or wishes.tombstones
    if _value(source, wishes) in UNPARSED:
        if given:
            raise AddressError(
                f"values of {_value(source, wishes)} are not parsed: null is handed on",
                hint="leave tombstones out",
            )
        return None
    keyed = target.is_database and bool(_key(target, wishes))
    if given and given not in TOMBSTONES:
        raise AddressError(f"tombstones={given!r} is unknown", hint=f"it is one of {', '.join(TOMBSTONES)}")
    if given == "keep" and target.is_database and not keyed:
        raise AddressError(
            f"{target} has no key, so a record without a value removes no row",
            hint="give --key, or drop them",
        )
    return given or ("keep" if keyed else None)


def _value(address: Address, wishes: Wishes) -> str:
    return address.options.get("value") or wishes.value or "json"


def _origin(source: Address, wishes: Wishes) -> Origin:
    options: dict[str, Any] = dict(source.options)
    schema = options.pop("schema", None) or wishes.schema
    if source.is_database:
        assert source.table is not None
        return table(
            source.place,
            source.table,
            by=options.get("by") or wishes.by,
            key=columns_in(options.get("key")),
            lag=options.get("lag"),
            poll=options.get("poll"),
            schema=schema,
            **_number(options, "rows", "rows_per_batch"),
        )
    kind = "parquet" if source.kind == PARQUET else options.pop("format", None)
    options |= _number(options, "files_per_batch", "files_per_batch")
    return files(source.place, format=kind, schema=schema, **options)


def _schema_of(target: Address, wishes: Wishes) -> str:
    """What a table that exists already says about the rows that belong there."""
    found: Mapping[str, str] = {}
    if target.is_database:
        db = connect(target.place)
        try:
            assert target.table is not None
            found = {one.name: db.types.read_type(one) for one in db.catalog.columns(target.table) or ()}
        finally:
            db.connection.close()
    if not found:
        raise AddressError(
            "the values of the topic need a schema", hint="give --schema 'id int NOT NULL, name string'"
        )
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in found.items())


# ---------------------------------------------------------------- writing


def _target(target: Address, wishes: Wishes, *, deletes: str | None) -> Target:
    by = columns_in(target.options.get("by")) or wishes.partition_by
    if by and target.kind not in (PARQUET, DELTA):
        raise AddressError(f"{target} cannot be partitioned by columns", hint="leave --partition-by out")
    key = _key(target, wishes)
    if target.is_database:
        assert target.table is not None
        return table(target.place, target.table, key=key, deletes=deletes)
    if target.kind == TOPIC:
        value = _value(target, wishes)
        return topic(
            target.place, key=key, value=value, **_number(target.options, "partitions", "partitions")
        )
    if wishes.key:
        raise AddressError(f"{target} has no keys: every row is added", hint="leave --key out")
    return (delta if target.kind == DELTA else parquet)(target.place, by=by)


def _step(target: Address, wishes: Wishes, *, keyed: bool, kept: bool) -> Callable[[DataFrame], DataFrame]:
    """The one step: without the columns that say where rows came from, with the date where it was asked for."""
    by = columns_in(target.options.get("by")) or wishes.partition_by
    key = _key(target, wishes)

    def step(rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        if DATE in by and DATE not in rows.columns:
            rows = rows.withColumn(DATE, F.to_date("_timestamp"))
        if keyed:
            return _with_key(rows, key).drop(*_META)
        # Without its key, a row that only says that something was removed would say nothing.
        return rows.drop(*(name for name in _META if not kept or name != "_key"))

    return step


def _with_key(rows: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """A record without a value has nothing but its key to say which row is to go."""
    from pyspark.sql import functions as F

    text = F.col("_key").cast("string")
    if len(key) == 1:
        parts = {key[0]: text}
    else:
        kinds = ", ".join(f"{quoted(one)} string" for one in key)
        parsed = F.from_json(text, kinds)
        parts = {one: parsed.getField(one) for one in key}
    for one, part in parts.items():
        if one in rows.columns:
            given = part.try_cast(rows.schema[one].dataType)
            rows = rows.withColumn(one, F.coalesce(F.col(quoted(one)), given))
    return rows


# ---------------------------------------------------------------- small things


def _key(target: Address, wishes: Wishes) -> tuple[str, ...]:
    return columns_in(target.options.get("key")) or wishes.key


def columns_in(text: str | None) -> tuple[str, ...]:
    """``a,b`` as columns."""
    return tuple(one.strip() for one in text.split(",") if one.strip()) if text else ()


def _number(options: Mapping[str, str], name: str, called: str) -> dict[str, Any]:
    text = options.get(name)
    if text is None:
        return {}
    if not text.isdigit():
        raise AddressError(f"{name}={text!r} is no number")
    return {called: int(text)}
