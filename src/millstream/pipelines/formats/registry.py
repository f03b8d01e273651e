"""Value formats by name: they decode the bytes of a record to columns, and encode columns.

    orders = value_format("json", "id string NOT NULL, amount decimal(12,2)")
    rows = orders.decode(spark.readStream.format("millstream")...load())
    good = rows.where("_error IS NULL")
    records = orders.encode(good.drop("_error", "_record"), key="id")

``decode`` neither raises for a bad value nor turns it into a null: the reason is in ``_error``. The
record is kept in ``_record``, a struct, so that fields may be called ``key`` or ``timestamp``.
Spark drops it if it is not used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

from millstream.pipelines.errors import PipelineError, nearest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField, StructType

ERROR = "_error"
RECORD = "_record"
HEADERS = "_sent_headers"
"""A column with the headers of a record. ``encode`` passes it on, outside of the value."""
# The columns of a source, in the order of Spark's Kafka connector. Missing columns are null.
RECORD_COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "headers": "array<struct<key:string,value:binary>>",
}
# Further columns of a sink, which `encode` of raw and string therefore passes on.
SINK_COLUMNS = ("headers", "topic", "partition", "timestamp")
NULL_VALUE = "the value is null"
# Formats whose rows are the records.
UNPARSED = frozenset({"string", "raw"})
# Without these formats Spark writes only milliseconds.
WRITTEN_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}

Tombstones = Literal["error", "keep", "drop"]
TOMBSTONES: tuple[Tombstones, ...] = get_args(Tombstones)
Key = str | Sequence[str] | None
Explain = Callable[[bytes], str | None]


class ValueFormat(ABC):
    """A format with its schema, which has the columns that ``decode`` returns."""

    name: ClassVar[str]
    schema: StructType

    @abstractmethod
    def decode(self, records: DataFrame, *, tombstones: Tombstones = "error") -> DataFrame:
        """Return the columns of the schema, ``_error`` (null for good values) and ``_record``.

        A null value is an error, unless ``tombstones`` is ``keep`` (all columns are null) or
        ``drop``.
        """

    @abstractmethod
    def encode(self, rows: DataFrame, *, key: Key = None) -> DataFrame:
        """Return ``key`` and ``value`` of rows, and ``headers`` if they have ``HEADERS``.

        All other columns, including those of the key, are part of the value.
        """

    def proven_column(self) -> StructField | None:
        """Return a column that makes the source decode unambiguous values itself, or None."""
        return None

    def explainer(self) -> Explain | None:
        """Return a function for the workers that explains a bad value better than ``_error``."""
        return None


class Row(NamedTuple):
    """A format and the module of its class."""

    name: str
    module: str
    kind: str


FORMATS = (
    Row("json", "json", "JsonFormat"),
    Row("avro", "avro", "AvroFormat"),
    Row("protobuf", "protobuf", "ProtobufFormat"),
    Row("string", "plain", "StringFormat"),
    Row("raw", "plain", "RawFormat"),
)
_BY_NAME = {row.name: row for row in FORMATS}


def format_names() -> tuple[str, ...]:
    return tuple(_BY_NAME)


def option_names(name: str) -> tuple[str, ...]:
    """Return the options of a format."""
    return tuple(_kind(name).OPTIONS)


def _kind(name: str) -> Any:
    row = _BY_NAME.get(name)
    if row is None:
        raise PipelineError(f"value format {name!r} does not exist", hint=nearest(name, _BY_NAME))
    return getattr(import_module(f"millstream.pipelines.formats.{row.module}"), row.kind)


def value_format(name: str, schema: Any = None, **options: Any) -> ValueFormat:
    """Return a format. Raise PipelineError for an unknown name or option, or a bad schema."""
    kind = _kind(name)
    known = kind.OPTIONS
    for option in options:
        if option not in known:
            hint = nearest(option, known) if known else f"{name} takes no options"
            raise PipelineError(f"value format {name} has no option {option!r}", hint=hint)
    format: ValueFormat = kind(schema, **options)
    return format


def struct_type(schema: Any, *, format: str) -> StructType:
    """Parse a schema from DDL text or a StructType. Raise PipelineError with Spark's reason."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import DataType, StructType

    if schema is None:
        raise PipelineError(
            f"value format {format} needs a schema",
            hint='for example schema="id string NOT NULL, n int"',
        )
    if isinstance(schema, str):
        try:
            schema = DataType.fromDDL(schema)
        except PySparkException as error:
            raise PipelineError(
                f"the schema {schema!r} cannot be read: {first_line(error)}",
                hint='write it as in CREATE TABLE: "id string NOT NULL, amount decimal(12,2)"',
            ) from None
    if not isinstance(schema, StructType):
        raise PipelineError(f"a schema is DDL text or a StructType, not {schema!r}")
    return check_names(schema)


def check_names(schema: StructType) -> StructType:
    for name in (ERROR, RECORD):
        if name in schema.names:
            raise PipelineError(
                f"a field cannot be called {name}", hint="the name is reserved; rename the field"
            )
    if not schema.names:
        raise PipelineError(
            "the schema has no fields", hint='for example schema="id string NOT NULL, n int"'
        )
    return schema


def first_line(error: BaseException) -> str:
    return next(
        (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
    )


def record_struct(records: DataFrame) -> Column:
    """Return the whole record as one column."""
    from pyspark.sql import functions as F

    names = set(records.columns)
    if "value" not in names:
        raise PipelineError(
            "the rows have no column `value` to decode",
            hint="decode the rows of a millstream source",
        )
    return F.struct(
        *[
            (F.col(name) if name in names else F.lit(None)).cast(kind).alias(name)
            for name, kind in RECORD_COLUMNS.items()
        ]
    ).alias(RECORD)


def once(parsed: Column) -> Column:
    """Return a column that Spark computes once per row.

    Spark pushes a filter on an ordinary column below it, and then parses once for the filter and
    again for each use. It does not split a column that looks non-deterministic.
    """
    from pyspark.sql import functions as F

    return F.when(F.spark_partition_id() >= 0, parsed)


def with_tombstones(error: Column, tombstones: Tombstones) -> Column:
    """Return the error of a row, which depends on the meaning of null values."""
    from pyspark.sql import functions as F

    null = F.lit(NULL_VALUE if tombstones == "error" else None).cast("string")
    return F.when(F.col(f"{RECORD}.value").isNull(), null).otherwise(error)


def decode_records(
    format: ValueFormat, records: DataFrame, tombstones: Tombstones | None
) -> DataFrame:
    """Decode the records of a stream. Flows and dead letters both use this, so they agree.

    None is the default meaning of a null value. With a key it is a tombstone, which is normal in a
    keyed topic: it gives no row and no error. Without a key it is an error. ``string`` and ``raw``
    pass on both.
    """
    if tombstones is not None:
        return format.decode(records, tombstones=tombstones)
    if format.name in UNPARSED or "key" not in records.columns:
        return format.decode(records)
    return format.decode(records.where("value IS NOT NULL OR key IS NULL"))


def without_dropped(rows: DataFrame, tombstones: Tombstones) -> DataFrame:
    return rows.where(f"{RECORD}.value IS NOT NULL") if tombstones == "drop" else rows


def key_column(rows: DataFrame, key: Key, pack: Callable[[Column], Column] | None = None) -> Column:
    """Return the key: one column as bytes or text, several as JSON (or packed by ``pack``)."""
    from pyspark.sql import functions as F

    names = [key] if isinstance(key, str) else list(key or ())
    for name in names:
        if name not in rows.columns:
            raise PipelineError(
                f"the key column {name!r} does not exist", hint=nearest(name, rows.columns)
            )
    if not names:
        return F.lit(None).cast("binary").alias("key")
    kind = rows.schema[names[0]].dataType.typeName()
    if len(names) == 1 and kind not in ("struct", "array", "map", "variant"):
        return text_or_bytes(rows, names[0]).alias("key")
    packed = F.struct(*[F.col(quoted(name)) for name in names])
    packed_text = F.to_json(packed, WRITTEN_TIMES) if pack is None else pack(packed)
    return packed_text.cast("binary").alias("key")


def text_or_bytes(rows: DataFrame, name: str) -> Column:
    """Return a column as bytes: its own, those of its text, or of its JSON for nested types."""
    from pyspark.sql import functions as F

    kind = rows.schema[name].dataType.typeName()
    column = F.col(quoted(name))
    if kind == "binary":
        return column
    has_parts = kind in ("struct", "array", "map", "variant")
    return (F.to_json(column, WRITTEN_TIMES) if has_parts else column.cast("string")).cast("binary")


def value_fields(rows: DataFrame) -> Column:
    """Return the columns of the value as one column."""
    from pyspark.sql import functions as F

    return F.struct(*[F.col(quoted(name)) for name in rows.columns if name != HEADERS])


def sent_headers(rows: DataFrame) -> list[Column]:
    """Return the column of headers, if rows have one."""
    from pyspark.sql import functions as F

    return [F.col(HEADERS).alias("headers")] if HEADERS in rows.columns else []


def quoted(name: str) -> str:
    """Quote a column name for Spark's functions."""
    return "`" + name.replace("`", "``") + "`"


def options_text(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options for Spark's functions, which need texts."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }
