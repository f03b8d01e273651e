"""Who writes the dead letters of a stream: one flow that reads it, or a query of its own. Decisions only.

A record that does not parse gives one letter, however many flows read it. So each stream, and each flow that others read,
has one owner: the first flow that reads it and has not started yet, those that write topics before others. The owner
writes the letters with its results (``batch_letters``). It is noted beside the checkpoints and stays the owner.

A query of its own (a flow called ``dlq.NAME``) remains for

- tables: they are read whole for every batch, and only a stream tells what is new;
- flows that come and go while others run (``independent``): an owner could leave at any time;
- streams that had such a query before, or whose flows have all been started without dead letters: it goes on from there;
- streams whose owner was removed from the pipeline: it begins where the owner ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from millstream.client.dead_letters.letters import dead_letter_topic
from millstream.pipelines.declare import LETTERS, Flow, Pipeline, Stream, Table
from millstream.pipelines.graph import leaves
from millstream.pipelines.run.supervisor import Instruction, Start
from millstream.pipelines.targets import TopicTarget

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
    """Streams among ``queries`` whose owner is not in the pipeline any more, and its name."""


def plan_letters(
    pipeline: Pipeline,
    flows: Iterable[Flow],
    owners: Mapping[str, str],
    has_started: Callable[[str], bool],
) -> LetterPlan:
    """Decide for these flows. ``owners`` are those of earlier runs, ``has_started`` says whether a flow has a checkpoint."""
    chosen = list(flows)
    owned: dict[str, OwnedLetters] = {}
    queries: list[Flow] = []
    left: dict[str, str] = {}
    for letters in letter_flows(pipeline, chosen):
        stream = letters.letters_of
        if not isinstance(stream, Stream) or has_started(letters.name):
            queries.append(letters)
            continue
        noted = owners.get(stream.name)
        if noted is None:
            owner = _owner_of(pipeline, stream, chosen, has_started)
        elif noted in pipeline.flows and _reads(pipeline, pipeline.flows[noted], stream.name):
            owner = noted
        else:
            owner, left[stream.name] = None, noted
        if owner is None:
            queries.append(letters)
        else:
            owned[stream.name] = OwnedLetters(owner, stream)
    return LetterPlan(owned, queries, left)


def _owner_of(
    pipeline: Pipeline, stream: Stream, flows: Iterable[Flow], has_started: Callable[[str], bool]
) -> str | None:
    new = [flow for flow in flows if _reads(pipeline, flow, stream.name) and not has_started(flow.name)]
    return next((flow.name for flow in sorted(new, key=lambda flow: not flow.topics)), None)


def _reads(pipeline: Pipeline, flow: Flow, name: str) -> bool:
    return any(leaf.name == name for leaf in leaves(pipeline, flow))


def letter_flows(pipeline: Pipeline, flows: Iterable[Flow]) -> list[Flow]:
    """A query for each stream, table and flow that these flows read and whose values can be wrong.

    Of declarations that are alike only the first counts: two letters of one record would be sent back as two records.
    """
    read = {one.name: one for flow in flows for one in leaves(pipeline, flow)}
    alike = {_what(one): one for one in reversed(read.values()) if not isinstance(one, Flow)}
    declared = [one for one in read.values() if not isinstance(one, Flow) and alike[_what(one)] is one]
    # A flow writes what can be read, except for what JSON has no number for; but others may write to its topic as well.
    topics = {one.topic for one in declared}
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


def goes_first(flow: Flow, owned: Mapping[str, OwnedLetters]) -> bool:
    """Whether a flow writes dead letters of a stream that begins at a moment, and not at a place.

    Other flows would leave out bad records that arrive before the owner looks, and nothing would be known of them.
    """
    streams = [one.stream for one in owned.values() if one.flow == flow.name]
    return any(_begins_late(one) for one in (*streams, *([flow.letters_of] if flow.letters_of else [])))


def _begins_late(stream: Stream | Table) -> bool:
    if not isinstance(stream, Stream):
        return False
    return stream.starting != "earliest" or any(
        name.lower().startswith("starting") for name in stream.source_options
    )


def letters_first(
    instructions: Iterable[Instruction], flows: Mapping[str, Flow], owned: Mapping[str, OwnedLetters]
) -> list[Instruction]:
    """Order instructions so that flows which go first are started first."""
    return sorted(
        instructions, key=lambda one: isinstance(one, Start) and not goes_first(flows[one.flow], owned)
    )


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
