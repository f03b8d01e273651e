"""Start offsets of streams that depend on the time (``starting="latest"``, a timestamp).

The flow that writes the dead letters of a stream must not start behind another flow: bad records in
between would get no dead letter. So the offsets are resolved before the first query starts. All
flows that read the stream for the first time get the same offsets, in any order and however long a
start takes.

The offsets are stored in the checkpoint directory of each flow (``.starts.json``). A flow that is
killed before its first commit starts there again. Deleting the checkpoint deletes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from millstream.core.types import TopicPartition
from millstream.pipelines.dead_letters.handover import ended_at
from millstream.pipelines.dead_letters.ownership import (
    DeadLetterPlan,
    dead_letter_writer,
    identical_streams,
    starts_by_time,
)
from millstream.pipelines.declare import Flow, Pipeline, Stream
from millstream.pipelines.graph import leaves
from millstream.pipelines.run.layout import Layout
from millstream.spark.options import STREAM, parse
from millstream.spark.sink.progress import Progress
from millstream.spark.source.cluster_view import ClusterView
from millstream.spark.source.offsets import EARLIEST, Offset
from millstream.spark.source.planning import starting_positions

if TYPE_CHECKING:
    from millstream.pipelines.frames.builder import Frames

HANDED_OVER = ""
"""Stored instead of a declaration: the offsets are valid whatever the stream declares."""


class StoredStart(NamedTuple):
    """The position at which a flow starts to read a stream."""

    declared: str
    """The start that the stream declared when this was resolved.

    It is invalid for any other one.
    """
    offset: Offset


def declared_start(stream: Stream) -> str:
    return json.dumps([stream.starting, sorted(_start_options(stream).items())])


def without_start(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a source without those about its start."""
    return {name: value for name, value in options.items() if not _is_start_option(name)}


def _start_options(stream: Stream) -> dict[str, str]:
    return {
        name: str(value) for name, value in stream.source_options.items() if _is_start_option(name)
    }


def _is_start_option(name: str) -> bool:
    return name.lower().startswith("starting")


def for_partitions(
    stored: Offset, partitions: Iterable[TopicPartition], ids: Mapping[str, str]
) -> str:
    """Return stored offsets for the current partitions, as the option ``startingOffsets``.

    Partitions and topics that were created later are read from their beginning.
    """
    numbers: dict[str, dict[str, int]] = {}
    for partition in sorted(partitions):
        known, now = stored.ids.get(partition.topic), ids.get(partition.topic)
        replaced = bool(known and now and known != now)
        at = EARLIEST if replaced else stored.positions.get(partition, EARLIEST)
        numbers.setdefault(partition.topic, {})[str(partition.partition)] = at
    return json.dumps(numbers)


def lowest(offset: Offset, others: Iterable[Mapping[TopicPartition, int]]) -> Offset:
    """Return an offset, lowered in each partition to the minimum of the others."""
    positions = dict(offset.positions)
    for other in others:
        positions |= {
            partition: min(at, other.get(partition, at)) for partition, at in positions.items()
        }
    return Offset(positions, offset.ids)


class Reader(NamedTuple):
    """A flow, or a query for dead letters, that reads a stream."""

    flow: str
    stream: Stream


class StartOffsets:
    """Resolves, stores and looks up the start offsets of the flows of one pipeline."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def resolve(
        self, frames: Frames, plan: DeadLetterPlan, new: Sequence[Flow], flows: Sequence[Flow]
    ) -> None:
        """Store the starts of ``new`` flows and queries that have not read their streams yet.

        Identical streams are resolved together, because one flow writes the dead letters of all of
        them. ``flows`` are all flows of the run.
        """
        pipeline = frames.pipeline
        late = {
            reader.stream.name: reader.stream
            for flow in new
            for reader in readers_of(pipeline, flow)
            if starts_by_time(reader.stream)
        }
        while late:
            stream = next(iter(late.values()))
            names = identical_streams(pipeline, stream)
            late = {name: stream for name, stream in late.items() if name not in names}
            writer = dead_letter_writer(plan, names)
            beginning = [
                reader
                for flow in new
                for reader in readers_of(pipeline, flow)
                if reader.stream.name in names
            ]
            others = [
                reader
                for flow in flows
                for reader in readers_of(pipeline, flow)
                if reader.stream.name in names
            ]
            source = frames.topics.declared_options(stream, "")
            self._resolve_identical(
                source, beginning, None if writer is None else Reader(*writer), others
            )

    def _resolve_identical(
        self,
        source: Mapping[str, str],
        new: Sequence[Reader],
        writer: Reader | None,
        others: Sequence[Reader],
    ) -> None:
        """Resolve one start for all readers.

        ``writer`` starts at the lowest position of the others, if that is lower.
        """
        starting = {
            reader.flow + reader.stream.name: reader
            for reader in (*new, *([] if writer is None else [writer]))
        }
        unknown = [
            reader
            for reader in starting.values()
            if not self._layout.has_batch(reader.flow)
            and self.stored(reader.flow, reader.stream) is None
        ]
        if not unknown:
            return
        resolved = _resolve_now(source)
        for reader in unknown:
            offset = resolved
            if reader == writer:
                offset = lowest(
                    resolved,
                    [self._position(other, resolved) for other in others if other != reader],
                )
            self.store(
                reader.flow, reader.stream, StoredStart(declared_start(reader.stream), offset)
            )

    def hand_over(
        self,
        left: Mapping[str, str],
        queries: Iterable[Flow],
        committed: Callable[[str], tuple[Progress | None, Progress | None]],
    ) -> None:
        """Let queries for dead letters start where the flows ended that wrote them before.

        ``left`` has these flows by stream. ``committed`` fences a flow and returns its last
        batches.
        """
        for query in queries:
            stream = query.letters_of
            if not isinstance(stream, Stream) or not stream.topic or stream.name not in left:
                continue
            former = left[stream.name]
            ended = ended_at(self._layout.checkpoint(former), *committed(former), stream.topic)
            if ended is not None:
                positions = {
                    TopicPartition(stream.topic, number): at for number, at in ended.items()
                }
                self.store(query.name, stream, StoredStart(HANDED_OVER, Offset(positions)))

    def apply(self, frames: Frames, flow: Flow) -> None:
        """Let a flow read its streams from the stored starts."""
        for reader in readers_of(frames.pipeline, flow):
            start = self.option(
                flow.name, reader.stream, frames.topics.declared_options(reader.stream, flow.name)
            )
            if start is not None:
                frames.start_at(reader.stream.name, flow.name, start)

    def store(self, flow: str, stream: Stream, start: StoredStart) -> None:
        stored = self._layout.stored_starts(flow)
        entry = {"declared": start.declared, "offset": start.offset.render()}
        self._layout.store_starts(flow, {**stored, stream.name: entry})

    def stored(self, flow: str, stream: Stream) -> Offset | None:
        """Return the stored offset, if it is valid for the start that the stream declares."""
        entry = self._layout.stored_starts(flow).get(stream.name)
        if entry is None or entry["declared"] not in (HANDED_OVER, declared_start(stream)):
            return None
        return Offset.parse(entry["offset"])

    def option(self, flow: str, stream: Stream, source: Mapping[str, str]) -> str | None:
        """Return the option ``startingOffsets`` for a flow, or None if the declaration is valid."""
        stored = self.stored(flow, stream)
        if stored is None:
            return None
        with _ClosingView(source) as view:
            return for_partitions(stored, view.partitions, view.ids)

    def _position(self, reader: Reader, resolved: Offset) -> Mapping[TopicPartition, int]:
        """Return the position of a reader.

        It is the beginning if the reader has had batches, but its position is unknown.
        """
        topic, has_batch = reader.stream.topic, self._layout.has_batch(reader.flow)
        ended = (
            ended_at(self._layout.checkpoint(reader.flow), None, None, topic) if has_batch else None
        )
        if ended is not None:
            return {TopicPartition(topic, number): at for number, at in ended.items()}
        stored = self.stored(reader.flow, reader.stream)
        if stored is not None:
            return stored.positions
        return dict.fromkeys(resolved.positions, 0) if has_batch else {}


def readers_of(pipeline: Pipeline, flow: Flow) -> list[Reader]:
    """Return the streams of a flow that are topics, each with the flow as its reader."""
    read = [flow.letters_of] if flow.letters_of is not None else leaves(pipeline, flow)
    return [
        Reader(flow.name, source) for source in read if isinstance(source, Stream) and source.topic
    ]


def _resolve_now(source: Mapping[str, str]) -> Offset:
    with _ClosingView(source) as view:
        return Offset(starting_positions(view, parse(source, STREAM), default="latest"), view.ids)


class _ClosingView(ClusterView):
    """A view of the cluster that is closed at the end of a block."""

    def __init__(self, source: Mapping[str, str]) -> None:
        super().__init__(parse(source, STREAM))

    def __enter__(self) -> _ClosingView:
        self.refresh()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
