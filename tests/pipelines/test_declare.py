"""Declarations in a pipeline file, and how mistakes are reported: no Spark, no broker."""

from __future__ import annotations

import pytest

from millstream.pipelines import Pipeline, PipelineError, parquet, topic
from millstream.pipelines.dead_letters.ownership import dead_letter_flows, starts_by_time, writer_name
from millstream.pipelines.declare import identifier
from millstream.pipelines.graph import build_graph


def pipe() -> Pipeline:
    made = Pipeline("revenue")
    made.stream("orders", schema="id string, at timestamp", watermark="at 1 minute")
    made.table("customers", schema="customer string")
    return made


def test_every_topic_that_is_read_has_its_dead_letters() -> None:
    made = Pipeline("shop")
    made.stream("orders", schema="id string", starting="latest")
    made.table("customers", schema="id string")
    made.stream("bytes", value="raw")
    made.stream("clicks", schema="id string", source={"startingTimestamp": 1_700_000_000_000})
    made.sql("first", "SELECT * FROM orders JOIN customers USING (id)", to=topic("joined"))
    made.sql("second", "SELECT * FROM first", to=[topic("out"), parquet("lake")])
    made.sql("zeroth", "SELECT * FROM clicks", to=topic("copied"))
    made.sql("third", "SELECT * FROM bytes", to=topic("copies", value="raw"))
    made.sql("fourth", "SELECT * FROM third", to=topic("more"))
    found = {one.name: one for one in dead_letter_flows(made, made.flows.values())}
    assert {name: one.topics[0].topic for name, one in found.items()} == {
        "dlq.orders": "orders.dlq",
        "dlq.customers": "customers.dlq",
        "dlq.clicks": "clicks.dlq",
        "dlq.first": "joined.dlq",
    }
    assert [writer_name(made, one) for one in found.values()] == [None, None, None, "first"]
    late = [
        name for name, one in found.items() if one.letters_of is not None and starts_by_time(one.letters_of)
    ]
    assert late == ["dlq.orders", "dlq.clicks"]
    starts = ["earliest", "latest", '{"t": {"0": 5, "1": -2}}', '{"t": {"0": 5, "1": -1}}']
    streams = [made.stream(f"s{number}", value="raw", starting=one) for number, one in enumerate(starts)]
    assert [starts_by_time(one) for one in streams] == [False, True, False, True]
    twice = Pipeline("twice")
    for name, schema in (("a", "id string"), ("b", "id string"), ("c", "id int")):
        twice.stream(name, topic="orders", schema=schema)
        twice.sql(f"of_{name}", f"SELECT * FROM {name}", to=topic(f"of-{name}"))
    assert [one.name for one in dead_letter_flows(twice, twice.flows.values())] == ["dlq.a", "dlq.c"]
    silent = Pipeline("silent", dead_letters=False)
    silent.stream("orders", schema="id string")
    silent.sql("first", "SELECT * FROM orders", to=topic("joined"))
    silent.sql("second", "SELECT * FROM first", to=topic("out"))
    assert dead_letter_flows(silent, silent.flows.values()) == []


def test_declarations_know_their_line() -> None:
    made = pipe()
    assert {made.place.file, made.streams["orders"].place.file} == {__file__}
    assert made.streams["orders"].place.line == made.place.line + 1


def test_names_are_given_once() -> None:
    made = pipe()
    with pytest.raises(PipelineError, match="'orders' is already declared; it is declared at "):
        made.table("orders", schema="id string")


def test_parquet_takes_only_rows_that_are_final() -> None:
    with pytest.raises(
        PipelineError, match="parquet lake in update mode, which would repeat rows; use mode='append'"
    ):
        pipe().sql("x", "SELECT * FROM orders", to=parquet("lake"), mode="update")


def test_a_pipeline_without_flows_is_told() -> None:
    with pytest.raises(PipelineError, match="pipeline revenue has no flows"):
        build_graph(pipe())


def test_targets_keep_what_was_declared() -> None:
    made = topic("x", key=["a", "b"], partitions=4, config={"cleanup.policy": "compact", "preallocate": True})
    assert (made.key, made.partitions) == (("a", "b"), 4)
    assert made.config == {"cleanup.policy": "compact", "preallocate": "true"}
    assert parquet("file:///lake", by="day").by == ("day",)
    with pytest.raises(PipelineError, match="cannot write Parquet to s3://bucket"):
        parquet("s3://bucket")


@pytest.mark.parametrize("name", ["..", ".status.json", "dlq.orders", "with blanks", ""])
def test_names_that_are_taken_or_no_names_are_refused(name: str) -> None:
    made = pipe()
    with pytest.raises(PipelineError, match="cannot be the name of an input"):
        made.sql(name, "SELECT * FROM orders", to=topic("out"))
    assert Pipeline("dlq.orders-to-lake").name == "dlq.orders-to-lake"  # of a connector


def test_topic_names_become_parameter_names() -> None:
    assert identifier("page-views.v1") == "page_views_v1"


@pytest.mark.parametrize("wrong", [{"on_failure": "shrug"}, {"delivery": "twice"}])
def test_unknown_policies_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(PipelineError, match="is unknown; choose from"):
        Pipeline("p", **wrong)  # type: ignore[arg-type]
