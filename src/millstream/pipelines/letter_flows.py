"""A flow for the dead letters of each stream and table that flows read: what does not parse, to a topic of its own.

They look at every record once more, so they do it every few seconds instead of all the time.
"""

from __future__ import annotations

from collections.abc import Iterable

from millstream.pipelines.declare import Flow, Pipeline, Stream, Table
from millstream.pipelines.graph import leaves
from millstream.pipelines.targets import TopicTarget

PREFIX = "dlq."
EVERY_MS = 5_000


def letter_flows(pipeline: Pipeline, flows: Iterable[Flow]) -> list[Flow]:
    """One for each stream and table that these flows read and whose values can be wrong."""
    read = {one.name: one for flow in flows for one in leaves(pipeline, flow) if not isinstance(one, Flow)}
    return [
        _letters(one, one.dead_letters)
        for one in read.values()
        if one.dead_letters and (one.value != "raw" or not one.topic)
    ]


def is_letters(flow: str) -> bool:
    return flow.startswith(PREFIX)


def _letters(one: Stream | Table, topic: str) -> Flow:
    return Flow(
        name=f"{PREFIX}{one.name}",
        inputs=(one.name,),
        function=lambda: None,
        targets=(TopicTarget(topic, value="raw"),),
        mode="append",
        place=one.place,
        trigger_ms=EVERY_MS,
        letters_of=one,
    )
