"""Origins of streams other than topics: files and tables of databases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from millstream.pipelines.formats.registry import RECORD, RECORD_COLUMNS, Explain

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SOURCE = "source"
"""An additional field of ``_record``: the file or table of a row that does not parse."""


class Origin(ABC):
    """A source of rows that Spark reads as a stream. Its progress is in each flow's checkpoint."""

    @abstractmethod
    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the columns, ``_error`` (null for good rows) and ``_record``, as formats do."""

    def explainer(self) -> Explain | None:
        """Return a function that explains a bad ``_record.value`` better than ``_error``."""
        return None

    @abstractmethod
    def __str__(self) -> str:
        """Return a name for users and for checkpoints."""


def record(
    *, value: Column, source: Column, timestamp: Column | None = None, key: Column | None = None
) -> Column:
    """Return ``_record`` of a row that did not come from a topic."""
    from pyspark.sql import functions as F

    known = {"value": value, "timestamp": timestamp, "key": key}
    fields = [
        (F.lit(None) if (column := known.get(name)) is None else column).cast(kind).alias(name)
        for name, kind in RECORD_COLUMNS.items()
    ]
    return F.struct(*fields, source.cast("string").alias(SOURCE)).alias(RECORD)
