"""What a pipeline file may declare, and how mistakes are told: no Spark, no broker."""

from __future__ import annotations

import pytest

from millstream.pipelines import Pipeline, PipelineError, parquet, topic
from millstream.pipelines.declare import identifier
from millstream.pipelines.durations import Watermark, parse_duration_ms, parse_watermark
from millstream.pipelines.graph import build_graph, find_problems, with_upstream
from millstream.pipelines.letter_flows import begins_late, letter_flows, writer_name
from millstream.pipelines.sql_names import tables_named


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1 minute", 60_000),
        ("90 seconds", 90_000),
        ("1 hour 30 minutes", 5_400_000),
        ("250ms", 250),
        ("2 Days", 172_800_000),
        ("0 seconds", 0),
    ],
)
def test_times_as_people_write_them(text: str, milliseconds: int) -> None:
    assert parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "minute", "1", "1 fortnight", "-1 minute", "1 minute and more"])
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(PipelineError, match="write it like '30 seconds'"):
        parse_duration_ms(text)


def test_a_watermark_names_its_column_and_delay() -> None:
    assert parse_watermark("at 1 minute") == Watermark("at", 60_000)
    assert parse_watermark("at 1 minute").delay == "60000 milliseconds"
    with pytest.raises(PipelineError, match="'1 minute' is not a watermark; write the column and the delay"):
        parse_watermark("1 minute")


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("SELECT * FROM orders WHERE amount > 10000", ("orders",)),
        ("select a.x from orders a join `page-views` b on a.id = b.id", ("orders", "page-views")),
        (
            "SELECT * FROM orders o, payments AS p, customers WHERE o.id = p.id",
            ("orders", "payments", "customers"),
        ),
        (
            "WITH big AS (SELECT * FROM orders), x AS (SELECT * FROM big) SELECT * FROM x JOIN big",
            ("orders",),
        ),
        ("SELECT * FROM (SELECT id FROM orders) LEFT JOIN customers USING (id)", ("orders", "customers")),
        ("SELECT 'from nowhere', \"join me\" FROM orders -- from comments\n /* from c */", ("orders",)),
        ("SELECT extract(YEAR FROM at), trim(BOTH 'x' FROM name) FROM orders", ("orders",)),
        ("SELECT * FROM orders WHERE a IS DISTINCT FROM b", ("orders",)),
        ("SELECT * FROM range(10) JOIN orders", ("orders",)),
        ("SELECT id FROM orders UNION ALL SELECT id FROM refunds", ("orders", "refunds")),
        ("SELECT window.start, count(*) FROM orders GROUP BY window(at, '1 minute')", ("orders",)),
    ],
)
def test_the_tables_that_a_query_names(query: str, names: tuple[str, ...]) -> None:
    assert tables_named(query) == names


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
    found = {one.name: one for one in letter_flows(made, made.flows.values())}
    assert {name: one.topics[0].topic for name, one in found.items()} == {
        "dlq.orders": "orders.dlq",
        "dlq.customers": "customers.dlq",
        "dlq.clicks": "clicks.dlq",
        "dlq.first": "joined.dlq",
    }
    assert [writer_name(made, one) for one in found.values()] == [None, None, None, "first"]
    late = [name for name, one in found.items() if one.letters_of is not None and begins_late(one.letters_of)]
    assert late == ["dlq.orders", "dlq.clicks"]
    starts = ["earliest", "latest", '{"t": {"0": 5, "1": -2}}', '{"t": {"0": 5, "1": -1}}']
    streams = [made.stream(f"s{number}", value="raw", starting=one) for number, one in enumerate(starts)]
    assert [begins_late(one) for one in streams] == [False, True, False, True]
    twice = Pipeline("twice")
    for name, schema in (("a", "id string"), ("b", "id string"), ("c", "id int")):
        twice.stream(name, topic="orders", schema=schema)
        twice.sql(f"of_{name}", f"SELECT * FROM {name}", to=topic(f"of-{name}"))
    assert [one.name for one in letter_flows(twice, twice.flows.values())] == ["dlq.a", "dlq.c"]
    silent = Pipeline("silent", dead_letters=False)
    silent.stream("orders", schema="id string")
    silent.sql("first", "SELECT * FROM orders", to=topic("joined"))
    silent.sql("second", "SELECT * FROM first", to=topic("out"))
    assert letter_flows(silent, silent.flows.values()) == []


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
    assert [problem.text for problem in find_problems(made)] == [
        "a cycle: one reads two reads three reads one"
    ]


def test_a_flow_that_reads_its_own_topic_is_a_cycle() -> None:
    made = pipe()
    made.stream("back", topic="out", schema="id string")
    made.sql("echo", "SELECT * FROM back", to=topic("out"))
    assert [problem.text for problem in find_problems(made)] == ["a cycle: echo reads echo"]


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


def test_declarations_know_their_line() -> None:
    made = pipe()
    assert {made.place.file, made.streams["orders"].place.file} == {__file__}
    assert made.streams["orders"].place.line == made.place.line + 1


def test_names_are_given_once() -> None:
    made = pipe()
    with pytest.raises(PipelineError, match="'orders' is declared twice; the first is at "):
        made.table("orders", schema="id string")


def test_parquet_takes_only_rows_that_are_final() -> None:
    with pytest.raises(
        PipelineError, match="parquet lake in update mode, which would repeat rows; it takes mode='append'"
    ):
        pipe().sql("x", "SELECT * FROM orders", to=parquet("lake"), mode="update")


def test_a_pipeline_without_flows_is_told() -> None:
    with pytest.raises(PipelineError, match="pipeline revenue has no flows"):
        build_graph(pipe())


def test_only_some_flows() -> None:
    made = pipe()
    made.sql("one", "SELECT * FROM orders", to=topic("a"))
    made.sql("two", "SELECT * FROM orders", to=topic("b"))
    graph = build_graph(made)
    assert [flow.name for flow in with_upstream(graph, ["two"])] == ["two"]
    with pytest.raises(PipelineError, match="there is no flow 'tow'; did you mean 'two'"):
        with_upstream(graph, ["tow"])


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
    with pytest.raises(PipelineError, match="is unknown; it is one of"):
        Pipeline("p", **wrong)  # type: ignore[arg-type]
