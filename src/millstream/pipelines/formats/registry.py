"""Value formats: the bytes of a record to columns and back, by the name of the format.

    orders = value_format("json", "id string NOT NULL, amount decimal(12,2)")
    rows = orders.decode(spark.readStream.format("millstream")...load())
    good = rows.where("_error IS NULL")        # the columns of the schema
    records = orders.encode(good.drop("_error", "_record"), key="id")      # key, value: what a sink takes

``decode`` never raises for what a record holds and never makes a null of it: a value that does not fit has its reason in
``_error``. The record as it was read is kept aside in ``_record`` (a struct, so that a field may be called ``key`` or
``timestamp``); Spark carries it only as far as somebody uses it.
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
"""Headers that rows are to be sent with: passed on by ``encode``, and no part of the value."""
# What a source reads, in the order of Spark's Kafka connector; a column that it leaves out is null.
RECORD_COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "headers": "array<struct<key:string,value:binary>>",
}
# What a sink takes beside key and value, and what `encode` therefore passes on from rows of raw and string.
SINK_COLUMNS = ("headers", "topic", "partition", "timestamp")
NULL_VALUE = "the value is null"
# Formats whose rows are the records as they are.
UNPARSED = frozenset({"string", "raw"})
# Without it Spark writes milliseconds and drops the rest.
WRITTEN_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}

Tombstones = Literal["error", "keep", "drop"]
TOMBSTONES: tuple[Tombstones, ...] = get_args(Tombstones)
Key = str | Sequence[str] | None
Explain = Callable[[bytes], str | None]


class ValueFormat(ABC):
    """One format with its schema. ``schema`` is what ``decode`` makes of a value."""

    name: ClassVar[str]
    schema: StructType

    @abstractmethod
    def decode(self, records: DataFrame, *, tombstones: Tombstones = "error") -> DataFrame:
        """The columns of the schema, ``_error`` (null where the value is fine) and ``_record``.

        A null value is an error unless ``tombstones`` says to ``keep`` it (all columns null) or to ``drop`` it.
        """

    @abstractmethod
    def encode(self, rows: DataFrame, *, key: Key = None) -> DataFrame:
        """``key`` and ``value`` of rows, and ``headers`` where they have ``HEADERS``; all other columns are part of the value, those
        of the key too."""

    def proven_column(self) -> StructField | None:
        """A column that has the reader of a topic decode, on the way, the values that are beyond doubt; None if it cannot."""
        return None

    def explainer(self) -> Explain | None:
        """A function, sent to the workers, that says more about a bad value than ``_error`` does; None if nobody can."""
        return None


class Row(NamedTuple):
    """A format: where its class is."""

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
    """The options of a format."""
    return tuple(_kind(name).OPTIONS)


def _kind(name: str) -> Any:
    row = _BY_NAME.get(name)
    if row is None:
        raise PipelineError(f"there is no value format {name!r}", hint=nearest(name, _BY_NAME))
    return getattr(import_module(f"millstream.pipelines.formats.{row.module}"), row.kind)


def value_format(name: str, schema: Any = None, **options: Any) -> ValueFormat:
    """The format of this name; a PipelineError for a name, a schema or an option that there is not."""
    kind = _kind(name)
    known = kind.OPTIONS
    for option in options:
        if option not in known:
            hint = nearest(option, known) if known else f"{name} takes no options"
            raise PipelineError(f"value format {name} has no option {option!r}", hint=hint)
    made: ValueFormat = kind(schema, **options)
    return made


def struct_type(schema: Any, *, format: str) -> StructType:
    """A schema given as DDL text or as a StructType; a PipelineError that says what Spark makes of it."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import DataType, StructType

    if schema is None:
        raise PipelineError(
            f"value format {format} needs a schema", hint='for example schema="id string NOT NULL, n int"'
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
                f"a field cannot be called {name}", hint="that column is taken; rename the field"
            )
    if not schema.names:
        raise PipelineError("the schema has no fields", hint='for example schema="id string NOT NULL, n int"')
    return schema


def first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def record_struct(records: DataFrame) -> Column:
    """The record as it was read, as one column."""
    from pyspark.sql import functions as F

    names = set(records.columns)
    if "value" not in names:
        raise PipelineError(
            "there is no column `value` to decode", hint="decode what a millstream source reads"
        )
    return F.struct(
        *[
            (F.col(name) if name in names else F.lit(None)).cast(kind).alias(name)
            for name, kind in RECORD_COLUMNS.items()
        ]
    ).alias(RECORD)


def once(parsed: Column) -> Column:
    """A column that Spark computes once per row.

    Where a filter on the result meets an ordinary column, Spark moves the filter below it, and parses once for the filter and
    again for each mention. A column that it takes for non-deterministic stays in one piece.
    """
    from pyspark.sql import functions as F

    return F.when(F.spark_partition_id() >= 0, parsed)


def with_tombstones(error: Column, tombstones: Tombstones) -> Column:
    """The error of a row, given what null values are taken for."""
    from pyspark.sql import functions as F

    null = F.lit(NULL_VALUE if tombstones == "error" else None).cast("string")
    return F.when(F.col(f"{RECORD}.value").isNull(), null).otherwise(error)


def decode_records(format: ValueFormat, records: DataFrame, tombstones: Tombstones | None) -> DataFrame:
    """Decode what a stream reads. Flows and dead letters both do it here, so that they agree about what is bad.

    None is the meaning of a null value without a declaration. With a key it is a tombstone, which is normal in a topic that is keyed:
    it has no fields, so there is no row, and nothing is wrong. Without a key it is an error. ``string`` and ``raw`` hand both on.
    """
    if tombstones is not None:
        return format.decode(records, tombstones=tombstones)
    if format.name in UNPARSED or "key" not in records.columns:
        return format.decode(records)
    return format.decode(records.where("value IS NOT NULL OR key IS NULL"))


def without_dropped(rows: DataFrame, tombstones: Tombstones) -> DataFrame:
    return rows.where(f"{RECORD}.value IS NOT NULL") if tombstones == "drop" else rows


def key_column(rows: DataFrame, key: Key, pack: Callable[[Column], Column] | None = None) -> Column:
    """The key of rows: one column as its bytes or text, several as a JSON object (or what ``pack`` makes of them)."""
    from pyspark.sql import functions as F

    names = [key] if isinstance(key, str) else list(key or ())
    for name in names:
        if name not in rows.columns:
            raise PipelineError(
                f"there is no column {name!r} to be the key", hint=nearest(name, rows.columns)
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
    """A column as bytes: its own, or those of its text; of what has no text, its JSON."""
    from pyspark.sql import functions as F

    kind = rows.schema[name].dataType.typeName()
    column = F.col(quoted(name))
    if kind == "binary":
        return column
    has_parts = kind in ("struct", "array", "map", "variant")
    return (F.to_json(column, WRITTEN_TIMES) if has_parts else column.cast("string")).cast("binary")


def value_fields(rows: DataFrame) -> Column:
    """What the value is made of, as one column."""
    from pyspark.sql import functions as F

    return F.struct(*[F.col(quoted(name)) for name in rows.columns if name != HEADERS])


def sent_headers(rows: DataFrame) -> list[Column]:
    """The column of headers, where rows have one."""
    from pyspark.sql import functions as F

    return [F.col(HEADERS).alias("headers")] if HEADERS in rows.columns else []


def quoted(name: str) -> str:
    """A column name as Spark's functions want it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def options_text(options: Mapping[str, Any]) -> dict[str, str]:
    """Options of Spark's functions as the texts that they want."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()
    }
