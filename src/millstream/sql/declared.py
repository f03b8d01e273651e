"""Catalog entries as declarations of the pipeline library, which reads, writes and runs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from millstream.pipelines.declare import Flow, Pipeline
from millstream.pipelines.errors import nearest
from millstream.pipelines.formats.codec import DERIVED, READ_BY_COLUMNS
from millstream.pipelines.formats.registry import TOMBSTONES, option_names
from millstream.pipelines.sql_names import tables_named
from millstream.pipelines.targets import TopicTarget, topic
from millstream.sql.catalog import DEFAULT_TOPIC, Catalog, Source, StoredFlow
from millstream.sql.errors import SqlError
from millstream.sql.output_columns import conform

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = "sql"
COMPACTED = {"cleanup.policy": "compact"}
# Options of a stream or table that are not options of its format.
OPTIONS = (
    "topic",
    "value",
    "key",
    "watermark",
    "starting",
    "tombstones",
    "meta",
    "schema",
    "dead_letters",
    "partitions",
    "replication_factor",
)
PREFIXES = ("source", "config")


def pipeline_name(catalog_topic: str) -> str:
    """Return the pipeline of a catalog: flows of different catalogs do not share progress."""
    return PIPELINE if catalog_topic == DEFAULT_TOPIC else catalog_topic.lstrip("_")


def pipeline_of(
    catalog: Catalog,
    bootstrap: str,
    *,
    name: str = PIPELINE,
    flows: Iterable[StoredFlow] | None = None,
) -> Pipeline:
    """Return a pipeline with all streams and tables, and these flows (all by default)."""
    pipeline = Pipeline(name, bootstrap=bootstrap)
    for source in catalog.sources.values():
        declare_source(pipeline, source)
    for flow in catalog.flows.values() if flows is None else flows:
        declare_flow(pipeline, flow, catalog.source(flow.target))
    return pipeline


def declare_source(pipeline: Pipeline, source: Source) -> None:
    options = source.options
    arguments: dict[str, Any] = format_options(source)
    if "dead_letters" in options:
        arguments["dead_letters"] = _boolean(options["dead_letters"], options["dead_letters"])
    arguments |= {
        "topic": source.topic,
        "value": source.value,
        "schema": schema_of(source),
        "meta": bool(_boolean(options.get("meta", "false"), True)),
        "source": _prefixed(options, "source"),
    }
    if source.kind == "table":
        pipeline.table(source.name.lower(), **arguments)
    else:
        watermark, starting = options.get("watermark"), options.get("starting", "earliest")
        if "tombstones" in options:
            arguments["tombstones"] = options["tombstones"].lower()
        pipeline.stream(source.name.lower(), watermark=watermark, starting=starting, **arguments)


def declare_flow(pipeline: Pipeline, flow: StoredFlow, target: Source) -> Flow:
    """Declare a flow. Its columns become those of its target by position."""
    declared = pipeline.sql(flow.id, flow.query, to=topic_target(target), mode=flow.mode)  # type: ignore[arg-type]

    def run(spark: SparkSession) -> Any:
        return conform(spark.sql(flow.query), target)

    pipeline.flows[flow.id] = replace(declared, inputs=inputs_of(flow.query), function=run)
    return pipeline.flows[flow.id]


def inputs_of(query: str) -> tuple[str, ...]:
    """Return the streams and tables that a query names, as the pipeline knows them."""
    return tuple(dict.fromkeys(name.lower() for name in tables_named(query)))


def topic_target(source: Source) -> TopicTarget:
    """Return where rows for a stream or table are written."""
    options = source.options
    if source.kind == "table" and not source.key:
        raise SqlError(
            f"rows of table {source.name} have no key, so no row could ever be replaced",
            hint=f"declare it WITH (key = {source.columns[0].name if source.columns else 'column'}, ...)",
        )
    return topic(
        source.topic,
        key=source.key,
        value=source.value,
        # A schema derived from the rows would depend on whether a query can return null, which no
        # reader knows.
        schema=schema_of(source) if source.value in DERIVED else options.get("schema"),
        partitions=_number(options, "partitions"),
        replication_factor=_number(options, "replication_factor"),
        config=topic_config(source),
        **format_options(source),
    )


def topic_config(source: Source) -> dict[str, str]:
    """Return the settings of a topic that is created for it."""
    return (COMPACTED if source.kind == "table" else {}) | _prefixed(source.options, "config")


def schema_of(source: Source) -> str | None:
    """Return the schema of its values, if its format has one."""
    if "schema" in source.options:
        return source.options["schema"]
    if source.value not in READ_BY_COLUMNS:
        return None
    return ", ".join(column.ddl for column in source.columns)


def format_options(source: Source) -> dict[str, Any]:
    """Return the options of the format under its names.

    Reject unknown ones with the nearest name.
    """
    known = {name.lower(): name for name in option_names(source.value)}
    options: dict[str, Any] = {}
    for name, value in source.options.items():
        if name == "tombstones" and value.lower() not in TOMBSTONES:
            raise SqlError(
                f"tombstones = {value!r} is unknown", hint=f"it is one of {', '.join(TOMBSTONES)}"
            )
        if name in OPTIONS or name.partition(".")[0] in PREFIXES:
            continue
        if name not in known:
            raise SqlError(f"there is no option {name!r}", hint=nearest(name, [*OPTIONS, *known]))
        options[known[name]] = _boolean(value, int(value) if value.isdigit() else value)
    return options


def _prefixed(options: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the options source.X or config.X, by X."""
    start = f"{prefix}."
    return {name[len(start) :]: value for name, value in options.items() if name.startswith(start)}


def _boolean(text: str, default: Any) -> Any:
    return {"true": True, "false": False}.get(text.lower(), default)


def _number(options: Mapping[str, str], name: str) -> int | None:
    if name not in options:
        return None
    if not options[name].isdigit():
        raise SqlError(f"{name} must be a number, not {options[name]!r}")
    return int(options[name])
