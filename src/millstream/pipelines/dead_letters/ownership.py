"""Decides who writes the dead letters of a stream: one flow that reads it, or a separate query.

A record that does not parse gives one dead letter, however many flows read it. So each stream, and
each flow that others read, has one owner. The owner is the first flow that reads it and has not
started yet; flows that write topics come first. The plan of the owner must read the stream, because
a function may ignore a parameter. The owner writes the dead letters with its results (``batches``).
It is stored beside the checkpoints and stays the owner.

A separate query (a flow called ``dlq.NAME``) is needed for

- tables, because every batch reads them completely, and only a stream knows new records;
- flows that come and go while others run (``independent``), because an owner could be removed;
- streams that had such a query before, or whose flows have all been started without dead letters:
  the query continues there;
- streams whose start depends on the time (``starts_by_time``), if one of their flows has been
  started without dead letters;
- streams whose owner was removed or no longer reads them: the query starts where the owner ended.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from millstream.client.dead_letters.letters import dead_letter_topic
from millstream.pipelines.declare import DEAD_LETTER_PREFIX, Flow, Pipeline, Stream, Table
from millstream.pipelines.graph import leaves
from millstream.pipelines.targets import TopicTarget
from millstream.spark.source.offsets import LATEST

QUERY_INTERVAL_MS = 5_000
"""A separate query reads every record again, so it runs every few seconds instead of always."""


class DeadLetterOwner(NamedTuple):
    """A stream, and the flow that writes its dead letters."""

    flow: str
    stream: Stream


class DeadLetterPlan(NamedTuple):
    """The writers of dead letters."""

    owned: dict[str, DeadLetterOwner]
    """Owners by the name of the stream or flow that is read."""
    queries: list[Flow]
    left: dict[str, str]
    """Former owners, which were removed or no longer read the stream, by stream."""

    unread: Sequence[str] = ()
    """Streams that flows name but do not read. They have no dead letters."""

    @property
    def writers(self) -> tuple[object, ...]:
        return self.owned, [flow.name for flow in self.queries]


Reads = Callable[[Flow, Stream], bool]


def plan_dead_letters(
    pipeline: Pipeline,
    flows: Iterable[Flow],
    owners: Mapping[str, str],
    has_started: Callable[[str], bool],
    reads: Reads = lambda flow, stream: True,
) -> DeadLetterPlan:
    """Choose the writers of dead letters for these flows.

    ``owners`` are those of earlier runs. ``has_started`` returns whether a flow has a checkpoint.
    ``reads`` returns whether the plan of a flow reads a stream that it names. Without it, every
    named stream counts as read.
    """
    flows_to_run = list(flows)
    plan = _plan(
        pipeline,
        flows_to_run,
        dead_letter_flows(pipeline, flows_to_run),
        owners,
        has_started,
        reads,
    )
    if not plan.unread:
        return plan
    # These streams do not replace the flows that write their topics.
    queries = dead_letter_flows(pipeline, flows_to_run, unread=plan.unread)
    return _plan(pipeline, flows_to_run, queries, owners, has_started, reads)


def _plan(
    pipeline: Pipeline,
    flows_to_run: Sequence[Flow],
    needed: Iterable[Flow],
    owners: Mapping[str, str],
    has_started: Callable[[str], bool],
    reads: Reads,
) -> DeadLetterPlan:
    names = {flow.name for flow in flows_to_run}
    plan = DeadLetterPlan({}, [], {}, unread := [])

    def is_read(reader: DeadLetterOwner) -> bool:
        return reads(pipeline.flows[reader.flow], reader.stream)

    for query in needed:
        stream = query.letters_of
        if not isinstance(stream, Stream) or has_started(query.name):
            plan.queries.append(query)
            continue
        twins = [pipeline.streams[name] for name in identical_streams(pipeline, stream)[1:]]
        readers = [
            DeadLetterOwner(flow.name, candidate)
            for candidate in (stream, *twins)
            for flow in sorted(flows_to_run, key=lambda flow: not flow.topics)
            if _names(pipeline, flow, candidate.name)
        ]
        started = [reader for reader in readers if has_started(reader.flow)]
        owned = [candidate for candidate in (stream, *twins) if candidate.name in owners]
        stored = DeadLetterOwner(owners[owned[0].name], owned[0]) if owned else None
        if stored is not None:
            flow = pipeline.flows.get(stored.flow)
            named = flow is not None and _names(pipeline, flow, stored.stream.name)
            owner = stored if named and (stored.flow not in names or is_read(stored)) else None
            if owner is None:
                plan.left[stream.name] = stored.flow
            needs_query = owner is None and any(is_read(reader) for reader in readers)
        else:
            # A new flow would start at a later time than those that have started.
            new = (
                []
                if started and starts_by_time(stream)
                else [reader for reader in readers if reader not in started]
            )
            owner = next((reader for reader in new if is_read(reader)), None)
            needs_query = owner is None and bool(started)
        if owner is not None:
            plan.owned[owner.stream.name] = owner
        elif needs_query:
            plan.queries.append(query)
        else:
            unread.append(stream.name)
    return plan


def _names(pipeline: Pipeline, flow: Flow, name: str) -> bool:
    return any(leaf.name == name for leaf in leaves(pipeline, flow))


def dead_letter_flows(
    pipeline: Pipeline, flows: Iterable[Flow], unread: Collection[str] = ()
) -> list[Flow]:
    """Return a query for each input of these flows whose values can be bad.

    Of identical declarations only the first counts, because two dead letters of one record would be
    sent back as two records.
    """
    read = {source.name: source for flow in flows for source in leaves(pipeline, flow)}
    first = {
        _reading_key(source): source
        for source in reversed(read.values())
        if not isinstance(source, Flow)
    }
    declared = [
        source
        for source in read.values()
        if not isinstance(source, Flow) and first[_reading_key(source)] is source
    ]
    # A flow writes values that parse, except for numbers that JSON cannot express. But other
    # programs may write to its topic as well.
    topics = {source.topic for source in declared if source.name not in unread}
    written = [_as_stream(pipeline, flow) for flow in read.values() if isinstance(flow, Flow)]
    return [
        _query(source, source.dead_letters)
        for source in (*declared, *(stream for stream in written if stream.topic not in topics))
        if source.dead_letters and (source.value != "raw" or not source.topic)
    ]


def writer_name(pipeline: Pipeline, letters: Flow) -> str | None:
    """Return the flow that writes the input of a query for dead letters, or None."""
    writer = (
        pipeline.writer_of(letters.letters_of.topic) if letters.letters_of is not None else None
    )
    return writer[0].name if writer is not None else None


def starts_by_time(stream: Stream | Table | Flow) -> bool:
    """Return whether the start of a stream of a topic depends on the time."""
    if not isinstance(stream, Stream) or not stream.topic:
        return False
    has_option = any(name.lower().startswith("starting") for name in stream.source_options)
    return has_option or not _is_fixed_start(stream.starting)


def _is_fixed_start(starting: str) -> bool:
    """Return whether a start is the same at any time: earliest, or offsets without -1 (latest)."""
    if starting in ("earliest", "latest"):
        return starting == "earliest"
    try:
        topics = json.loads(starting)
        return all(int(at) != LATEST for offsets in topics.values() for at in offsets.values())
    except (ValueError, AttributeError, TypeError):
        return False


def dead_letter_writer(plan: DeadLetterPlan, streams: Sequence[str]) -> DeadLetterOwner | None:
    """Return the writer of the dead letters of identical streams, and the stream that it reads."""
    for query in plan.queries:
        if isinstance(query.letters_of, Stream) and query.letters_of.name in streams:
            return DeadLetterOwner(query.name, query.letters_of)
    return next((plan.owned[name] for name in streams if name in plan.owned), None)


def identical_streams(pipeline: Pipeline, stream: Stream) -> list[str]:
    """Return the names of streams with the same bad records as this stream, which comes first."""
    key = _reading_key(stream)
    return [
        stream.name,
        *(
            n
            for n, other in pipeline.streams.items()
            if n != stream.name and _reading_key(other) == key
        ),
    ]


def is_dead_letter_flow(flow: str) -> bool:
    return flow.startswith(DEAD_LETTER_PREFIX)


def _reading_key(source: Stream | Table) -> tuple[object, ...]:
    """Return a key for the records that are read and how.

    Streams with equal keys have the same bad records.
    """
    how = (
        source.value,
        repr(source.schema),
        repr(sorted(source.options.items())),
        source.dead_letters,
    )
    if isinstance(source, Table):
        return source.topic, *how
    return (
        source.what,
        source.starting,
        source.tombstones,
        repr(sorted(source.source_options.items())),
        *how,
    )


def _as_stream(pipeline: Pipeline, flow: Flow) -> Stream:
    """Return the stream that other flows of the pipeline read from a flow."""
    target = flow.topics[0]
    return Stream(
        name=flow.name,
        topic=target.topic,
        value=target.value,
        schema=target.schema,
        watermark=None,
        starting="earliest",
        meta=False,
        source_options={},
        options=target.options,
        dead_letters=dead_letter_topic(target.topic) if pipeline.dead_letters else None,
        place=flow.place,
    )


def _query(source: Stream | Table, topic: str) -> Flow:
    return Flow(
        name=f"{DEAD_LETTER_PREFIX}{source.name}",
        inputs=(source.name,),
        function=lambda: None,
        targets=(TopicTarget(topic, value="raw"),),
        mode="append",
        place=source.place,
        trigger_ms=QUERY_INTERVAL_MS,
        letters_of=source,
    )
