"""Positions, splits and tasks, for both the batch and the stream reader. Runs on the driver."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
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
)

SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
UNCERTAIN = frozenset({"gone", "shrunk"})


@dataclass
class TaskPartition(InputPartition):
    """The partition of one Spark task; without a task if a batch has nothing to read."""

    task: Task | None


def check_subscription(options: Options) -> None:
    """Check that exactly one of the three subscription options is set."""
    names = [name for name in SUBSCRIPTIONS if options.is_set(name)]
    if not names:
        raise OptionError(
            "no topics to read",
            hint="set one of the options 'subscribe', 'subscribePattern' or 'assign'",
        )
    if len(names) > 1:
        raise OptionError(
            f"{' and '.join(map(repr, names))} exclude each other", hint="set one of them"
        )


def starting_positions(
    view: ClusterView, options: Options, default: str
) -> dict[TopicPartition, int]:
    """Return where a new query begins.

    Options take precedence in the order of Spark's connector.
    """
    strategy = options["startingOffsetsByTimestampStrategy"]
    if options.is_set("startingTimestamp"):
        times = dict.fromkeys(view.partitions, options["startingTimestamp"])
        return _by_time(view, times, strategy, "startingTimestamp")
    if options.is_set("startingOffsetsByTimestamp"):
        times = _complete(view, options["startingOffsetsByTimestamp"], "startingOffsetsByTimestamp")
        return _by_time(view, times, strategy, "startingOffsetsByTimestamp")
    return _by_mark(view, options["startingOffsets"] or default, "startingOffsets")


def ending_positions(view: ClusterView, options: Options) -> dict[TopicPartition, int]:
    """Return where a batch ends; a time after the last record means latest."""
    if options.is_set("endingTimestamp"):
        return _by_time(
            view,
            dict.fromkeys(view.partitions, options["endingTimestamp"]),
            "latest",
            "endingTimestamp",
        )
    if options.is_set("endingOffsetsByTimestamp"):
        times = _complete(view, options["endingOffsetsByTimestamp"], "endingOffsetsByTimestamp")
        return _by_time(view, times, "latest", "endingOffsetsByTimestamp")
    return _by_mark(view, options["endingOffsets"], "endingOffsets")


def _by_mark(view: ClusterView, position: Any, name: str) -> dict[TopicPartition, int]:
    if isinstance(position, str):
        return view.offsets(
            dict.fromkeys(view.partitions, EARLIEST if position == "earliest" else LATEST)
        )
    positions = _complete(view, position, name)
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
    offsets = view.offsets(times)
    late = [partition for partition, offset in offsets.items() if offset < 0]
    if late and strategy == "error":
        raise OptionError(
            f"no record of {late[0]} is as late as {times[late[0]]} (option {name!r})",
            hint="set an earlier time, or begin at latest with startingOffsetsByTimestampStrategy=latest",
        )
    return offsets | view.offsets(dict.fromkeys(late, LATEST))


def _complete(
    view: ClusterView, by_topic: Mapping[str, Mapping[int, int]], name: str
) -> dict[TopicPartition, int]:
    """Return the position of every partition.

    The option must name all partitions and no others, as in Spark's connector: a forgotten one
    would start at an arbitrary position.
    """
    positions = {
        TopicPartition(topic, number): position
        for topic, numbers in by_topic.items()
        for number, position in numbers.items()
    }
    missing = sorted(set(view.partitions) - set(positions))
    surplus = sorted(set(positions) - set(view.partitions))
    if missing:
        raise OptionError(
            f"option {name!r} does not name {missing[0]}", hint="name every partition that is read"
        )
    if surplus:
        raise OptionError(
            f"option {name!r} names {surplus[0]}, which is not read",
            hint="remove it, or subscribe to it",
        )
    return positions


def handle_losses(
    losses: Sequence[Loss], options: Options, reported: set[Loss] | None = None
) -> None:
    """Raise DataLoss, or report the skipped offsets.

    Losses in ``reported`` are not reported again.
    """
    if losses and options["failOnDataLoss"]:
        raise DataLoss(losses)
    new = [loss for loss in losses if reported is None or loss not in reported]
    report_skipped(new)
    if reported is not None:
        reported.update(new)


def confirmed_losses(
    view: ClusterView, offset: Offset, logs: Mapping[TopicPartition, LogState]
) -> tuple[list[Loss], Mapping[TopicPartition, LogState]]:
    """Return the losses, and the logs as last seen.

    A missing topic or a short log is looked up again for a while first. A broker that is starting,
    or a new leader, may not know everything yet.
    """
    deadline_s = time.monotonic() + CONFIRM_S
    while True:
        losses = find_losses(offset, logs, view.ids)
        if not any(loss.kind in UNCERTAIN for loss in losses) or time.monotonic() > deadline_s:
            return losses, logs
        time.sleep(RETRY_S)
        logs = refresh_logs(view, offset)


def refresh_logs(view: ClusterView, offset: Offset | None = None) -> dict[TopicPartition, LogState]:
    """Return the logs of the existing partitions; a subscription whose topic is gone has none."""
    try:
        view.refresh()
    except ClientError as error:
        if offset is None or error.code is None or not offset.positions:
            raise
        view.drop_missing()
    return view.logs()


class Columns(NamedTuple):
    """The columns to read of a record."""

    named: tuple[tuple[str, bool], ...]
    """Each with whether it may be null."""
    json: Plan | None = None
    """How to parse values while reading, if at all."""


def all_columns() -> StructType:
    """Return all columns of a record, as Spark's Kafka connector names them."""
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
    """Return the columns to read.

    The schema has all columns, those that a user named, or those of a pipeline that has values
    parsed.
    """
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


def split(
    ranges: Sequence[Range], min_partitions: int | None, max_records: int | None = None
) -> list[Range]:
    """Split large ranges into pieces of similar size.

    There are at least ``min_partitions`` pieces, if sizes allow.
    """
    pieces = [
        piece
        for span in ranges
        if span.size > 0
        for piece in _pieces(span, -(-span.size // (max_records or span.size)))
    ]
    total = sum(span.size for span in pieces)
    if not min_partitions or len(pieces) >= min_partitions or not total:
        return pieces
    counts = _counts(pieces, min(min_partitions, total), total)
    return [
        piece for span, count in zip(pieces, counts, strict=True) for piece in _pieces(span, count)
    ]


def _counts(ranges: Sequence[Range], min_pieces: int, total: int) -> list[int]:
    """Return the number of pieces of each range: by size, and at least ``min_pieces`` in all."""
    counts = [min(span.size, max(1, span.size * min_pieces // total)) for span in ranges]
    while sum(counts) < min_pieces:
        widest = max(range(len(counts)), key=lambda at: ranges[at].size / counts[at])
        counts[widest] += 1
    return counts


def _pieces(span: Range, count: int) -> list[Range]:
    edges = [span.start + span.size * step // count for step in range(count + 1)]
    return [Range(span.partition, low, high) for low, high in pairwise(edges)]


def make_task(view: ClusterView, options: Options, piece: Range, columns: Columns) -> Task:
    info = view.partitions[piece.partition]
    return Task(
        span=piece,
        leader=info.leader,
        topic_id=info.topic_id,
        connection=view.connection,
        isolation=view.isolation,
        columns=columns.named,
        json=columns.json,
        fail_on_data_loss=options["failOnDataLoss"],
        fetch_bytes=options["fetchMaxBytes"],
        retry_timeout_ms=options["retryTimeoutMs"],
    )
