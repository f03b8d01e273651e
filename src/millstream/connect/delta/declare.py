"""``delta("lake/orders", by="date")``: a Delta table as the target of a flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millstream.connect.packages import need
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.stores import Store, StoreSink
from millstream.pipelines.targets import ParquetTarget, columns_of, parquet


@dataclass(frozen=True)
class DeltaTarget(Store):
    """A Delta table, each row once."""

    files: ParquetTarget
    """The data files: where, by which columns, with which options of Spark's Parquet writer."""

    @property
    def path(self) -> str:
        return self.files.path

    @property
    def by(self) -> tuple[str, ...]:
        return self.files.by

    @property
    def options(self) -> Mapping[str, str]:
        return self.files.options

    @property
    def columns(self) -> tuple[str, ...]:
        return self.by

    @property
    def aside(self) -> tuple[str, ...]:
        return self.by

    def sink(self, writer: str, *, reset_progress: bool = False) -> StoreSink:
        from millstream.connect.delta.sink import DeltaSink

        return DeltaSink(self, writer, reset_progress=reset_progress)

    def __str__(self) -> str:
        return f"delta {self.path}"


def delta(path: str, *, by: str | Sequence[str] | None = None, **options: str) -> DeltaTarget:
    """A Delta table, partitioned by the columns ``by``; made when it is missing. ``options`` are those of Spark's Parquet writer."""
    need("deltalake", "Delta tables")
    if "://" in str(path) and not str(path).startswith("file://"):
        raise PipelineError(
            f"cannot write a Delta table to {path}",
            hint="give a path of a file system that driver and executors share",
        )
    return DeltaTarget(parquet(path, by=columns_of(by), **options))
