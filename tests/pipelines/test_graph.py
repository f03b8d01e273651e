"""The order of flows, and errors in their inputs: no Spark, no broker."""

from __future__ import annotations

import pytest

from millstream.pipelines import Pipeline, PipelineError, parquet, topic
from millstream.pipelines.graph import build_graph, find_problems, with_upstream


def pipe() -> Pipeline:
    pipeline = Pipeline("revenue")
    pipeline.stream("orders", schema="id string, at timestamp", watermark="at 1 minute")
    pipeline.table("customers", schema="customer string")
    return pipeline


def test_parameters_name_inputs_and_order_flows() -> None:
    pipeline = pipe()

    @pipeline.flow(to=parquet("lake", by="day"))
    def archive(paid_orders):
        return paid_orders

    @pipeline.flow(to=topic("revenue", key="country"), mode="update")
    def revenue(known, spark):
        return known

    @pipeline.view
    def known(paid_orders, customers):
        return paid_orders

    @pipeline.flow(to=topic("paid-orders", key="id"))
    def paid_orders(orders):
        return orders

    graph = build_graph(pipeline)
    assert [flow.name for flow in graph.order] == ["paid_orders", "archive", "revenue"]
    assert graph.upstream == {
        "archive": frozenset({"paid_orders"}),
        "revenue": frozenset({"paid_orders"}),
        "paid_orders": frozenset(),
    }
    assert [[flow.name for flow in wave] for wave in graph.waves()] == [
        ["paid_orders"],
        ["archive", "revenue"],
    ]


def test_stream_of_a_written_topic_comes_after_its_writer() -> None:
    pipeline = pipe()
    pipeline.sql("late", "SELECT * FROM big", to=topic("late"))
    pipeline.stream("big", topic="big-orders")
    pipeline.sql("large", "SELECT * FROM orders", to=topic("big-orders"))
    assert [flow.name for flow in build_graph(pipeline).order] == ["large", "late"]


def test_unknown_input_is_reported_with_nearest_name_and_line() -> None:
    pipeline = pipe()

    @pipeline.flow(to=topic("out"))
    def copy(ordres):
        return ordres

    with pytest.raises(PipelineError) as raised:
        build_graph(pipeline)
    assert "flow copy reads 'ordres', which is not declared; did you mean 'orders'?" in str(
        raised.value
    )
    assert raised.value.place is not None and raised.value.place.file == __file__


def test_cycle_is_reported_with_its_names() -> None:
    pipeline = pipe()
    pipeline.sql("one", "SELECT * FROM two", to=topic("a"))
    pipeline.sql("two", "SELECT * FROM three JOIN orders", to=topic("b"))
    pipeline.sql("three", "SELECT * FROM one", to=topic("c"))
    assert [problem.text for problem in find_problems(pipeline)] == [
        "cycle: one reads two reads three reads one"
    ]


def test_flow_that_reads_its_own_topic_is_a_cycle() -> None:
    pipeline = pipe()
    pipeline.stream("back", topic="out", schema="id string")
    pipeline.sql("echo", "SELECT * FROM back", to=topic("out"))
    assert [problem.text for problem in find_problems(pipeline)] == ["cycle: echo reads echo"]


def test_all_problems_are_reported_together() -> None:
    pipeline = Pipeline("p")
    pipeline.stream("orders")
    pipeline.sql("files", "SELECT * FROM orders", to=parquet("lake"))
    pipeline.sql("more", "SELECT * FROM files", to=topic("x"))
    pipeline.sql("again", "SELECT * FROM orders", to=topic("x"))

    @pipeline.flow(to=topic("y"))
    def nothing():
        return None

    problems = {problem.text: problem.warning for problem in find_problems(pipeline)}
    assert problems == {
        "flow more reads flow files, which writes no topic": False,
        "flow nothing reads nothing": False,
        "stream orders has no schema": False,
        "flow again writes to topic x, as does flow more": True,
    }


def test_named_flows_are_selected_in_order() -> None:
    pipeline = pipe()
    pipeline.sql("one", "SELECT * FROM orders", to=topic("a"))
    pipeline.sql("two", "SELECT * FROM orders", to=topic("b"))
    graph = build_graph(pipeline)
    assert [flow.name for flow in with_upstream(graph, ["two"])] == ["two"]
    with pytest.raises(PipelineError, match="flow 'tow' does not exist; did you mean 'two'"):
        with_upstream(graph, ["tow"])
