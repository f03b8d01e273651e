"""Reject ``writeStream.format("millstream")`` at the call, not when the first batch runs.

Spark calls a data source only then, and shows its exception at the end of a Java stack trace.
"""

from __future__ import annotations

from typing import Any

from millstream.spark.sink.failures import SinkError

FORMAT = "millstream"


def refusal() -> SinkError:
    return SinkError(
        f'writeStream.format("{FORMAT}") cannot be exactly-once',
        hint="use TopicSink(...).start(writer) of millstream.spark.sink: "
        'TopicSink("localhost:9092", "counts", topic="counts").start(rows.writeStream)',
    )


def refuse_early() -> None:
    """Make PySpark's ``DataStreamWriter`` reject the format.

    ``start`` and ``toTable`` call ``format`` too.
    """
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    writer: Any = DataStreamWriter
    original = writer.format
    if getattr(original, "refuses_millstream", False):
        return

    def format(self: Any, source: str) -> Any:
        if str(source).lower() == FORMAT:
            raise refusal()
        return original(self, source)

    format.__doc__ = original.__doc__
    format.refuses_millstream = True  # type: ignore[attr-defined]
    writer.format = format
