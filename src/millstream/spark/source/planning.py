"""What the batch and the stream reader share on the driver: where to begin and end, and the tasks of a set of ranges."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from millstream.client.errors import ClientError
from millstream.core.types import TopicPartition
from millstream.spark.options import OptionError, Options
from millstream.spark.source.arrow_json import PROVEN, UNPROVEN, Plan, plan_for
from millstream.spark.source.cluster_view import RETRY_S, ClusterView
from millstream.spark.source.data_loss import DataLoss, report_skipped
from millstream.spark.source.fetcher import CONFIRM_S, Task
from millstream.spark.source.offsets import (
    EARLIEST,
    LATEST,
    LogState,
    Loss,
    Offset,
    Range,
    find_losses,
    split,
)

SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
UNCERTAIN = frozenset({"gone", "shrunk"})


@dataclass
class TaskPartition(InputPartition):
    """One Spark task; None of a batch with nothing to read."""

    task: Task | None


def check_subscription(options: Options) -> None:
    """Exactly one of the three ways to say what is to be read."""
    given = [name for name in SUBSCRIPTIONS if options.given(name)]
    if not given:
        raise OptionError(
            "what is to be read?", hint="give one of the options 'subscribe', 'subscribePattern' or 'assign'"
        )
    if len(given) > 1:
        raise OptionError(f"{' and '.join(map(repr, given))} exclude each other", hint="give one of them")


def starting_positions(view: ClusterView, options: Options, default: str) -> dict[TopicPartition, int]:
    """Where a new query begins, by the options of which Spark's connector lets the first of these win."""
    strategy = options["startingOffsetsByTimestampStrategy"]
    if options.given("startingTimestamp"):
        times = dict.fromkeys(view.places, options["startingTimestamp"])
        return _by_time(view, times, strategy, "startingTimestamp")
    if options.given("startingOffsetsByTimestamp"):
        times = _complete(view, options["startingOffsetsByTimestamp"], "startingOffsetsByTimestamp")
        return _by_time(view, times, strategy, "startingOffsetsByTimestamp")
    return _by_mark(view, options["startingOffsets"] or default, "startingOffsets")


def ending_positions(view: ClusterView, options: Options) -> dict[TopicPartition, int]:
    """Where a batch ends; a time that no record has reached means latest."""
    if options.given("endingTimestamp"):
        return _by_time(
            view, dict.fromkeys(view.places, options["endingTimestamp"]), "latest", "endingTimestamp"
        )
    if options.given("endingOffsetsByTimestamp"):
        times = _complete(view, options["endingOffsetsByTimestamp"], "endingOffsetsByTimestamp")
        return _by_time(view, times, "latest", "endingOffsetsByTimestamp")
    return _by_mark(view, options["endingOffsets"], "endingOffsets")


def _by_mark(view: ClusterView, wanted: Any, name: str) -> dict[TopicPartition, int]:
    if isinstance(wanted, str):
        return view.offsets(dict.fromkeys(view.places, EARLIEST if wanted == "earliest" else LATEST))
    positions = _complete(view, wanted, name)
    marks = {partition: mark for partition, mark in positions.items() if mark < 0}
    for partition, mark in marks.items():
        if mark not in (EARLIEST, LATEST):
            raise OptionError(
                f"option {name!r} has {mark} for {partition}", hint="-2 is earliest, -1 is latest"
            )
    return positions | view.offsets(marks)


def _by_time(
    view: ClusterView, times: Mapping[TopicPartition, int], strategy: str, name: str
) -> dict[TopicPartition, int]:
    found = view.offsets(times)
    late = [partition for partition, offset in found.items() if offset < 0]
    if late and strategy == "error":
        raise OptionError(
            f"no record of {late[0]} is as late as {times[late[0]]}, which the option {name!r} gives",
            hint="give an earlier time, or begin at latest with startingOffsetsByTimestampStrategy=latest",
        )
    return found | view.offsets(dict.fromkeys(late, LATEST))


def _complete(
    view: ClusterView, wanted: Mapping[str, Mapping[int, int]], name: str
) -> dict[TopicPartition, int]:
    """Every partition and no other, as in Spark's connector: one forgotten would otherwise be read from anywhere."""
    given = {
        TopicPartition(topic, number): value for topic, one in wanted.items() for number, value in one.items()
    }
    missing = sorted(set(view.places) - set(given))
    surplus = sorted(set(given) - set(view.places))
    if missing:
        raise OptionError(
            f"option {name!r} says nothing about {missing[0]}", hint="name every partition that is read"
        )
    if surplus:
        raise OptionError(
            f"option {name!r} names {surplus[0]}, which is not read", hint="leave it out, or subscribe to it"
        )
    return given


def handle_losses(losses: Sequence[Loss], options: Options, told: set[Loss] | None = None) -> None:
    """Raise, or say what is skipped; what was ``told`` before is not said again."""
    if losses and options["failOnDataLoss"]:
        raise DataLoss(losses)
    news = [loss for loss in losses if told is None or loss not in told]
    report_skipped(news)
    if told is not None:
        told.update(news)


def confirmed_losses(
    view: ClusterView, offset: Offset, logs: Mapping[TopicPartition, LogState]
) -> tuple[list[Loss], Mapping[TopicPartition, LogState]]:
    """What is lost, and the logs as last seen. A missing topic or a short log is looked at again for a while first, since a
    broker that is just starting, or a leader that is new, may not know everything yet."""
    give_up_s = time.monotonic() + CONFIRM_S
    while True:
        losses = find_losses(offset, logs, view.ids)
        if not any(loss.kind in UNCERTAIN for loss in losses) or time.monotonic() > give_up_s:
            return losses, logs
        time.sleep(RETRY_S)
        logs = look(view, offset)


def look(view: ClusterView, offset: Offset | None = None) -> dict[TopicPartition, LogState]:
    """The partitions there are and their logs; a subscription whose topic is gone has none."""
    try:
        view.refresh()
    except ClientError as error:
        if offset is None or error.code is None or not offset.positions:
            raise
        view.forget_missing()
    return view.logs()


class Columns(NamedTuple):
    """What is read of a record."""

    named: tuple[tuple[str, bool], ...]
    """Each with whether it may be null."""
    json: Plan | None = None
    """How values are parsed on the way, if they are."""


def all_columns() -> StructType:
    """What a record has, as Spark's Kafka connector calls it."""
    header = StructType().add("key", StringType()).add("value", BinaryType())
    return (
        StructType()
        .add("key", BinaryType())
        .add("value", BinaryType())
        .add("topic", StringType())
        .add("partition", IntegerType())
        .add("offset", LongType())
        .add("timestamp", TimestampType())
        .add("timestampType", IntegerType())
        .add("headers", ArrayType(header))
    )


def check_columns(schema: StructType) -> Columns:
    """The columns to read: all, or those of a schema that the user gave, or of a pipeline that has values parsed on the way."""
    known = {field.name: field.dataType.simpleString() for field in all_columns()}
    json = None
    for field in schema:
        if field.name in (PROVEN, UNPROVEN) and isinstance(field.dataType, StructType):
            json = plan_for(field.dataType)
        elif known.get(field.name) != field.dataType.simpleString():
            raise OptionError(
                f"there is no column {field.name} {field.dataType.simpleString()}",
                hint="a schema may name some of: "
                + ", ".join(f"{name} {kind}" for name, kind in known.items()),
            )
    return Columns(tuple((field.name, field.nullable) for field in schema), json)


def make_tasks(
    view: ClusterView, options: Options, ranges: Sequence[Range], columns: Columns
) -> list[TaskPartition]:
    pieces = split(ranges, options["minPartitions"], options["maxRecordsPerPartition"])
    return [TaskPartition(make_task(view, options, piece, columns)) for piece in pieces]


def make_task(view: ClusterView, options: Options, piece: Range, columns: Columns) -> Task:
    place = view.places[piece.partition]
    return Task(
        span=piece,
        leader=place.leader,
        topic_id=place.topic_id,
        connection=view.connection,
        isolation=view.isolation,
        columns=columns.named,
        json=columns.json,
        fail_on_data_loss=options["failOnDataLoss"],
        fetch_bytes=options["fetchMaxBytes"],
        retry_timeout_ms=options["retryTimeoutMs"],
    )
