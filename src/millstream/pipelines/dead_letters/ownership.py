"""Who writes the dead letters of a stream: one flow that reads it, or a query of its own. Decisions only.

A record that does not parse gives one letter, however many flows read it. So each stream, and each flow that others read,
has one owner: the first flow that reads it and has not started yet, those that write topics before others. The plan of
the owner has to read the stream, since a function may ignore an argument. The owner writes the letters with its results
(``batch_letters``). It is noted beside the checkpoints and stays the owner.

A query of its own (a flow called ``dlq.NAME``) remains for

- tables: they are read whole for every batch, and only a stream tells what is new;
- flows that come and go while others run (``independent``): an owner could leave at any time;
- streams that had such a query before, or whose flows have all been started without dead letters: it goes on from there;
- streams that begin at a moment (``begins_late``) if one of their flows has been started without dead letters;
- streams whose owner was removed from the pipeline or does not read them any more: it begins where the owner ended.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from millstream.client.dead_letters.letters import dead_letter_topic
from millstream.pipelines.declare import LETTERS, Flow, Pipeline, Stream, Table
from millstream.pipelines.graph import leaves
from millstream.pipelines.targets import TopicTarget
from millstream.spark.source.offsets import LATEST

EVERY_MS = 5_000
"""A query of its own looks at every record once more, so it does that every few seconds instead of all the time."""


class OwnedLetters(NamedTuple):
    """A stream whose dead letters a flow writes."""

    flow: str
    stream: Stream


class LetterPlan(NamedTuple):
    """Who writes which dead letters."""

    owned: dict[str, OwnedLetters]
    """By the name of the stream or flow that is read."""
    queries: list[Flow]
    left: dict[str, str]
    """Streams whose owner is not in the pipeline or does not read them any more, and its name."""

    unread: Sequence[str] = ()
    """Streams that no flow reads, although some name them: they have no letters."""

    @property
    def writers(self) -> tuple[object, ...]:
        return self.owned, [flow.name for flow in self.queries]


Reads = Callable[[Flow, Stream], bool]


def plan_letters(
    pipeline: Pipeline,
    flows: Iterable[Flow],
    owners: Mapping[str, str],
    has_started: Callable[[str], bool],
    reads: Reads = lambda flow, stream: True,
) -> LetterPlan:
    """Decide for these flows. ``owners`` are those of earlier runs, ``has_started`` says whether a flow has a checkpoint.

    ``reads`` says whether the plan of a flow reads a stream that the flow names. Without it names are believed.
    """
    chosen = list(flows)
    plan = _plan(pipeline, chosen, letter_flows(pipeline, chosen), owners, has_started, reads)
    if not plan.unread:
        return plan
    # These streams do not stand for the flows that write their topics.
    queries = letter_flows(pipeline, chosen, unread=plan.unread)
    return _plan(pipeline, chosen, queries, owners, has_started, reads)


def _plan(
    pipeline: Pipeline,
    chosen: Sequence[Flow],
    needed: Iterable[Flow],
    owners: Mapping[str, str],
    has_started: Callable[[str], bool],
    reads: Reads,
) -> LetterPlan:
    names = {flow.name for flow in chosen}
    plan = LetterPlan({}, [], {}, unread := [])

    def is_read(reader: OwnedLetters) -> bool:
        return reads(pipeline.flows[reader.flow], reader.stream)

    for letters in needed:
        stream = letters.letters_of
        if not isinstance(stream, Stream) or has_started(letters.name):
            plan.queries.append(letters)
            continue
        same = [stream, *(pipeline.streams[name] for name in alike(pipeline, stream)[1:])]
        readers = [
            OwnedLetters(flow.name, one)
            for one in same
            for flow in sorted(chosen, key=lambda flow: not flow.topics)
            if _names(pipeline, flow, one.name)
        ]
        started = [one for one in readers if has_started(one.flow)]
        noted = next((OwnedLetters(owners[one.name], one) for one in same if one.name in owners), None)
        if noted is not None:
            flow = pipeline.flows.get(noted.flow)
            named = flow is not None and _names(pipeline, flow, noted.stream.name)
            owner = noted if named and (noted.flow not in names or is_read(noted)) else None
            if owner is None:
                plan.left[stream.name] = noted.flow
            needs_query = owner is None and any(is_read(one) for one in readers)
        else:
            # A new flow would begin at a later moment than those that have started.
            new = [] if started and begins_late(stream) else [one for one in readers if one not in started]
            owner = next((one for one in new if is_read(one)), None)
            needs_query = owner is None and bool(started)
        if owner is not None:
            plan.owned[owner.stream.name] = owner
        elif needs_query:
            plan.queries.append(letters)
        else:
            unread.append(stream.name)
    return plan


def _names(pipeline: Pipeline, flow: Flow, name: str) -> bool:
    return any(leaf.name == name for leaf in leaves(pipeline, flow))


def letter_flows(pipeline: Pipeline, flows: Iterable[Flow], unread: Collection[str] = ()) -> list[Flow]:
    """A query for each stream, table and flow that these flows read and whose values can be wrong.

    Of declarations that are alike only the first counts: two letters of one record would be sent back as two records.
    """
    read = {one.name: one for flow in flows for one in leaves(pipeline, flow)}
    first = {_what(one): one for one in reversed(read.values()) if not isinstance(one, Flow)}
    declared = [one for one in read.values() if not isinstance(one, Flow) and first[_what(one)] is one]
    # A flow writes what can be read, except for what JSON has no number for; but others may write to its topic as well.
    topics = {one.topic for one in declared if one.name not in unread}
    written = [_as_stream(pipeline, one) for one in read.values() if isinstance(one, Flow)]
    return [
        _letters(one, one.dead_letters)
        for one in (*declared, *(one for one in written if one.topic not in topics))
        if one.dead_letters and (one.value != "raw" or not one.topic)
    ]


def writer_name(pipeline: Pipeline, letters: Flow) -> str | None:
    """The flow that writes what a flow of dead letters looks at, if one does."""
    writer = pipeline.writer_of(letters.letters_of.topic) if letters.letters_of is not None else None
    return writer[0].name if writer is not None else None


def begins_late(stream: Stream | Table | Flow) -> bool:
    """Whether a stream of a topic begins at a moment, and not at the beginning of the topic."""
    if not isinstance(stream, Stream) or not stream.topic:
        return False
    given = any(name.lower().startswith("starting") for name in stream.source_options)
    return given or not _is_place(stream.starting)


def _is_place(starting: str) -> bool:
    """Whether a start is the same whenever a flow begins: earliest, or offsets without -1 (latest)."""
    if starting in ("earliest", "latest"):
        return starting == "earliest"
    try:
        topics = json.loads(starting)
        return all(int(at) != LATEST for offsets in topics.values() for at in offsets.values())
    except (ValueError, AttributeError, TypeError):
        return False


def writer_of_letters(plan: LetterPlan, streams: Sequence[str]) -> OwnedLetters | None:
    """The flow or query that writes the dead letters of streams that are alike, and the stream that it reads."""
    for query in plan.queries:
        if isinstance(query.letters_of, Stream) and query.letters_of.name in streams:
            return OwnedLetters(query.name, query.letters_of)
    return next((plan.owned[name] for name in streams if name in plan.owned), None)


def alike(pipeline: Pipeline, stream: Stream) -> list[str]:
    """The names of the streams whose bad records are those of this stream, itself among them."""
    what = _what(stream)
    return [
        stream.name,
        *(n for n, one in pipeline.streams.items() if n != stream.name and _what(one) == what),
    ]


def is_letters(flow: str) -> bool:
    return flow.startswith(LETTERS)


def _what(one: Stream | Table) -> tuple[object, ...]:
    """What is read and how: of two that do not differ in it, the same records are bad."""
    how = (one.value, repr(one.schema), repr(sorted(one.options.items())), one.dead_letters)
    if isinstance(one, Table):
        return one.topic, *how
    return one.what, one.starting, one.tombstones, repr(sorted(one.source_options.items())), *how


def _as_stream(pipeline: Pipeline, flow: Flow) -> Stream:
    """What other flows of the pipeline read of a flow."""
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


def _letters(one: Stream | Table, topic: str) -> Flow:
    return Flow(
        name=f"{LETTERS}{one.name}",
        inputs=(one.name,),
        function=lambda: None,
        targets=(TopicTarget(topic, value="raw"),),
        mode="append",
        place=one.place,
        trigger_ms=EVERY_MS,
        letters_of=one,
    )
