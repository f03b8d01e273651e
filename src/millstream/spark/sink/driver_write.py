"""Collect the rows of a small batch to the driver, without a Python worker.

For a batch of a few rows, the round trip through a Python worker takes longer than everything else.

The size of a batch is not known before it has run. So a batch is expected to be small if the
previous one was. The plan itself counts its rows and fails if they are too many. Then the batch
runs again on the normal path, as it does after a task failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from millstream.spark.sink.failures import from_job

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

# Maximum rows that a partition may send to the driver, and maximum bytes of each.
MAX_ROWS = 1000
MAX_ROW_BYTES = 64 << 10
# Maximum total size of the record batches of a small micro-batch.
SMALL_BYTES = 64 << 10
# Number of batches on the normal path after one that was larger than expected. A query whose
# batches vary would otherwise run many of them twice.
PAUSE = 100

TOO_MANY = "more rows than the driver takes"
# Counts the rows of a partition from 0: the number of the partition is in the bits above.
_NUMBER = "(monotonically_increasing_id() & 8589934591)"
_SIZES = {
    "value": "octet_length({})",
    "key": "octet_length({})",
    "headers": "octet_length(to_json({}))",
}


class DriverCollect:
    """Predicts whether the next batch of a sink is small, and collects it if so."""

    def __init__(self) -> None:
        self._expects_small = False
        self._pause = 0

    def learn(self, size: int) -> None:
        """Take the encoded bytes of the last batch as the prediction for the next one."""
        self._pause = max(0, self._pause - 1)
        self._expects_small = size <= SMALL_BYTES and not self._pause

    def collect(self, rows: DataFrame, columns: Mapping[str, str]) -> list[pa.RecordBatch] | None:
        """Return the rows of a batch, or None if it is not expected to be small, or is not small.

        ``columns`` maps our column names to those of the batch.
        """
        if not self._expects_small:
            return None
        try:
            collected: list[pa.RecordBatch] = (
                rows.selectExpr(*guarded(columns)).toArrow().to_batches()
            )
            return collected
        except Exception as error:
            if TOO_MANY not in str(error):
                raise from_job(error) from error
        self._pause = PAUSE
        return None


def guarded(columns: Mapping[str, str]) -> list[str]:
    """Return the columns of a query that fails if a partition has too many rows for the driver."""
    quoted = {name: "`" + actual.replace("`", "``") + "`" for name, actual in columns.items()}
    sizes = [
        f"ifnull({size.format(quoted[name])}, 0)" for name, size in _SIZES.items() if name in quoted
    ]
    small = f"{_NUMBER} < {MAX_ROWS} AND {' + '.join(sizes)} <= {MAX_ROW_BYTES}"
    value = quoted.pop("value")
    return [f"IF({small}, {value}, raise_error('{TOO_MANY}')) AS {value}", *quoted.values()]
