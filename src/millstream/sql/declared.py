"""Catalog entries as declarations of the pipeline library: what reads, writes and runs them is all there."""

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
    """Flows of different catalogs do not share progress."""
    return PIPELINE if catalog_topic == DEFAULT_TOPIC else catalog_topic.lstrip("_")


def pipeline_of(
    catalog: Catalog, bootstrap: str, *, name: str = PIPELINE, flows: Iterable[StoredFlow] | None = None
) -> Pipeline:
    """A pipeline with all streams and tables, and these flows (all, if none are given)."""
    pipeline = Pipeline(name, bootstrap=bootstrap)
    for source in catalog.sources.values():
        declare_source(pipeline, source)
    for flow in catalog.flows.values() if flows is None else flows:
        declare_flow(pipeline, flow, catalog.source(flow.target))
    return pipeline


def declare_source(pipeline: Pipeline, source: Source) -> None:
    given = source.options
    more: dict[str, Any] = format_options(source)
    if "dead_letters" in given:
        more["dead_letters"] = _truth(given["dead_letters"], given["dead_letters"])
    more |= {
        "topic": source.topic,
        "value": source.value,
        "schema": schema_of(source),
        "meta": bool(_truth(given.get("meta", "false"), True)),
        "source": _prefixed(given, "source"),
    }
    if source.kind == "table":
        pipeline.table(source.name.lower(), **more)
    else:
        watermark, starting = given.get("watermark"), given.get("starting", "earliest")
        if "tombstones" in given:
            more["tombstones"] = given["tombstones"].lower()
        pipeline.stream(source.name.lower(), watermark=watermark, starting=starting, **more)


def declare_flow(pipeline: Pipeline, flow: StoredFlow, target: Source) -> Flow:
    """The flow, whose columns become those of its target by their order."""
    made = pipeline.sql(flow.id, flow.query, to=topic_target(target), mode=flow.mode)  # type: ignore[arg-type]

    def run(spark: SparkSession) -> Any:
        return conform(spark.sql(flow.query), target)

    pipeline.flows[flow.id] = replace(made, inputs=inputs_of(flow.query), function=run)
    return pipeline.flows[flow.id]


def inputs_of(query: str) -> tuple[str, ...]:
    """What a query names, as the pipeline knows it."""
    return tuple(dict.fromkeys(name.lower() for name in tables_named(query)))


def topic_target(source: Source) -> TopicTarget:
    """Where rows go that are written to a stream or table."""
    given = source.options
    if source.kind == "table" and not source.key:
        raise SqlError(
            f"rows of table {source.name} have no key, so none could ever be replaced",
            hint=f"declare it WITH (key = {source.columns[0].name if source.columns else 'column'}, ...)",
        )
    return topic(
        source.topic,
        key=source.key,
        value=source.value,
        # Derived from the rows it would depend on whether a query can give null, and no reader knows that.
        schema=schema_of(source) if source.value in DERIVED else given.get("schema"),
        partitions=_number(given, "partitions"),
        replication_factor=_number(given, "replication_factor"),
        config=topic_config(source),
        **format_options(source),
    )


def topic_config(source: Source) -> dict[str, str]:
    """Settings of a topic that is made for it."""
    return (COMPACTED if source.kind == "table" else {}) | _prefixed(source.options, "config")


def schema_of(source: Source) -> str | None:
    """The schema that its values are read by: its own, or that of its columns, where the format has one."""
    if "schema" in source.options:
        return source.options["schema"]
    if source.value not in READ_BY_COLUMNS:
        return None
    return ", ".join(one.ddl for one in source.columns)


def format_options(source: Source) -> dict[str, Any]:
    """What is left for the format, by the names that it knows; an unknown one is told with the nearest of all."""
    known = {name.lower(): name for name in option_names(source.value)}
    found: dict[str, Any] = {}
    for name, value in source.options.items():
        if name == "tombstones" and value.lower() not in TOMBSTONES:
            raise SqlError(f"tombstones = {value!r} is unknown", hint=f"it is one of {', '.join(TOMBSTONES)}")
        if name in OPTIONS or name.partition(".")[0] in PREFIXES:
            continue
        if name not in known:
            raise SqlError(f"there is no option {name!r}", hint=nearest(name, [*OPTIONS, *known]))
        found[known[name]] = _truth(value, int(value) if value.isdigit() else value)
    return found


def _prefixed(options: Mapping[str, str], prefix: str) -> dict[str, str]:
    """source.X and config.X, by the X."""
    start = f"{prefix}."
    return {name[len(start) :]: value for name, value in options.items() if name.startswith(start)}


def _truth(text: str, otherwise: Any) -> Any:
    return {"true": True, "false": False}.get(text.lower(), otherwise)


def _number(options: Mapping[str, str], name: str) -> int | None:
    if name not in options:
        return None
    if not options[name].isdigit():
        raise SqlError(f"{name} is a number, not {options[name]!r}")
    return int(options[name])
