"""Avro: a value is one binary record without its schema, read and written by fastavro.

The schema is an Avro schema (a document, JSON text or the path of an .avsc file), or a Spark schema
from which the Avro schema is derived. With ``confluent=True`` a value begins with the five bytes of
Confluent's registry (0, then the schema id). They are required and skipped, and do not change the
schema. Such values are written with ``schema_id``.
"""

from __future__ import annotations

import io
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.types import StructType

from millstream.pipelines.errors import PipelineError
from millstream.pipelines.formats import avro_exact, avro_schemas
from millstream.pipelines.formats.arrow import (
    ArrowFormat,
    Read,
    Row,
    Unreadable,
    Write,
    check_columns,
)
from millstream.pipelines.formats.confluent import skip_header, with_header
from millstream.pipelines.formats.registry import check_names, first_line, struct_type

if TYPE_CHECKING:
    from collections.abc import Mapping


class AvroFormat(ArrowFormat):
    """The Avro format; see above for ``confluent`` and ``schema_id``."""

    name = "avro"
    OPTIONS: ClassVar[tuple[str, ...]] = ("confluent", "schema_id")

    def __init__(
        self, schema: Any = None, *, confluent: bool = False, schema_id: int | None = None
    ) -> None:
        self.confluent = confluent
        self.schema_id = schema_id
        self._avro: Any = None
        if schema is not None:
            loaded = avro_schemas.load(schema)
            spark = struct_type(schema, format=self.name) if loaded is None else None
            self._avro = _parsed(avro_schemas.avro_schema(spark) if spark is not None else loaded)
            self._schema = spark or _columns(self._avro)

    @property
    def schema(self) -> StructType:  # type: ignore[override]
        """The schema to read. Writing needs none, because it is derived from the rows."""
        return self._schema if self._avro is not None else struct_type(None, format=self.name)

    def reader(self) -> Read:
        _ = self.schema
        return partial(read, schema=avro_exact.for_reading(self._avro), confluent=self.confluent)

    def writer(self, rows: StructType) -> Write:
        if self.confluent and self.schema_id is None:
            raise PipelineError(
                "writing Avro with confluent=True needs the schema id",
                hint="give it as schema_id=N",
            )
        schema = _parsed(avro_schemas.avro_schema(rows)) if self._avro is None else self._avro
        known = [field["name"] for field in schema["fields"]]
        needed = [
            field["name"]
            for field in schema["fields"]
            if "default" not in field and not _may_be_null(field)
        ]
        check_columns("Avro", rows.names, known, needed)
        # A schema that was derived from the columns fits all of their values.
        declared = self._avro is not None
        number = self.schema_id if self.confluent else None
        return partial(write, schema=schema, schema_id=number, checked=declared)


def read(value: bytes, *, schema: Any, confluent: bool) -> Row:
    """Decode a value. Raise Unreadable if it is not a record of the schema."""
    import fastavro

    avro_exact.register()
    data = skip_header(value)[1] if confluent else value
    stream = io.BytesIO(data)
    try:
        row = fastavro.schemaless_reader(stream, schema, None)
    except EOFError:
        raise Unreadable(
            f"not a record of the Avro schema: its {len(value)} bytes are truncated"
        ) from None
    # Random bytes can raise almost anything.
    except Exception as error:
        words = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")
        raise Unreadable(f"not a record of the Avro schema ({words})") from None
    if stream.tell() != len(data):
        raise Unreadable(
            f"not a record of the Avro schema: {len(data) - stream.tell()} of {len(value)} bytes "
            "are not part of it"
        )
    assert isinstance(row, dict)
    return row


def write(row: Row, *, schema: Any, schema_id: int | None, checked: bool = True) -> bytes:
    import fastavro

    if checked:
        avro_exact.check(row, schema, {}, "")
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, row)
    return stream.getvalue() if schema_id is None else with_header(schema_id, stream.getvalue())


def _parsed(schema: Any) -> Any:
    """Return the schema as fastavro parses it. Wrong schemas raise many kinds of errors."""
    import fastavro

    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise PipelineError(
            "the Avro schema of a value must be a record",
            hint='{"type": "record", "name": ..., "fields": [...]}',
        )
    try:
        return fastavro.parse_schema(avro_schemas.without_unused_logical_types(schema))
    except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
        raise PipelineError(
            f"the Avro schema cannot be used: {type(error).__name__}: {first_line(error)}"
        ) from None


def _columns(schema: Any) -> StructType:
    kind, _ = avro_schemas.spark_type(schema)
    assert isinstance(kind, StructType)
    return check_names(kind)


def _may_be_null(field: Mapping[str, Any]) -> bool:
    return isinstance(field["type"], list) and "null" in field["type"]
