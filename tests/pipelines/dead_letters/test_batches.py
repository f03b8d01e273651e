"""Dead letters that a flow finds while it parses: once per bad record, in its transaction."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.client import Producer
from millstream.core.types import TopicPartition
from millstream.local.broker import LocalBroker
from millstream.pipelines import Pipeline, parquet
from millstream.pipelines import topic as to_topic
from millstream.pipelines.dead_letters import batches as batch_letters
from millstream.pipelines.dead_letters.handover import ended_at
from millstream.pipelines.dead_letters.ownership import plan_dead_letters
from millstream.pipelines.run.start_offsets import for_partitions, lowest
from millstream.pipelines.runner import Run, RunOptions
from millstream.spark.sink.progress import Progress
from millstream.spark.source.offsets import Offset
from millstream.spark.source.records_at import records_at, spans
from support.pipelines.letters import BAD, SCHEMA, letters, queries, values
from support.spark.pipeline_world import create, received, records, run_once, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)


def pipeline_of(name: str, bootstrap: str, **flows: Any) -> Pipeline:
    """Return a pipeline with a stream ``rows`` over a topic, and flows to these targets."""
    pipeline = Pipeline(name, bootstrap=bootstrap)
    pipeline.stream("rows", topic=name, schema=SCHEMA)
    for flow, target in flows.items():
        pipeline.sql(flow, "SELECT * FROM rows", to=target)
    return pipeline


def test_dead_letters_of_two_flows_are_written_once(
    spark: SparkSession, shared_broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    bootstrap = shared_broker.bootstrap
    create(bootstrap, topic_name)
    headers = [("trace", b"\x00\xff"), ("dlq.redriven", b"2"), ("dlq.reason", b"of old")]
    send(bootstrap, topic_name, [{"id": str(number), "n": number} for number in range(50)])
    with Producer(bootstrap) as producer:
        producer.send(
            topic_name,
            BAD[2],
            key=b"\xff",
            headers=headers,
            partition=1,
            timestamp_ms=1_700_000_000_123,
        )
        producer.send(topic_name, None, partition=0)
    targets = {"lake": parquet(str(tmp_path / "lake")), "copy": to_topic(f"{topic_name}-out")}
    pipeline = pipeline_of(topic_name, bootstrap, **targets)
    assert queries(pipeline, spark, tmp_path / "cp") == ["lake", "copy"]
    run_once(pipeline, spark, tmp_path / "cp")
    assert len(received(bootstrap, f"{topic_name}-out")) == 50
    assert spark.read.parquet(str(tmp_path / "lake")).count() == 50
    tombstone, bad = letters(bootstrap, topic_name)
    assert (tombstone.record.key, tombstone.record.value, tombstone.partition) == (None, None, 0)
    assert tombstone.reason == "the value is null"
    assert (bad.record.key, bad.record.value, bad.topic, bad.partition) == (
        b"\xff",
        BAD[2],
        topic_name,
        1,
    )
    assert (bad.timestamp_ms, bad.pipeline, bad.flow) == (1_700_000_000_123, topic_name, "copy")
    assert bad.redriven == 2
    assert bad.headers == (("trace", b"\x00\xff"),)
    assert bad.reason == "field 'n': \"many\" is text, not int"
    # The owner is the flow that writes a topic, and it stays the owner.
    assert json.loads((tmp_path / "cp" / topic_name / ".letters.json").read_text()) == {
        "rows": "copy"
    }
    send(bootstrap, topic_name, BAD[:1])
    run_once(pipeline, spark, tmp_path / "cp", only=["lake"])
    assert len(letters(bootstrap, topic_name)) == 2, "they wait for their owner"
    run_once(pipeline, spark, tmp_path / "cp")
    assert len(letters(bootstrap, topic_name)) == 3


def test_flow_without_topics_writes_dead_letters_once_on_replay(
    spark: SparkSession,
    shared_broker: LocalBroker,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bootstrap = shared_broker.bootstrap
    create(bootstrap, topic_name)
    send(bootstrap, topic_name, [*BAD, {"id": "a", "n": 1}])
    pipeline = pipeline_of(topic_name, bootstrap, lake=parquet(str(tmp_path / "lake")))
    pipeline.on_failure = "stop"
    from millstream.pipelines.dead_letters.refusals import RejectedRows

    write = RejectedRows.write

    def broken(*args: Any) -> None:
        raise RuntimeError("pulled the plug behind the store")

    def broken_after(*args: Any) -> None:
        write(*args)
        raise RuntimeError("pulled the plug behind the letters")

    for step in (broken, broken_after):
        monkeypatch.setattr(RejectedRows, "write", step)
        options = RunOptions(once=True, checkpoint=str(tmp_path / "cp"))
        assert not Run(pipeline, spark, options).run()
    monkeypatch.setattr(RejectedRows, "write", write)
    run_once(pipeline, spark, tmp_path / "cp")
    assert values(letters(bootstrap, topic_name)) == sorted(BAD)
    assert spark.read.parquet(str(tmp_path / "lake")).count() == 1


@pytest.mark.parametrize("case", ["many", "limit", "nothing-read"])
def test_more_bad_rows_than_collected_are_found_by_a_job(
    spark: SparkSession,
    shared_broker: LocalBroker,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    case: str,
) -> None:
    bootstrap, out = shared_broker.bootstrap, f"{topic_name}-out"
    create(bootstrap, topic_name)
    bad = [b"bad %d" % number for number in range(20)]
    send(bootstrap, topic_name, [*bad, *({"id": str(number), "n": 1} for number in range(20))])
    monkeypatch.setattr(batch_letters, "MAX_COLLECTED", 7)
    pipeline = Pipeline(topic_name, bootstrap=bootstrap)
    pipeline.stream("rows", topic=topic_name, schema=SCHEMA)
    query = {
        "many": "SELECT * FROM rows",
        "limit": "SELECT * FROM rows LIMIT 1",
        "nothing-read": "SELECT * FROM rows WHERE 1 = 0",
    }
    pipeline.sql("copy", query[case], to=to_topic(out))
    run_once(pipeline, spark, tmp_path)
    assert len(received(bootstrap, out)) == {"many": 20, "limit": 1, "nothing-read": 0}[case]
    rejected = letters(bootstrap, topic_name)
    assert values(rejected) == sorted(bad)
    assert len({(letter.partition, letter.offset) for letter in rejected}) == 20


@pytest.mark.parametrize("how", ["mapInPandas", "mapInArrow"])
def test_bad_rows_after_the_end_of_a_function_are_found(
    spark: SparkSession, shared_broker: LocalBroker, topic_name: str, tmp_path: Path, how: str
) -> None:
    """A function over batches may return before it has read all of them.

    Spark then stops reading.
    """
    bootstrap, out = shared_broker.bootstrap, f"{topic_name}-out"
    create(bootstrap, topic_name, partitions=1)
    with Producer(bootstrap) as producer:
        for _ in range(400_000):
            producer.send(topic_name, b'{"id":"a","n":1}')
        producer.send(topic_name, BAD[0])
    pipeline = Pipeline(topic_name, bootstrap=bootstrap)
    pipeline.stream("rows", topic=topic_name, schema=SCHEMA)

    def first_row(batches: Iterator[Any]) -> Iterator[Any]:
        yield next(batches)[:1]

    @pipeline.flow(to=to_topic(out))
    def first(rows: DataFrame) -> DataFrame:
        return getattr(rows, how)(first_row, SCHEMA)

    run_once(pipeline, spark, tmp_path / "cp")
    assert received(bootstrap, out) == [{"id": "a", "n": 1}]
    assert values(letters(bootstrap, topic_name)) == BAD[:1]


def test_dead_letters_follow_keyless_rows_in_the_same_partition(
    spark: SparkSession, shared_broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    """Both belong to one transaction and one producer, so sequence numbers continue."""
    bootstrap, out = shared_broker.bootstrap, f"{topic_name}-out"
    create(bootstrap, topic_name, partitions=1)
    create(bootstrap, out, partitions=1, cleanup_policy="compact")
    keyless = [{"id": "", "n": number} for number in range(5)]
    send(bootstrap, topic_name, [*BAD, *keyless, {"id": "a", "n": 1}])
    pipeline = Pipeline(topic_name, bootstrap=bootstrap)
    pipeline.stream("rows", topic=topic_name, schema=SCHEMA)
    pipeline.sql("copy", "SELECT nullif(id, '') AS id, n FROM rows", to=to_topic(out, key="id"))
    run_once(pipeline, spark, tmp_path)
    assert received(bootstrap, out) == [{"id": "a", "n": 1}]
    assert values(letters(bootstrap, topic_name)) == sorted(
        [*BAD, *(b'{"n":%d}' % n for n in range(5))]
    )


def test_stateful_flow_that_reads_twice_writes_dead_letters_once(
    spark: SparkSession, shared_broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    bootstrap, out = shared_broker.bootstrap, f"{topic_name}-out"
    create(bootstrap, topic_name)
    send(bootstrap, topic_name, [*BAD, {"id": "a", "n": 1}, {"id": "a", "n": 2}])
    pipeline = Pipeline(topic_name, bootstrap=bootstrap)
    pipeline.stream("rows", topic=topic_name, schema=SCHEMA)

    @pipeline.view
    def large(rows: DataFrame) -> DataFrame:
        return rows.where("n > 1")

    @pipeline.flow(to=to_topic(out), mode="complete")
    def counts(rows: DataFrame, large: DataFrame) -> DataFrame:
        return rows.unionByName(large).groupBy("id").count()

    run_once(pipeline, spark, tmp_path)
    assert received(bootstrap, out)[-1] == {"id": "a", "count": 3}
    assert values(letters(bootstrap, topic_name)) == sorted(BAD)


def test_existing_dead_letter_query_is_kept(
    spark: SparkSession,
    shared_broker: LocalBroker,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A newer version continues with the checkpoints, without losing or repeating dead letters."""
    from millstream.pipelines.dead_letters.ownership import DeadLetterPlan, dead_letter_flows
    from millstream.pipelines.run import plan

    bootstrap, out = shared_broker.bootstrap, f"{topic_name}-out"
    create(bootstrap, topic_name)
    send(bootstrap, topic_name, [BAD[0], {"id": "a", "n": 1}])
    pipeline = pipeline_of(topic_name, bootstrap, copy=to_topic(out))
    with monkeypatch.context() as earlier:
        earlier.setattr(
            plan,
            "plan_dead_letters",
            lambda pipeline, flows, *_: DeadLetterPlan({}, dead_letter_flows(pipeline, flows), {}),
        )
        run_once(pipeline, spark, tmp_path)
    assert values(letters(bootstrap, topic_name)) == BAD[:1]
    send(bootstrap, topic_name, [BAD[1], {"id": "b", "n": 1}])
    assert queries(pipeline, spark, tmp_path) == ["copy", "dlq.rows"]
    run_once(pipeline, spark, tmp_path)
    assert values(letters(bootstrap, topic_name)) == sorted(BAD[:2])
    assert [row["id"] for row in received(bootstrap, out)] == ["a", "b"]


def test_dead_letters_of_a_removed_flow_continue_where_it_ended(
    spark: SparkSession, shared_broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    bootstrap = shared_broker.bootstrap
    create(bootstrap, topic_name)
    send(bootstrap, topic_name, [BAD[0], {"id": "a", "n": 1}])
    first = pipeline_of(topic_name, bootstrap, first=to_topic(f"{topic_name}-1"))
    run_once(first, spark, tmp_path)
    send(bootstrap, topic_name, [BAD[1]])
    second = pipeline_of(topic_name, bootstrap, second=to_topic(f"{topic_name}-2"))
    assert queries(second, spark, tmp_path) == ["second", "dlq.rows"]
    run_once(second, spark, tmp_path)
    assert values(letters(bootstrap, topic_name)) == sorted(BAD[:2])
    send(bootstrap, topic_name, [BAD[2]])
    run_once(second, spark, tmp_path)
    assert values(letters(bootstrap, topic_name)) == sorted(BAD)
    assert len(records(bootstrap, f"{topic_name}-2")) == 1


# ---- decisions ----


def test_owner_of_dead_letters() -> None:
    pipeline = Pipeline("shop")
    pipeline.stream("orders", schema="id string")
    pipeline.table("customers", schema="id string")
    pipeline.sql("lake", "SELECT * FROM orders", to=parquet("lake"))
    pipeline.sql("joined", "SELECT * FROM orders JOIN customers USING (id)", to=to_topic("joined"))
    pipeline.sql("after", "SELECT * FROM joined", to=to_topic("after"))
    flows = list(pipeline.flows.values())

    def plan(
        owners: dict[str, str], *started: str, only: str = ""
    ) -> tuple[dict[str, str], list[str], Any]:
        chosen = [flow for flow in flows if only in flow.name]
        planned = plan_dead_letters(pipeline, chosen, owners, lambda name: name in started)
        owned = {name: owner.flow for name, owner in planned.owned.items()}
        return owned, [query.name for query in planned.queries], planned.left

    assert plan({}) == ({"orders": "joined", "joined": "after"}, ["dlq.customers"], {})
    assert plan({}, only="lake") == ({"orders": "lake"}, [], {})
    # The owner stays the owner, even if it does not run now.
    assert plan({"orders": "lake"}, "lake", only="joined") == (
        {"orders": "lake"},
        ["dlq.customers"],
        {},
    )
    # A separate query continues, whatever owner is stored.
    assert plan({"orders": "lake"}, "dlq.orders")[1] == ["dlq.orders", "dlq.customers"]
    # Flows that have started would skip the records that they have already read.
    assert plan({}, "joined", "after") == ({"orders": "lake"}, ["dlq.customers", "dlq.joined"], {})
    assert plan({}, "joined", "after", "lake")[1] == ["dlq.orders", "dlq.customers", "dlq.joined"]
    # The flow was removed, or no longer reads the stream.
    for gone in ("renamed", "after"):
        owned, own_queries, left = plan({"orders": gone})
        assert (owned, own_queries) == ({"joined": "after"}, ["dlq.orders", "dlq.customers"])
        assert left == {"orders": gone}


def test_owner_of_dead_letters_reads_the_stream_in_its_plan() -> None:
    pipeline = Pipeline("shop")
    pipeline.stream("orders", schema="id string")
    pipeline.stream("again", topic="orders", schema="id string")
    pipeline.stream("joined", topic="out", schema="id string")
    pipeline.sql("copy", "SELECT * FROM orders", to=to_topic("out"))
    pipeline.sql("lake", "SELECT * FROM again", to=parquet("lake"))
    pipeline.sql("named", "SELECT * FROM joined", to=to_topic("named"))
    pipeline.sql("after", "SELECT * FROM copy", to=to_topic("after"))
    flows = list(pipeline.flows.values())

    def plan(ignored: set[tuple[str, str]], owners: dict[str, str], *started: str) -> Any:
        planned = plan_dead_letters(
            pipeline,
            flows,
            owners,
            lambda name: name in started,
            lambda flow, stream: (flow.name, stream.name) not in ignored,
        )
        owned = {name: owner.flow for name, owner in planned.owned.items()}
        return owned, [query.name for query in planned.queries], planned.left

    everything = {"orders": "copy", "joined": "named"}
    assert plan(set(), {}) == (everything, [], {})
    # If a flow ignores a stream, the next flow owns it, or the reader of an identical stream.
    assert plan({("copy", "orders")}, {}) == ({"again": "lake", "joined": "named"}, [], {})
    assert plan({("copy", "orders")}, {"again": "lake"}, "lake", "copy")[0]["again"] == "lake"
    # An ignored declaration does not replace the flow that writes the topic either.
    assert plan({("named", "joined")}, {}) == ({"orders": "copy", "copy": "after"}, [], {})
    # If an owner no longer reads its stream, a query replaces it if other flows read the stream.
    ignored = {("copy", "orders")}
    assert plan(ignored, everything, "copy")[1:] == (["dlq.orders"], {"orders": "copy"})
    assert plan({*ignored, ("lake", "again")}, everything, "copy")[1:] == ([], {"orders": "copy"})
    # New flows would start at a later time than those that have started.
    late = Pipeline("late")
    late.stream("orders", schema="id string", starting="latest")
    late.sql("old", "SELECT * FROM orders", to=to_topic("old"))
    late.sql("new", "SELECT * FROM orders", to=to_topic("new"))
    planned = plan_dead_letters(late, late.flows.values(), {}, lambda name: name == "old")
    assert (planned.owned, [query.name for query in planned.queries]) == ({}, ["dlq.orders"])


def test_end_of_a_removed_flow(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"q"}')
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    assert ended_at(tmp_path, None, None, "orders") is None
    for batch, (orders, others) in enumerate([(5, 1), (9, 2), (12, 3)]):
        lines = [
            "v1",
            '{"batchWatermarkMs":0}',
            json.dumps({"orders": {"0": orders, "1": 7}}),
            json.dumps({"others": {"0": others}}),
            '{"logOffset":3}',
            "not JSON",
        ]
        (tmp_path / "offsets" / str(batch)).write_text("\n".join(lines))
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    (tmp_path / "commits" / ".1.crc").write_text("")
    assert ended_at(tmp_path, None, None, "orders") == {0: 5, 1: 7}
    committed = Progress("sink", "q", 1, "hash", 2)
    assert ended_at(tmp_path, committed, None, "orders") == {0: 9, 1: 7}
    assert ended_at(tmp_path, committed, None, "others") == {0: 2}
    assert ended_at(tmp_path, committed, None, "nothing") is None
    another = Progress("sink", "another", 2, "hash", 2)
    assert ended_at(tmp_path, another, None, "orders") == {0: 5, 1: 7}
    later = Progress("sink.refused", "q", 2, "hash", 3)
    # A flow without topics commits its dead letters in a separate sink.
    assert ended_at(tmp_path, None, later, "orders") == {0: 12, 1: 7}
    # A flow with topics commits them there. Rejected rows of its stores come before.
    assert ended_at(tmp_path, committed, later, "orders") == {0: 9, 1: 7}
    (tmp_path / "commits" / "0").unlink()
    assert ended_at(tmp_path, None, later, "orders") is None


def test_stored_start_is_adapted_to_current_partitions() -> None:
    first, second, third = (TopicPartition("orders", number) for number in range(3))
    stored = Offset({first: 5, second: 7, TopicPartition("orders", 9): 1}, {"orders": "id"})
    starts = json.loads(for_partitions(stored, [first, second, third], {"orders": "id"}))
    assert starts == {"orders": {"0": 5, "1": 7, "2": -2}}
    # The topic was recreated after the start was stored, so all its records are new.
    assert json.loads(for_partitions(stored, [first, second], {"orders": "another"})) == {
        "orders": {"0": -2, "1": -2}
    }
    assert json.loads(for_partitions(stored, [first, second], {})) == {"orders": {"0": 5, "1": 7}}
    assert lowest(stored, [{first: 3, third: 1}, {first: 4, second: 8}]).positions == {
        **stored.positions,
        first: 3,
    }


def test_records_are_fetched_by_offset(shared_broker: LocalBroker, topic_name: str) -> None:
    bootstrap = shared_broker.bootstrap
    create(bootstrap, topic_name, partitions=1)
    send(bootstrap, topic_name, [b"%d" % number for number in range(2_000)])
    place = TopicPartition(topic_name, 0)
    options = {"kafka.bootstrap.servers": bootstrap}
    offsets = [0, 1, 700, 1_500, 1_999]
    fetched = list(records_at(options, {place: offsets}))
    assert [(record.offset, record.value) for record in fetched] == [
        (offset, b"%d" % offset) for offset in offsets
    ]
    assert [(span.start, span.end) for span in spans(place, offsets)] == [
        (0, 2),
        (700, 701),
        (1_500, 2_000),
    ]
    assert list(spans(place, [])) == []
