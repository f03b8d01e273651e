"""The sink under failures: lost drivers, dying tasks, zombies, wrong checkpoints, long batches.

A lost driver is simulated by an exception after which nothing more is sent. Like kill -9 it leaves
the transaction open and the checkpoint unchanged. Tests that kill real processes are in
``tests/stories/pipelines`` and ``tests/chaos``. The mutants at the end break one rule each, and
lose or repeat records, or are detected.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from millstream.client.admin.client import Admin
from millstream.client.protocol import TRANSACTION
from millstream.local.broker import LocalBroker
from millstream.spark.sink import spill
from millstream.spark.sink.stages import WriteJob
from millstream.spark.sink.topic_sink import TopicSink
from millstream.spark.sink.writer import Producer
from millstream.wire.messages.describe_transactions import DescribeTransactionsRequest
from support.spark.sink_world import World, committed, create_topic, messages

pyspark = pytest.importorskip("pyspark")
from pyspark import cloudpickle  # noqa: E402
from pyspark.errors import StreamingQueryException  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402

# Spark's workers cannot import this file, so the jobs from here are pickled with their code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

# An interrupt in the middle of a call into the JVM would break the tests that follow.
pytestmark = pytest.mark.timeout(600)

STEPS = ["_fence", "_read_progress", "_write", "_check", "_record_progress", "_end"]


@pytest.fixture
def world(spark: Any, shared_broker: LocalBroker, topic_name: str, tmp_path: Path) -> World:
    return World(spark, shared_broker, topic_name, tmp_path)


class Vanished(Exception):
    """The driver is gone: it neither aborts nor cleans up."""


class VanishingSink(TopicSink):
    """Vanishes right after the n-th run of a step."""

    step = ""
    times = 1
    gone = False

    def _after(self, step: str, result: Any) -> Any:
        if step == self.step:
            self.times -= 1
            if self.times == 0:
                self.gone = True
                raise Vanished(step)
        return result

    def _fence(self) -> Any:
        return self._after("_fence", super()._fence())

    def _read_progress(self) -> Any:
        return self._after("_read_progress", super()._read_progress())

    def _write(self, *args: Any) -> Any:
        return self._after("_write", super()._write(*args))

    def _check(self, *args: Any) -> Any:
        return self._after("_check", super()._check(*args))

    def _record_progress(self, *args: Any) -> Any:
        return self._after("_record_progress", super()._record_progress(*args))

    def _end(self, *args: Any) -> Any:
        # It does not abort either.
        if self.gone:
            raise Vanished(self.step)
        return self._after("_end", super()._end(*args))


def vanishing(world: World, step: str, times: int = 1, **more: Any) -> TopicSink:
    sink = VanishingSink(world.bootstrap, f"{world.name}-sink", topic=world.target, **more)
    sink.step, sink.times = step, times
    return sink


def run_until_it_vanishes(world: World, df: Any, sink: TopicSink, **more: Any) -> None:
    with pytest.raises(
        (Vanished, StreamingQueryException), match=r"_(fence|read|write|check|record|end)"
    ):
        world.run(df, sink, **more)


def test_driver_lost_after_any_step_leaves_every_record_once(world: World) -> None:
    world.topics(3)
    world.per_batch = 7
    rows = world.rows().select("value")
    expected: list[str] = []
    for number, step in enumerate(STEPS):
        new = [f"{number}-{index}" for index in range(10)]
        world.put(*new)
        expected += new
        run_until_it_vanishes(
            world, rows, vanishing(world, step, times=2 if step in ("_check", "_end") else 1)
        )
    world.run(rows, world.sink())
    assert world.values() == sorted(expected)


def test_state_and_watermark_continue_after_a_replay(world: World) -> None:
    """A windowed count in append mode, whose driver vanishes after every commit, has the normal
    result.
    """
    world.topics(2)
    at = F.timestamp_seconds(F.col("value").cast("string").cast("long"))
    windows = (
        world.rows()
        .select(at.alias("at"))
        .withWatermark("at", "5 seconds")
        .groupBy(F.window("at", "10 seconds"))
        .count()
    )
    rows = windows.select(
        F.concat_ws("=", F.unix_seconds("window.start"), F.col("count")).alias("value"),
    )
    world.per_batch = 4
    seconds = [1, 2, 11, 3, 12, 21, 22, 31, 13, 41, 42, 43, 55, 56, 70, 71]
    world.put(*map(str, seconds))
    for _ in range(3):
        run_until_it_vanishes(world, rows, vanishing(world, "_end"), checkpoint="broken")
    world.run(rows, world.sink(), checkpoint="broken")
    plain = f"{world.name}-plain"
    create_topic(world.bootstrap, plain, 1)
    world.run(rows, TopicSink(world.bootstrap, plain, topic=plain), checkpoint="plain")
    assert world.values() == world.values(plain) != []


# ---- tasks ----


@dataclass(frozen=True)
class DyingJob(WriteJob):
    """The first task of the test dies half-way, with some of its batches written."""

    marker: str = ""

    def run(self, batches: Any) -> Any:
        return super().run(self.dying(batches))

    def dying(self, batches: Any) -> Any:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if self.first():
                # Let the sent batches arrive.
                time.sleep(0.3)
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch.slice(half)

    def first(self) -> bool:
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def test_task_that_dies_half_way_restarts_the_batch(world: World) -> None:
    world.topics(2)
    world.put(*map(str, range(400)))
    sink = world.sink(options={"batchBytes": "200", "driverBytes": "0"})
    sink.write_job = lambda to: DyingJob(to, str(world.directory / "marker"))  # type: ignore[assignment,misc]
    world.run(world.rows().select("value"), sink)
    assert (world.directory / "marker").exists()
    assert Counter(world.values()) == Counter(map(str, range(400)))
    uncommitted = messages(world.bootstrap, world.target, isolation="read_uncommitted")
    assert len(uncommitted) > 400, "the dead task wrote nothing, so the test proves nothing"


@pytest.mark.long
def test_dying_task_after_a_shuffle_loses_and_repeats_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "is_local", lambda session: False)
    world.topics(3)
    world.per_batch = 600
    world.put(*(str(number).rjust(1000) for number in range(1000)))
    sink = world.sink(options={"batchBytes": "20000"})
    sink.write_job = lambda to: DyingJob(to, str(world.directory / "marker"))  # type: ignore[assignment,misc]
    world.run(world.rows().select("value"), sink)
    assert (world.directory / "marker").exists()
    assert Counter(value.strip() for value in world.values()) == Counter(map(str, range(1000)))
    assert len(messages(world.bootstrap, world.target, isolation="read_uncommitted")) > 1000


@dataclass(frozen=True)
class SlowJob(WriteJob):
    """Pauses in the middle of a batch."""

    pause_s: float = 0.0

    def run(self, batches: Any) -> Any:
        return super().run(self.slow(batches))

    def slow(self, batches: Any) -> Any:
        for batch in batches:
            yield batch
            time.sleep(self.pause_s)
            yield batch.slice(0, 0)


@pytest.mark.long
def test_batch_over_transaction_timeout_fails_and_unblocks_readers(
    spark: Any, broker: Callable[..., LocalBroker], topic_name: str, tmp_path: Path
) -> None:
    made = broker({"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200})
    world = World(spark, made, topic_name, tmp_path)
    world.topics(1)
    world.put("a", "b", "c")
    # One record per batch, written by a task, so that the first ones are sent early.
    options = {"batchBytes": "100", "driverBytes": "0"}
    sink = world.sink(transaction_timeout_ms=1000, options=options)
    sink.write_job = lambda to: SlowJob(to, 4.0)  # type: ignore[assignment,misc]
    with pytest.raises(
        StreamingQueryException, match="longer than the transaction timeout of 1000 ms"
    ):
        world.run(world.rows().select("value"), sink)
    assert len(messages(world.bootstrap, world.target, isolation="read_uncommitted")) > 0
    other = TopicSink(world.bootstrap, "other", topic=world.target)
    world.run(world.rows().select(F.lit("other").alias("value")), other, checkpoint="other")
    assert world.values() == ["other"] * 3, (
        "the last stable offset advanced without a restart of the first query"
    )


# ---- mismatched checkpoints ----


def conflict(world: World, sink: TopicSink, checkpoint: str, rows: Any = None) -> str:
    with pytest.raises(Exception, match=r"ProgressConflict|another query") as caught:
        world.run(
            world.rows().select("value") if rows is None else rows, sink, checkpoint=checkpoint
        )
    return str(caught.value)


def test_deleted_checkpoint_is_rejected_until_progress_is_reset(world: World) -> None:
    world.topics(1)
    world.put("a")
    world.run(world.rows().select("value"), world.sink())
    message = conflict(world, world.sink(), "new")
    assert "another query" in message and "reset_progress" in message
    assert world.values() == ["a"]
    world.run(world.rows().select("value"), world.sink(reset_progress=True), checkpoint="new")
    assert world.values() == ["a", "a"], "the reset repeats records, as its hint says"
    world.put("b")
    again = world.run(
        world.rows().select("value"), world.sink(reset_progress=True), checkpoint="new"
    )
    assert world.values() == ["a", "a", "b"], "a reset that stays in the program has no effect"
    assert again.progress is not None and again.progress.commits == 3


def test_restored_checkpoint_is_rejected(world: World) -> None:
    world.topics(1)
    rows = world.rows().select("value")
    world.put("a")
    world.run(rows, world.sink())
    shutil.copytree(world.directory / "checkpoint", world.directory / "copy")
    world.put("b")
    world.run(rows, world.sink())
    world.put("c")
    assert "committed it with other offsets" in conflict(world, world.sink(), "copy", rows)
    world.run(rows, world.sink())
    assert "and later ones up to 2" in conflict(world, world.sink(), "copy", rows)
    assert world.values() == ["a", "b", "c"]
    world.put("d")
    world.run(rows, world.sink())
    assert world.values() == ["a", "b", "c", "d"]


def test_sink_without_progress_rejects_a_later_batch(world: World) -> None:
    world.topics(1)
    rows = world.rows().select("value")
    world.put("a")
    world.run(rows, world.sink(delivery="at-least-once"))
    world.put("b")
    assert "never committed" in conflict(world, world.sink(), "checkpoint", rows)


@pytest.mark.long
def test_partitions_may_be_added_between_attempts(world: World) -> None:
    world.topics(1)
    world.per_batch = 5
    rows = world.rows().select("value")
    world.put(*map(str, range(10)))
    run_until_it_vanishes(world, rows, vanishing(world, "_record_progress"))
    with Admin(world.bootstrap) as admin:
        admin.topics.add_partitions(world.target, 4)
    world.run(rows, world.sink())
    assert Counter(world.values()) == Counter(map(str, range(10)))
    assert len({m.partition() for m in messages(world.bootstrap, world.target)}) > 1


def test_two_sinks_of_one_query_are_replayed_independently(world: World) -> None:
    world.topics(1)
    second = f"{world.name}-second"
    create_topic(world.bootstrap, second, 1)
    rows = world.rows().select("value")
    world.put("a", "b")

    def both(first: TopicSink, other: TopicSink) -> None:
        first.open()
        other.open()

        def write(batch: Any, batch_id: int) -> None:
            first(batch, batch_id)
            other(batch, batch_id)

        writer = rows.writeStream.trigger(availableNow=True).foreachBatch(write)
        query = writer.option("checkpointLocation", str(world.directory / "c")).start()
        query.awaitTermination(100)

    sinks = [TopicSink(world.bootstrap, name, topic=name) for name in (world.target, second)]
    broken = VanishingSink(world.bootstrap, second, topic=second)
    broken.step = "_write"
    with pytest.raises(StreamingQueryException):
        both(sinks[0], broken)
    assert (world.values(), world.values(second)) == (["a", "b"], [])
    both(*sinks)
    assert (world.values(), world.values(second)) == (["a", "b"], ["a", "b"])


# ---- rejected settings ----


def test_a_sink_must_be_opened_first(world: World) -> None:
    world.topics(1)
    world.put("a")
    writer = (
        world.rows()
        .select("value")
        .writeStream.foreachBatch(world.sink())
        .trigger(availableNow=True)
    )
    query = writer.option("checkpointLocation", str(world.directory / "c")).start()
    with pytest.raises(StreamingQueryException, match="call open"):
        query.awaitTermination(100)


def test_speculation_is_rejected(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = type(world.spark.conf)
    real = conf.get
    monkeypatch.setattr(
        conf,
        "get",
        lambda self, name, *more: "true" if "speculation" in name else real(self, name, *more),
    )
    world.topics(1)
    with pytest.raises(Exception, match=r"spark\.speculation"):
        world.run(world.rows().select("value"), world.sink())


def test_asynchronous_progress_is_rejected(world: World) -> None:
    world.topics(1)
    world.put("a")
    writer = world.rows().select("value").writeStream.option("asyncProgressTrackingEnabled", "true")
    with pytest.raises(Exception, match=r"(?i)async"):
        query = world.sink().start(writer.option("checkpointLocation", str(world.directory / "c")))
        query.awaitTermination(100)
    assert world.values() == []


# ---- mutants: each breaks one rule, and is detected ----


@dataclass(frozen=True)
class InitialisingJob(WriteJob):
    """A mutant whose tasks open the transactional id themselves, one after the other."""

    directory: str = ""

    def run(self, batches: Any) -> Any:
        from dataclasses import replace

        from pyspark import TaskContext

        from millstream.client.protocol import Protocol
        from millstream.spark.sink.transaction import TransactionOwner

        number = TaskContext.get().partitionId()
        while number and not Path(self.directory, str(number - 1)).exists():
            time.sleep(0.02)
        protocol = Protocol(self.destination.connection)
        name = self.destination.transactional_id or ""
        owner = TransactionOwner(protocol, name, timeout_ms=60_000, patience_s=30)
        mine = WriteJob(replace(self.destination, producer=owner.fence()))
        written = list(mine.run(batches))
        Path(self.directory, str(number)).touch()
        yield from written


class TrustingSink(TopicSink):
    """A mutant whose driver adopts the newest epoch, as it must if tasks may open the id."""

    def _record_progress(self, *args: Any) -> Any:
        owner, protocol = self._owner, self._protocol
        assert owner is not None and protocol is not None
        request = DescribeTransactionsRequest(transactional_ids=[self.sink_id])
        answer = protocol.ask(request, node=protocol.coordinator(self.sink_id, TRANSACTION).node)
        (state,) = answer.transaction_states
        owner.producer = Producer(state.producer_id, state.producer_epoch)
        return super()._record_progress(*args)


@pytest.mark.long
def test_mutant_tasks_that_open_the_transactional_id_lose_records(world: World) -> None:
    world.topics(2)
    world.put(*map(str, range(100)))
    turns = [world.directory / "honest", world.directory / "trusting"]
    for directory in turns:
        directory.mkdir()
    honest = world.sink(options={"driverBytes": "0"})
    honest.write_job = lambda to: InitialisingJob(to, str(turns[0]))  # type: ignore[assignment,misc]
    with pytest.raises(StreamingQueryException, match="fenced this one"):
        world.run(world.rows().select("value"), honest)
    assert world.values() == [], "the honest driver notices"
    trusting = TrustingSink(
        world.bootstrap, f"{world.name}-sink", topic=world.target, options={"driverBytes": "0"}
    )
    trusting.write_job = lambda to: InitialisingJob(to, str(turns[1]))  # type: ignore[assignment,misc]
    world.run(world.rows().select("value"), trusting)
    lost = Counter(map(str, range(100))) - Counter(world.values())
    assert sum(lost.values()) > 0, "each task aborted the records of the previous one"


def test_reader_of_these_tests_hides_aborted_records(world: World) -> None:
    """The other tests rely on this reader."""
    world.topics(1)
    world.put("a")
    run_until_it_vanishes(
        world, world.rows().select("value"), vanishing(world, "_write", transaction_timeout_ms=5000)
    )
    assert len(messages(world.bootstrap, world.target, isolation="read_uncommitted")) == 1
    assert committed(world.bootstrap, world.target) == []
