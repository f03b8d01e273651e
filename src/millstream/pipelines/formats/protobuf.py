"""Protobuf: a value is one message. Its descriptor is the schema.

``message="module:Message"`` names a compiled class. ``message="package.Message"`` with
``descriptor=FILE`` names a message of a descriptor set (``protoc --include_imports
--descriptor_set_out=FILE``). ``confluent=True`` works as for Avro. Protobuf accepts many values: an
empty value is a message with defaults, and unknown fields are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, ClassVar

from google.protobuf.message import DecodeError
from pyspark.sql.types import StructType

from millstream.pipelines.errors import PipelineError
from millstream.pipelines.formats.arrow import (
    ArrowFormat,
    Read,
    Row,
    Unreadable,
    Write,
    check_columns,
)
from millstream.pipelines.formats.confluent import skip_header, skip_message_indexes, with_header
from millstream.pipelines.formats.protobuf_messages import (
    columns,
    files_of_class,
    files_of_set,
    message_class,
)
from millstream.pipelines.formats.protobuf_values import fill, getters
from millstream.pipelines.formats.registry import check_names

FIRST_MESSAGE = b"\x00"


class ProtobufFormat(ArrowFormat):
    """The Protobuf format; see above for its options."""

    name = "protobuf"
    OPTIONS: ClassVar[tuple[str, ...]] = ("message", "descriptor", "confluent", "schema_id")

    def __init__(
        self,
        schema: Any = None,
        *,
        message: str | None = None,
        descriptor: str | None = None,
        confluent: bool = False,
        schema_id: int | None = None,
    ) -> None:
        if schema is not None:
            raise PipelineError(
                "value format protobuf takes its schema from the message",
                hint='give message="module:Message" instead',
            )
        if message is None or (descriptor is None and ":" not in message):
            raise PipelineError(
                "value format protobuf needs a message",
                hint='give message="module:Message", or message="package.Message" and descriptor=FILE',
            )
        message_files = (
            files_of_class(message) if descriptor is None else files_of_set(descriptor, message)
        )
        self._files, self._message = message_files
        self.confluent = confluent
        self.schema_id = schema_id
        self.schema = check_names(columns(message_class(*message_files).DESCRIPTOR))

    def reader(self) -> Read:
        return partial(read, files=self._files, name=self._message, confluent=self.confluent)

    def writer(self, rows: StructType) -> Write:
        if self.confluent and self.schema_id is None:
            raise PipelineError(
                "writing protobuf with confluent=True needs the schema id",
                hint="give it as schema_id=N",
            )
        check_columns("protobuf", rows.names, self.schema.names, ())
        schema_id = self.schema_id if self.confluent else None
        return partial(write, files=self._files, name=self._message, schema_id=schema_id)


@lru_cache(maxsize=64)
def _getters(files: bytes, name: str) -> dict[str, Callable[[Any], Any]]:
    return getters(message_class(files, name).DESCRIPTOR)


def read(value: bytes, *, files: bytes, name: str, confluent: bool) -> Row:
    """Decode a value. Raise Unreadable if it is not such a message."""
    data = skip_message_indexes(skip_header(value)[1]) if confluent else value
    message = message_class(files, name)()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise Unreadable(f"not a message {name}: its {len(value)} bytes cannot be parsed") from None
    if not message.IsInitialized():
        missing = ", ".join(message.FindInitializationErrors())
        raise Unreadable(f"incomplete message {name}: {missing} is missing")
    return {field: get(message) for field, get in _getters(files, name).items()}


def write(row: Row, *, files: bytes, name: str, schema_id: int | None) -> bytes:
    message = message_class(files, name)()
    fill(message, row)
    data: bytes = message.SerializeToString()
    return data if schema_id is None else with_header(schema_id, data, FIRST_MESSAGE)
