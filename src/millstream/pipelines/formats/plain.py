"""Formats without a schema: ``raw`` (bytes) and ``string`` (text in UTF-8).

Rows have the columns of the source: key, value, topic, partition, offset, timestamp and so on.
Writing takes ``value``, and ``key``, ``headers``, ``topic``, ``partition`` and ``timestamp`` if the
rows have them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from millstream.pipelines.errors import PipelineError
from millstream.pipelines.formats.registry import (
    ERROR,
    RECORD,
    RECORD_COLUMNS,
    SINK_COLUMNS,
    Key,
    Tombstones,
    ValueFormat,
    key_column,
    record_struct,
    sent_headers,
    with_tombstones,
    without_dropped,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NOT_UTF8 = "the value is not valid UTF-8"


class RawFormat(ValueFormat):
    """Bytes. Every value is good."""

    name = "raw"
    OPTIONS: ClassVar[tuple[str, ...]] = ()
    kind: ClassVar[str] = "binary"

    def __init__(self, schema: Any = None) -> None:
        from pyspark.sql.types import DataType, StructType

        if schema is not None:
            raise PipelineError(
                f"value format {self.name} has no schema",
                hint="omit it, or use json, avro or protobuf",
            )
        columns = ", ".join(
            f"{name} {self.kind if name == 'value' else kind}"
            for name, kind in RECORD_COLUMNS.items()
        )
        parsed = DataType.fromDDL(columns)
        assert isinstance(parsed, StructType)
        self.schema = parsed

    def decode(self, records: DataFrame, *, tombstones: Tombstones = "keep") -> DataFrame:
        from pyspark.sql import functions as F

        with_record = records.select("*", record_struct(records))
        fields = [
            self._value().alias(name) if name == "value" else F.col(name)
            for name in records.columns
            if name not in (ERROR, RECORD)
        ]
        error = with_tombstones(self._error(), tombstones).alias(ERROR)
        return without_dropped(with_record.select(*fields, error, RECORD), tombstones)

    def encode(self, rows: DataFrame, *, key: Key = None) -> DataFrame:
        from pyspark.sql import functions as F

        if "value" not in rows.columns:
            raise PipelineError(
                f"value format {self.name} needs a column `value`",
                hint='rename a column, or use value="json"',
            )
        if key is None and "key" in rows.columns:
            key = "key"
        headers = sent_headers(rows)
        taken = ("headers",) if headers else ()
        others = [
            F.col(name) for name in SINK_COLUMNS if name in rows.columns and name not in taken
        ]
        return rows.select(
            key_column(rows, key), self._bytes(rows).alias("value"), *others, *headers
        )

    def _value(self) -> Column:
        from pyspark.sql import functions as F

        return F.col(f"{RECORD}.value")

    def _error(self) -> Column:
        from pyspark.sql import functions as F

        return F.lit(None).cast("string")

    def _bytes(self, rows: DataFrame) -> Column:
        from pyspark.sql import functions as F

        kind = rows.schema["value"].dataType.typeName()
        if kind not in ("binary", "string"):
            raise PipelineError(
                f"value format raw writes bytes or text, but `value` is {kind}",
                hint='cast it, or use value="string" or value="json"',
            )
        return F.col("value").cast("binary")


class StringFormat(RawFormat):
    """Text. A value that is not UTF-8 is an error."""

    name = "string"
    kind = "string"

    def _value(self) -> Column:
        from pyspark.sql import functions as F

        return F.try_validate_utf8(F.col(f"{RECORD}.value").cast("string"))

    def _error(self) -> Column:
        from pyspark.sql import functions as F

        valid = F.is_valid_utf8(F.col(f"{RECORD}.value").cast("string"))
        return F.when(~valid, F.lit(NOT_UTF8))

    def _bytes(self, rows: DataFrame) -> Column:
        from pyspark.sql import functions as F

        return F.col("value").cast("string").cast("binary")
