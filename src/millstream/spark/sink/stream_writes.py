"""``writeStream.format("millstream")`` is refused when it is written, not when the first batch runs.

Spark calls a data source only then, and shows what it raises at the end of a Java trace.
"""

from __future__ import annotations

from typing import Any

from millstream.spark.sink.failures import SinkError

FORMAT = "millstream"


def refusal() -> SinkError:
    return SinkError(
        f'writeStream.format("{FORMAT}") cannot be exactly-once',
        hint="use TopicSink(...).start(writer) of millstream.spark.sink.topic_sink, which is: "
        'TopicSink("localhost:9092", "counts", topic="counts").start(rows.writeStream)',
    )


def refuse_early() -> None:
    """Have PySpark's ``DataStreamWriter`` refuse the format; ``start`` and ``toTable`` go through ``format`` too."""
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    writer: Any = DataStreamWriter
    usual = writer.format
    if getattr(usual, "refuses_millstream", False):
        return

    def format(self: Any, source: str) -> Any:
        if str(source).lower() == FORMAT:
            raise refusal()
        return usual(self, source)

    format.__doc__ = usual.__doc__
    format.refuses_millstream = True  # type: ignore[attr-defined]
    writer.format = format
