"""Declarations in a pipeline file, and how mistakes are reported: no Spark, no broker."""

from __future__ import annotations

import pytest

from millstream.pipelines import Pipeline, PipelineError, parquet, topic
from millstream.pipelines.dead_letters.ownership import (
    dead_letter_flows,
    starts_by_time,
    writer_name,
)
from millstream.pipelines.declare import identifier
from millstream.pipelines.graph import build_graph


def pipe() -> Pipeline:
    pipeline = Pipeline("revenue")
    pipeline.stream("orders", schema="id string, at timestamp", watermark="at 1 minute")
    pipeline.table("customers", schema="customer string")
    return pipeline


def test_every_input_topic_has_dead_letters() -> None:
    pipeline = Pipeline("shop")
    pipeline.stream("orders", schema="id string", starting="latest")
    pipeline.table("customers", schema="id string")
    pipeline.stream("bytes", value="raw")
    pipeline.stream("clicks", schema="id string", source={"startingTimestamp": 1_700_000_000_000})
    pipeline.sql("first", "SELECT * FROM orders JOIN customers USING (id)", to=topic("joined"))
    pipeline.sql("second", "SELECT * FROM first", to=[topic("out"), parquet("lake")])
    pipeline.sql("zeroth", "SELECT * FROM clicks", to=topic("copied"))
    pipeline.sql("third", "SELECT * FROM bytes", to=topic("copies", value="raw"))
    pipeline.sql("fourth", "SELECT * FROM third", to=topic("more"))
    queries = {query.name: query for query in dead_letter_flows(pipeline, pipeline.flows.values())}
    assert {name: query.topics[0].topic for name, query in queries.items()} == {
        "dlq.orders": "orders.dlq",
        "dlq.customers": "customers.dlq",
        "dlq.clicks": "clicks.dlq",
        "dlq.first": "joined.dlq",
    }
    assert [writer_name(pipeline, query) for query in queries.values()] == [
        None,
        None,
        None,
        "first",
    ]
    late = [
        name
        for name, query in queries.items()
        if query.letters_of is not None and starts_by_time(query.letters_of)
    ]
    assert late == ["dlq.orders", "dlq.clicks"]
    starts = ["earliest", "latest", '{"t": {"0": 5, "1": -2}}', '{"t": {"0": 5, "1": -1}}']
    streams = [
        pipeline.stream(f"s{number}", value="raw", starting=start)
        for number, start in enumerate(starts)
    ]
    assert [starts_by_time(stream) for stream in streams] == [False, True, False, True]
    twice = Pipeline("twice")
    for name, schema in (("a", "id string"), ("b", "id string"), ("c", "id int")):
        twice.stream(name, topic="orders", schema=schema)
        twice.sql(f"of_{name}", f"SELECT * FROM {name}", to=topic(f"of-{name}"))
    assert [query.name for query in dead_letter_flows(twice, twice.flows.values())] == [
        "dlq.a",
        "dlq.c",
    ]
    silent = Pipeline("silent", dead_letters=False)
    silent.stream("orders", schema="id string")
    silent.sql("first", "SELECT * FROM orders", to=topic("joined"))
    silent.sql("second", "SELECT * FROM first", to=topic("out"))
    assert dead_letter_flows(silent, silent.flows.values()) == []


def test_declarations_have_their_line() -> None:
    pipeline = pipe()
    assert {pipeline.place.file, pipeline.streams["orders"].place.file} == {__file__}
    assert pipeline.streams["orders"].place.line == pipeline.place.line + 1


def test_duplicate_names_are_rejected() -> None:
    pipeline = pipe()
    with pytest.raises(PipelineError, match="'orders' is already declared; it is declared at "):
        pipeline.table("orders", schema="id string")


def test_parquet_accepts_only_append_mode() -> None:
    with pytest.raises(
        PipelineError,
        match="parquet lake in update mode, which would repeat rows; use mode='append'",
    ):
        pipe().sql("x", "SELECT * FROM orders", to=parquet("lake"), mode="update")


def test_pipeline_without_flows_is_rejected() -> None:
    with pytest.raises(PipelineError, match="pipeline revenue has no flows"):
        build_graph(pipe())


def test_targets_have_their_declared_options() -> None:
    target = topic(
        "x", key=["a", "b"], partitions=4, config={"cleanup.policy": "compact", "preallocate": True}
    )
    assert (target.key, target.partitions) == (("a", "b"), 4)
    assert target.config == {"cleanup.policy": "compact", "preallocate": "true"}
    assert parquet("file:///lake", by="day").by == ("day",)
    with pytest.raises(PipelineError, match="cannot write Parquet to s3://bucket"):
        parquet("s3://bucket")


@pytest.mark.parametrize("name", ["..", ".status.json", "dlq.orders", "with blanks", ""])
def test_reserved_and_invalid_names_are_rejected(name: str) -> None:
    pipeline = pipe()
    with pytest.raises(PipelineError, match="cannot be the name of an input"):
        pipeline.sql(name, "SELECT * FROM orders", to=topic("out"))
    # the name of a connector
    assert Pipeline("dlq.orders-to-lake").name == "dlq.orders-to-lake"


def test_topic_names_become_parameter_names() -> None:
    assert identifier("page-views.v1") == "page_views_v1"


@pytest.mark.parametrize("wrong", [{"on_failure": "shrug"}, {"delivery": "twice"}])
def test_unknown_policies_are_rejected(wrong: dict[str, str]) -> None:
    with pytest.raises(PipelineError, match="is unknown; choose from"):
        Pipeline("p", **wrong)  # type: ignore[arg-type]
