"""The order of flows, and mistakes in what they read: no Spark, no broker."""

from __future__ import annotations

import pytest

from millstream.pipelines import Pipeline, PipelineError, parquet, topic
from millstream.pipelines.graph import build_graph, find_problems, with_upstream


def pipe() -> Pipeline:
    made = Pipeline("revenue")
    made.stream("orders", schema="id string, at timestamp", watermark="at 1 minute")
    made.table("customers", schema="customer string")
    return made


def test_parameters_name_inputs_and_flows_are_ordered_by_what_they_read() -> None:
    made = pipe()

    @made.flow(to=parquet("lake", by="day"))
    def archive(paid_orders):
        return paid_orders

    @made.flow(to=topic("revenue", key="country"), mode="update")
    def revenue(known, spark):
        return known

    @made.view
    def known(paid_orders, customers):
        return paid_orders

    @made.flow(to=topic("paid-orders", key="id"))
    def paid_orders(orders):
        return orders

    graph = build_graph(made)
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


def test_a_stream_over_a_topic_that_a_flow_writes_comes_after_that_flow() -> None:
    made = pipe()
    made.sql("late", "SELECT * FROM big", to=topic("late"))
    made.stream("big", topic="big-orders")
    made.sql("large", "SELECT * FROM orders", to=topic("big-orders"))
    assert [flow.name for flow in build_graph(made).order] == ["large", "late"]


def test_an_unknown_input_is_told_with_the_nearest_name_and_the_line() -> None:
    made = pipe()

    @made.flow(to=topic("out"))
    def copy(ordres):
        return ordres

    with pytest.raises(PipelineError) as told:
        build_graph(made)
    assert "flow copy reads 'ordres', which is not declared; did you mean 'orders'?" in str(told.value)
    assert told.value.place is not None and told.value.place.file == __file__


def test_a_cycle_is_told_with_its_names() -> None:
    made = pipe()
    made.sql("one", "SELECT * FROM two", to=topic("a"))
    made.sql("two", "SELECT * FROM three JOIN orders", to=topic("b"))
    made.sql("three", "SELECT * FROM one", to=topic("c"))
    assert [problem.text for problem in find_problems(made)] == ["cycle: one reads two reads three reads one"]


def test_a_flow_that_reads_its_own_topic_is_a_cycle() -> None:
    made = pipe()
    made.stream("back", topic="out", schema="id string")
    made.sql("echo", "SELECT * FROM back", to=topic("out"))
    assert [problem.text for problem in find_problems(made)] == ["cycle: echo reads echo"]


def test_all_problems_are_found_at_once() -> None:
    made = Pipeline("p")
    made.stream("orders")
    made.sql("files", "SELECT * FROM orders", to=parquet("lake"))
    made.sql("more", "SELECT * FROM files", to=topic("x"))
    made.sql("again", "SELECT * FROM orders", to=topic("x"))

    @made.flow(to=topic("y"))
    def nothing():
        return None

    found = {problem.text: problem.warning for problem in find_problems(made)}
    assert found == {
        "flow more reads flow files, which writes no topic": False,
        "flow nothing reads nothing": False,
        "stream orders has no schema": False,
        "flow again writes to topic x, as does flow more": True,
    }


def test_only_some_flows() -> None:
    made = pipe()
    made.sql("one", "SELECT * FROM orders", to=topic("a"))
    made.sql("two", "SELECT * FROM orders", to=topic("b"))
    graph = build_graph(made)
    assert [flow.name for flow in with_upstream(graph, ["two"])] == ["two"]
    with pytest.raises(PipelineError, match="flow 'tow' does not exist; did you mean 'two'"):
        with_upstream(graph, ["tow"])
