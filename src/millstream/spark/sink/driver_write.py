"""A batch of a few rows comes to the driver by itself: no Python worker is asked, which takes longer than everything else about such a batch.

Nobody knows how many rows a batch has before it has run. So one is only expected to be small when the last one was, and the plan itself refuses to
go on where it is not: then it runs again in the ordinary way, as it does when a task dies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from millstream.spark.sink.failures import from_job

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

# What a partition may send to the driver: this many rows, each of at most so many bytes.
MAX_ROWS = 1000
MAX_ROW_BYTES = 64 << 10
# The record batches of a small micro-batch are smaller than this, all together.
SMALL_BYTES = 64 << 10
# After a surprise, so many batches go the ordinary way: a query that is surprised again and again would run each batch twice.
PAUSE = 100

TOO_MANY = "more rows than the driver takes"
# Counts the rows of a partition from 0: the number of the partition is in the bits above.
_NUMBER = "(monotonically_increasing_id() & 8589934591)"
_SIZES = {"value": "octet_length({})", "key": "octet_length({})", "headers": "octet_length(to_json({}))"}


class FewRows:
    """What one sink expects of its next batch."""

    def __init__(self) -> None:
        self._expected = False
        self._pause = 0

    def learn(self, size: int) -> None:
        """The bytes of the batch that has just been encoded."""
        self._pause = max(0, self._pause - 1)
        self._expected = size <= SMALL_BYTES and not self._pause

    def collect(self, rows: DataFrame, columns: Mapping[str, str]) -> list[pa.RecordBatch] | None:
        """The rows of a batch that is expected to be small, and is; ``columns``: what ours are called in it."""
        if not self._expected:
            return None
        try:
            found: list[pa.RecordBatch] = rows.selectExpr(*guarded(columns)).toArrow().to_batches()
            return found
        except Exception as error:
            if TOO_MANY not in str(error):
                raise from_job(error) from error
        self._pause = PAUSE
        return None


def guarded(columns: Mapping[str, str]) -> list[str]:
    """The columns of a query that fails where a partition has too much for the driver."""
    quoted = {name: "`" + actual.replace("`", "``") + "`" for name, actual in columns.items()}
    sizes = [f"ifnull({how.format(quoted[name])}, 0)" for name, how in _SIZES.items() if name in quoted]
    few = f"{_NUMBER} < {MAX_ROWS} AND {' + '.join(sizes)} <= {MAX_ROW_BYTES}"
    value = quoted.pop("value")
    return [f"IF({few}, {value}, raise_error('{TOO_MANY}')) AS {value}", *quoted.values()]
