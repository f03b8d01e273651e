"""Where the rows of a stream come from when it is no topic: files, tables of databases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from millstream.pipelines.formats.registry import RECORD, RECORD_COLUMNS, Explain

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SOURCE = "source"
"""A field of ``_record`` beside those of a topic's records: the file or table of a row that does not parse."""


class Origin(ABC):
    """A source of rows that Spark reads as a stream, with its progress in the checkpoint of each flow."""

    @abstractmethod
    def rows(self, spark: SparkSession) -> DataFrame:
        """The columns, ``_error`` (null where a row is fine) and ``_record``, as a value format decodes them."""

    def explainer(self) -> Explain | None:
        """A function that says more about a bad ``_record.value`` than ``_error`` does."""
        return None

    @abstractmethod
    def __str__(self) -> str:
        """What is read, as users are told and as checkpoints remember it."""


def record(
    *, value: Column, source: Column, timestamp: Column | None = None, key: Column | None = None
) -> Column:
    """``_record`` of a row that did not come from a topic."""
    from pyspark.sql import functions as F

    known = {"value": value, "timestamp": timestamp, "key": key}
    fields = [
        (F.lit(None) if (one := known.get(name)) is None else one).cast(kind).alias(name)
        for name, kind in RECORD_COLUMNS.items()
    ]
    return F.struct(*fields, source.cast("string").alias(SOURCE)).alias(RECORD)
