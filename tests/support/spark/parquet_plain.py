"""A Parquet sink that stages without Spark, so that a process which dies at one of its steps starts
in no time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from millstream.pipelines.parquet_sink import ParquetSink
from millstream.spark.sink.checkpoint import BatchIdentity

ORIGIN = BatchIdentity("query-1", "digest")


class PlainSink(ParquetSink):
    """Stages with pyarrow instead of Spark: three files, one of them in another partition
    directory.
    """

    def _stage(self, batch: Any, batch_id: int) -> Path:
        staging = self.hidden / f"staging-{batch_id}-plain"
        for number, day in enumerate(("day=1", "day=1", "day=2")):
            path = staging / day / f"part-{number}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pyarrow.parquet.write_table(pa.table({"n": [batch_id * 10 + number]}), path)
        return staging
