"""The sink: one transaction per micro-batch, its progress committed with its data.

``TopicSink`` is loaded on first use, because tasks on executors import parts of this package only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.spark.sink.topic_sink import TopicSink as TopicSink


def __getattr__(name: str) -> Any:
    if name != "TopicSink":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from millstream.spark.sink.topic_sink import TopicSink

    return TopicSink
