"""A driver without Spark, for ``test_stores_under_fire``: it does to a store what Spark does, and
dies in a moment instead of a minute.

As in Spark's checkpoint, a batch is decided before it runs, runs again after a crash, and is noted
when it was written. The sinks are the real ones; only where rows come from is made up: batch b has
the numbers from b * ROWS on.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from pyspark.sql.types import IntegerType, StructField, StructType

from millstream.connect import delta, table
from millstream.connect.databases.database import Change
from millstream.connect.databases.table_sink import TableSink
from millstream.connect.delta.sink import DeltaSink
from millstream.pipelines.errors import Unavailable
from millstream.spark.sink.checkpoint import BatchIdentity

WRITER = "fire.flow"
ROWS = 300
REFUSED = 7
SCHEMA = StructType([StructField("n", IntegerType()), StructField("k", IntegerType())])


class PlainTableSink(TableSink):
    """Batches are lists of changes."""

    def _stored(self, batch: Any) -> Any:
        return batch

    def _changes(self, batch: Any) -> list[Change]:
        changes: list[Change] = batch.changes
        return changes


class PlainDeltaSink(DeltaSink):
    """Stages with pyarrow what Spark would."""

    def _stage(self, batch: Any, batch_id: int) -> Path:
        self._schema = SCHEMA.jsonValue()
        self._check(self._table(), self._schema)
        staging = self.hidden / f"staging-{batch_id}-{uuid.uuid4().hex[:8]}"
        for k in range(3):
            path = staging / f"k={k}" / "part.parquet"
            path.parent.mkdir(parents=True)
            mine = [one.values[0] for one in batch.changes if one.values[1] % 3 == k]
            pyarrow.parquet.write_table(pa.table({"n": pa.array(mine, pa.int32())}), path)
            time.sleep(0.05)
        return staging


def batch_of(number: int, keys: int) -> Any:
    """Every number once; of a key the greatest number comes last."""
    numbers = range(number * ROWS, (number + 1) * ROWS)
    changes = [Change((n, n % keys)) for n in numbers]
    return SimpleNamespace(schema=SCHEMA, columns=SCHEMA.names, changes=changes)


def main(kind: str, place: str, checkpoint: str, batches: int, keys: int) -> None:
    """Batches from the last that was noted on; what a table refuses is written down, once for each
    batch.
    """
    noted = Path(checkpoint)
    sink: Any
    if kind == "delta":
        sink = PlainDeltaSink(delta(place, by="k"), WRITER)
    else:
        key = "k" if kind == "postgresql" else None
        sink = PlainTableSink(table(place, "target", key=key), WRITER)
    number = json.loads(noted.read_text()) + 1 if noted.exists() else 0
    opened = False
    while number < batches:
        try:
            if not opened:
                sink.open()
            opened = True
            identity = BatchIdentity("query", f"offsets {number}")
            written = sink.write(batch_of(number, keys), number, identity)
        except Unavailable:
            sink.close()
            opened = False
            time.sleep(0.1)
            continue
        note(noted.with_name(f"refused-{number}"), [one.value for one in written.refused])
        note(noted, number)
        number += 1
    sink.close()


def note(path: Path, value: object) -> None:
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps(value))
    aside.rename(path)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
