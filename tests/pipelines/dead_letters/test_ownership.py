"""Every bad record gives one dead letter: owners read their stream and start first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.local.broker import LocalBroker
from millstream.pipelines import Pipeline
from millstream.pipelines import topic as to_topic
from millstream.pipelines.dead_letters.ownership import DeadLetterPlan, plan_dead_letters
from millstream.pipelines.frames.builder import Frames
from millstream.pipelines.run import plan
from millstream.pipelines.run.queries import Queries
from support.pipelines.letters import BAD, SCHEMA, letters, queries, values
from support.spark.pipeline_world import Background, create, received, run_once, send, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)
IGNORING = {
    "unused-cte": "WITH unused AS (SELECT * FROM rows) SELECT * FROM other",
    "pruned": "SELECT * FROM other UNION ALL SELECT * FROM rows WHERE 1 = 0",
}


def two_streams(name: str, bootstrap: str, ignoring: str = "argument") -> Pipeline:
    """``first`` names the streams ``rows`` and ``other``, but uses only ``other``.

    ``second`` reads ``rows``.
    """
    pipeline = Pipeline(name, bootstrap=bootstrap)
    pipeline.stream("rows", topic=name, schema=SCHEMA)
    pipeline.stream("other", topic=f"{name}-other", schema=SCHEMA)
    if ignoring == "argument":

        @pipeline.flow(to=to_topic(f"{name}-1"))
        def first(rows: DataFrame, other: DataFrame) -> DataFrame:
            return other
    else:
        pipeline.sql("first", IGNORING[ignoring], to=to_topic(f"{name}-1"))
    pipeline.sql("second", "SELECT * FROM rows", to=to_topic(f"{name}-2"))
    return pipeline


def owners(checkpoint: Path, pipeline: str) -> dict[str, str]:
    return json.loads((checkpoint / pipeline / ".letters.json").read_text())


@pytest.mark.parametrize("ignoring", ["argument", *IGNORING])
def test_stream_ignored_by_the_first_flow_has_dead_letters(
    spark: SparkSession, shared_broker: LocalBroker, topic_name: str, tmp_path: Path, ignoring: str
) -> None:
    bootstrap = shared_broker.bootstrap
    create(bootstrap, topic_name, f"{topic_name}-other")
    pipeline = two_streams(topic_name, bootstrap, ignoring)
    for number, bad in enumerate(BAD):
        send(bootstrap, topic_name, [bad, {"id": "a", "n": number}])
        send(bootstrap, f"{topic_name}-other", [b"of other", {"id": "b", "n": number}])
        # Later runs decide about owners again, in the same way for every kind of plan.
        if ignoring == "argument" or bad == BAD[-1]:
            run_once(pipeline, spark, tmp_path)
    assert [len(received(bootstrap, f"{topic_name}-{flow}")) for flow in (1, 2)] == [3, 3]
    assert values(letters(bootstrap, topic_name)) == sorted(BAD)
    assert values(letters(bootstrap, f"{topic_name}-other")) == [b"of other"] * 3
    assert queries(pipeline, spark, tmp_path) == ["first", "second"]
    if ignoring == "argument":
        assert owners(tmp_path, topic_name) == {"rows": "second", "other": "first"}


def test_unused_stream_has_no_owner(
    spark: SparkSession, shared_broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    bootstrap = shared_broker.bootstrap
    create(bootstrap, topic_name, f"{topic_name}-other")
    send(bootstrap, topic_name, BAD)
    pipeline = two_streams(topic_name, bootstrap)
    del pipeline.flows["second"]
    for _ in range(2):
        run_once(pipeline, spark, tmp_path)
    assert owners(tmp_path, topic_name) == {"other": "first"}
    # As soon as a flow reads the stream, its bad records become dead letters.
    run_once(two_streams(topic_name, bootstrap), spark, tmp_path)
    assert values(letters(bootstrap, topic_name)) == sorted(BAD)


def test_dead_letters_missed_by_an_earlier_version_are_written(
    spark: SparkSession,
    shared_broker: LocalBroker,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bootstrap = shared_broker.bootstrap
    create(bootstrap, topic_name, f"{topic_name}-other")
    pipeline = two_streams(topic_name, bootstrap)

    def by_declaration(*args: Any) -> DeadLetterPlan:
        return plan_dead_letters(*args[:4])

    with monkeypatch.context() as earlier:
        earlier.setattr(plan, "plan_dead_letters", by_declaration)
        send(bootstrap, topic_name, [BAD[0], {"id": "a", "n": 1}])
        send(bootstrap, f"{topic_name}-other", [b"of other"])
        run_once(pipeline, spark, tmp_path)
    assert owners(tmp_path, topic_name)["rows"] == "first"
    send(bootstrap, topic_name, BAD[1:])
    run_once(pipeline, spark, tmp_path)
    assert values(letters(bootstrap, topic_name)) == sorted(BAD)
    assert values(letters(bootstrap, f"{topic_name}-other")) == [b"of other"]
    assert len(received(bootstrap, f"{topic_name}-2")) == 1


def test_dead_letters_continue_when_the_owner_stops_reading(
    spark: SparkSession, shared_broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    bootstrap = shared_broker.bootstrap
    create(bootstrap, topic_name)

    def pipeline(used: str, *, second: bool = True) -> Pipeline:
        declared = Pipeline(topic_name, bootstrap=bootstrap)
        declared.stream("rows", topic=topic_name, schema=SCHEMA)
        declared.stream("texts", topic=topic_name, value="string", dead_letters=False)

        @declared.flow(to=to_topic(f"{topic_name}-1"))
        def first(rows: DataFrame, texts: DataFrame) -> DataFrame:
            return {"rows": rows, "texts": texts}[used].selectExpr("1 AS one")

        if second:
            declared.sql("second", "SELECT * FROM rows", to=to_topic(f"{topic_name}-2"))
        return declared

    # ``first`` owns the dead letters, no flow reads the stream, ``second`` reads it, both read it.
    steps = [pipeline("rows"), pipeline("texts", second=False), pipeline("texts"), pipeline("rows")]
    for number, step in enumerate(steps):
        send(bootstrap, topic_name, [b"bad %d" % number, {"id": "a", "n": number}])
        run_once(step, spark, tmp_path)
        if number == 0:
            assert owners(tmp_path, topic_name) == {"rows": "first"}
    assert values(letters(bootstrap, topic_name)) == [b"bad %d" % number for number in range(4)]
    assert len(received(bootstrap, f"{topic_name}-2")) == 4


# ---- streams whose start depends on the time ----


def late_pipeline(name: str, bootstrap: str, *more: str, **stream: Any) -> Pipeline:
    """Flows that read a stream from now on, each into a topic. ``first`` owns the dead letters."""
    pipeline = Pipeline(name, bootstrap=bootstrap)
    pipeline.stream("rows", topic=name, schema=SCHEMA, **{"starting": "latest", **stream})
    for flow in ("first", "second", *more):
        pipeline.sql(flow, "SELECT * FROM rows", to=to_topic(f"{name}-{flow}"))
    return pipeline


def ids(bootstrap: str, topic: str) -> list[str]:
    return sorted(row["id"] for row in received(bootstrap, topic))


def had_batch(checkpoint: Path, pipeline: str, flow: str) -> bool:
    return (checkpoint / pipeline / flow / "commits" / "0").exists()


@pytest.mark.parametrize("how", ["latest", "time"])
def test_owner_that_starts_late_misses_no_bad_record(
    spark: SparkSession,
    shared_broker: LocalBroker,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    bootstrap = shared_broker.bootstrap
    create(bootstrap, topic_name)
    send(bootstrap, topic_name, [b"bad, before anything started"])
    options: dict[str, Any] = {}
    if how == "time":
        options = {
            "source": {"startingTimestamp": 1 << 45, "startingOffsetsByTimestampStrategy": "latest"}
        }
    pipeline = late_pipeline(topic_name, bootstrap, **options)
    tries: list[str] = []
    start_query = Queries._query

    def slow_owner(queries: Queries, frames: Frames, flow: Any, writer: Any) -> Any:
        if flow.name == "first":
            tries.append(flow.name)
            if len(tries) == 1:
                raise RuntimeError("not yet")
            if len(tries) == 2:
                wait_until(
                    lambda: had_batch(tmp_path, topic_name, "second"), "second's first batch"
                )
                send(bootstrap, topic_name, [BAD[0], {"id": "a", "n": 1}])
                wait_until(lambda: ids(bootstrap, f"{topic_name}-second") == ["a"], "second's row")
        return start_query(queries, frames, flow, writer)

    monkeypatch.setattr(Queries, "_query", slow_owner)
    with Background(pipeline, spark, tmp_path):
        wait_until(lambda: had_batch(tmp_path, topic_name, "first"), "first's first batch")
        send(bootstrap, topic_name, [BAD[1], {"id": "b", "n": 1}])
        for flow in ("first", "second"):
            wait_until(
                lambda flow=flow: "b" in ids(bootstrap, f"{topic_name}-{flow}"), f"{flow}'s row"
            )
    run_once(pipeline, spark, tmp_path)
    assert values(letters(bootstrap, topic_name)) == sorted(BAD[:2])
    assert len(tries) == 3
    for flow in ("first", "second"):
        assert ids(bootstrap, f"{topic_name}-{flow}") == ["a", "b"]


def test_owner_without_a_batch_starts_where_the_first_run_started(
    spark: SparkSession,
    shared_broker: LocalBroker,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bootstrap = shared_broker.bootstrap
    create(bootstrap, topic_name)
    pipeline = late_pipeline(topic_name, bootstrap)
    start_query = Queries._query

    def without_owner(queries: Queries, frames: Frames, flow: Any, writer: Any) -> Any:
        if flow.name == "first":
            raise RuntimeError("not in this run")
        return start_query(queries, frames, flow, writer)

    with monkeypatch.context() as first_run:
        first_run.setattr(Queries, "_query", without_owner)
        with Background(pipeline, spark, tmp_path):
            wait_until(lambda: had_batch(tmp_path, topic_name, "second"), "second's first batch")
            send(bootstrap, topic_name, [BAD[0], {"id": "a", "n": 1}])
            wait_until(lambda: ids(bootstrap, f"{topic_name}-second") == ["a"], "second's row")
    with_more = late_pipeline(topic_name, bootstrap, "added")
    for bad in BAD[1:]:
        run_once(with_more, spark, tmp_path)
        send(bootstrap, topic_name, [bad, {"id": "b", "n": 1}])
    run_once(with_more, spark, tmp_path)
    assert values(letters(bootstrap, topic_name)) == sorted(BAD)
    assert ids(bootstrap, f"{topic_name}-first") == ["a", "b", "b"]
    # A new flow starts now, and not where the others started.
    assert ids(bootstrap, f"{topic_name}-added") == ["b", "b"]


def test_dead_letters_enabled_later_start_at_the_flows_positions(
    spark: SparkSession, shared_broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    bootstrap = shared_broker.bootstrap
    create(bootstrap, topic_name)
    silent = late_pipeline(topic_name, bootstrap, dead_letters=False)
    run_once(silent, spark, tmp_path)
    send(bootstrap, topic_name, [BAD[0], {"id": "a", "n": 1}])
    run_once(silent, spark, tmp_path)
    send(bootstrap, topic_name, [BAD[1], {"id": "b", "n": 1}])
    spoken = late_pipeline(topic_name, bootstrap, "added")
    run_once(spoken, spark, tmp_path)
    assert values(letters(bootstrap, topic_name)) == BAD[1:2]
    send(bootstrap, topic_name, [BAD[2]])
    run_once(spoken, spark, tmp_path)
    assert values(letters(bootstrap, topic_name)) == sorted(BAD[1:])


def test_dead_letters_of_a_removed_owner_continue_where_it_ended(
    spark: SparkSession, shared_broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    bootstrap = shared_broker.bootstrap
    create(bootstrap, topic_name)
    pipeline = late_pipeline(topic_name, bootstrap)
    run_once(pipeline, spark, tmp_path)
    for bad in BAD[:2]:
        send(bootstrap, topic_name, [bad])
        run_once(pipeline, spark, tmp_path, only=["second"])
        run_once(pipeline, spark, tmp_path)
    send(bootstrap, topic_name, BAD[2:])
    run_once(pipeline, spark, tmp_path, only=["second"])
    del pipeline.flows["first"]
    for _ in range(2):
        run_once(pipeline, spark, tmp_path)
    assert queries(pipeline, spark, tmp_path) == ["second", "dlq.rows"]
    assert values(letters(bootstrap, topic_name)) == sorted(BAD)
