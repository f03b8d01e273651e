"""A flow for the dead letters of each topic that flows read, be it a stream, a table or what another flow wrote: what does not parse, to a
topic of its own.

They look at every record once more, so they do it every few seconds instead of all the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millstream.client.dead_letters import dead_letter_topic
from millstream.pipelines.declare import LETTERS, Flow, Pipeline, Stream, Table
from millstream.pipelines.graph import leaves
from millstream.pipelines.supervisor import Instruction, Start
from millstream.pipelines.targets import TopicTarget

EVERY_MS = 5_000


def letter_flows(pipeline: Pipeline, flows: Iterable[Flow]) -> list[Flow]:
    """One for each stream, table and flow that these flows read and whose values can be wrong. What is declared twice alike is looked
    at once: two letters of one record would be sent back as two records."""
    read = {one.name: one for flow in flows for one in leaves(pipeline, flow)}
    alike = {_what(one): one for one in reversed(read.values()) if not isinstance(one, Flow)}
    declared = [one for one in read.values() if not isinstance(one, Flow) and alike[_what(one)] is one]
    # A flow writes what can be read, except for what JSON has no number for; but others may write to its topic as well.
    told = {one.topic for one in declared}
    written = [_as_stream(pipeline, one) for one in read.values() if isinstance(one, Flow)]
    return [
        _letters(one, one.dead_letters)
        for one in (*declared, *(one for one in written if one.topic not in told))
        if one.dead_letters and (one.value != "raw" or not one.topic)
    ]


def writer_name(pipeline: Pipeline, letters: Flow) -> str | None:
    """The flow that writes what a flow of dead letters looks at, if one does."""
    writer = pipeline.writer_of(letters.letters_of.topic) if letters.letters_of is not None else None
    return writer[0].name if writer is not None else None


def begins_late(letters: Flow) -> bool:
    """Whether its stream begins at a moment, and not at a place: what is bad and comes before its dead letters look would be lost."""
    stream = letters.letters_of
    if not isinstance(stream, Stream):
        return False
    return stream.starting != "earliest" or any(
        name.lower().startswith("starting") for name in stream.source_options
    )


def letters_first(instructions: Iterable[Instruction], flows: Mapping[str, Flow]) -> list[Instruction]:
    """In such an order that dead letters of streams that begin late are started before the flows that leave out what is bad."""
    return sorted(instructions, key=lambda one: isinstance(one, Start) and not begins_late(flows[one.flow]))


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
