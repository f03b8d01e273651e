"""``delta("lake/orders", by="date")``: a Delta table as the target of a flow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.connect.packages import need
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.stores import StoreSink
from millstream.pipelines.targets import ParquetTarget, columns_of, parquet


@dataclass(frozen=True)
class DeltaTarget(ParquetTarget):
    """A Delta table, each row once. Its data files are Parquet, written with the same options."""

    def sink(self, writer: str, *, reset_progress: bool = False) -> StoreSink:
        from millstream.connect.delta.sink import DeltaSink

        return DeltaSink(self, writer, reset_progress=reset_progress)

    def __str__(self) -> str:
        return f"delta {self.path}"


def delta(path: str, *, by: str | Sequence[str] | None = None, **options: str) -> DeltaTarget:
    """Declare a Delta table, partitioned by the columns ``by``; a missing one is created.

    ``options`` are those of Spark's Parquet writer.
    """
    need("deltalake", "Delta tables")
    if "://" in str(path) and not str(path).startswith("file://"):
        raise PipelineError(
            f"cannot write a Delta table to {path}",
            hint="give a path of a file system that driver and executors share",
        )
    files = parquet(path, by=columns_of(by), **options)
    return DeltaTarget(files.path, files.by, files.options)
