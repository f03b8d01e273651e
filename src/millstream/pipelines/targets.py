"""Targets of flows: ``topic(...)``, ``parquet(...)``. ``millstream.connect`` has other stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from millstream.pipelines.durations import Watermark, parse_watermark
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.stores import Store, StoreSink

NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class TopicTarget:
    """A topic that a flow writes exactly once."""

    topic: str
    key: tuple[str, ...] = ()
    value: str = "json"
    schema: Any = None
    """The schema of the format, for formats with their own schemas (Avro, Protobuf)."""
    partitions: int | None = None
    replication_factor: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    watermark: Watermark | None = None
    """The watermark for flows that read this topic."""
    options: Mapping[str, Any] = field(default_factory=dict)
    headers: str | Mapping[str, str] = field(default_factory=dict)
    """The column with all headers, or the column of each header by name."""

    @property
    def needs_keys(self) -> bool:
        """Whether records need keys, because the topic is declared as compacted."""
        return bool(self.key) and "compact" in self.config.get("cleanup.policy", "")

    @property
    def header_columns(self) -> tuple[str, ...]:
        return (self.headers,) if isinstance(self.headers, str) else tuple(self.headers.values())

    def __str__(self) -> str:
        return f"topic {self.topic}"


@dataclass(frozen=True)
class ParquetTarget(Store):
    """A directory of Parquet files with every row once."""

    path: str
    by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of Spark's Parquet writer, like ``compression``."""

    @property
    def columns(self) -> tuple[str, ...]:
        return self.by

    @property
    def unstored_columns(self) -> tuple[str, ...]:
        return self.by

    def sink(self, writer: str, *, reset_progress: bool = False) -> StoreSink:
        from millstream.pipelines.parquet_sink import ParquetSink

        return ParquetSink(self, writer, reset_progress=reset_progress)

    def __str__(self) -> str:
        return f"parquet {self.path}"


Target = TopicTarget | Store


def topic(
    name: str,
    *,
    key: str | Sequence[str] | None = None,
    value: str = "json",
    schema: Any = None,
    partitions: int | None = None,
    replication_factor: int | None = None,
    config: Mapping[str, Any] = NOTHING,
    watermark: str | None = None,
    headers: str | Mapping[str, str] = NOTHING,
    **options: Any,
) -> TopicTarget:
    """Return a topic to write: its key columns, value format, and settings for creating it.

    ``headers`` has the column of each header by name, or names a column with all of them (a map, or
    an array of structs with key and value). Such columns are not part of the value. ``watermark``
    is for flows that read the topic. Other options go to the format.
    """
    if not name:
        raise PipelineError("a topic needs a name")
    return TopicTarget(
        topic=name,
        key=columns_of(key),
        value=value,
        schema=schema,
        partitions=partitions,
        replication_factor=replication_factor,
        config={setting: _text(value) for setting, value in config.items()},
        watermark=parse_watermark(watermark) if watermark else None,
        options=options,
        headers=headers if isinstance(headers, str) else dict(headers),
    )


def parquet(path: str, *, by: str | Sequence[str] | None = None, **options: str) -> ParquetTarget:
    """Return a directory of Parquet files, with a subdirectory for each value of ``by``."""
    path = str(path)
    scheme, colon, _ = path.partition("://")
    if colon and scheme != "file":
        raise PipelineError(
            f"cannot write Parquet to {path}",
            hint="give a path of a file system that driver and executors share",
        )
    for column in columns_of(by):
        if column.startswith(("_", ".")):
            raise PipelineError(
                f"cannot write {path} by {column!r}: "
                f"Parquet readers skip directories that begin with {column[0]!r}",
                hint="rename the column in the flow",
            )
    return ParquetTarget(path.removeprefix("file://"), columns_of(by), options)


def columns_of(columns: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the declared columns as a tuple."""
    if columns is None:
        return ()
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
