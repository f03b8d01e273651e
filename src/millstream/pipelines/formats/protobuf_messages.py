"""Protobuf messages: their classes from descriptors, their fields as Spark types.

A descriptor set is sent to the workers as bytes, so they need neither its module nor its file.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from pyspark.sql import types as T

from millstream.pipelines.errors import PipelineError, nearest

KNOWN = "google.protobuf."
TIMESTAMP = KNOWN + "Timestamp"
# Messages with one optional value, and messages that are JSON.
WRAPPERS = frozenset(
    KNOWN + name + "Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
JSON_LIKE = frozenset(KNOWN + name for name in ("Struct", "Value", "ListValue"))

_DOUBLE, _FLOAT, _INT64, _UINT64, _INT32, _FIXED64, _FIXED32, _BOOL, _STRING = range(1, 10)
_BYTES, _UINT32, ENUM, _SFIXED32, _SFIXED64, _SINT32, _SINT64 = range(12, 19)
_SCALARS: dict[int, T.DataType] = {
    _DOUBLE: T.DoubleType(),
    _FLOAT: T.FloatType(),
    _BOOL: T.BooleanType(),
    _STRING: T.StringType(),
    _BYTES: T.BinaryType(),
    ENUM: T.StringType(),
    **dict.fromkeys((_INT32, _SINT32, _SFIXED32), T.IntegerType()),
    **dict.fromkeys((_UINT32, _FIXED32, _INT64, _SINT64, _SFIXED64), T.LongType()),
    **dict.fromkeys((_UINT64, _FIXED64), T.DecimalType(20, 0)),
}


def files_of_class(name: str) -> tuple[bytes, str]:
    """Return the descriptor set and the full name of a compiled class, ``module:Message``."""
    module, _, attribute = name.partition(":")
    try:
        target: Any = import_module(module)
        for part in attribute.split("."):
            target = getattr(target, part)
        descriptor = target.DESCRIPTOR
    except (ImportError, AttributeError) as error:
        raise PipelineError(
            f"the protobuf message {name!r} cannot be imported: {error}",
            hint="name it module:Message, or give descriptor=FILE "
            "(protoc --include_imports --descriptor_set_out=FILE)",
        ) from None
    files: dict[str, Any] = {}
    _collect(descriptor.file, files)
    return _serialized(files.values()), descriptor.full_name


def files_of_set(path: str, message: str) -> tuple[bytes, str]:
    """Return the descriptor set of a file, and the full name of a message in it.

    The name may lack its package.
    """
    try:
        data = Path(path).read_bytes()
        names = _names(descriptor_pb2.FileDescriptorSet.FromString(data))
    except OSError as error:
        raise PipelineError(
            f"the descriptor set {path!r} cannot be read: {error.strerror}"
        ) from None
    except DecodeError:
        raise PipelineError(
            f"{path!r} is not a descriptor set",
            hint="make one with protoc --include_imports --descriptor_set_out=FILE",
        ) from None
    short = [name for name in names if name == message or name.endswith("." + message)]
    if len(short) != 1:
        raise PipelineError(
            f"{path} has no message {message!r}"
            if not short
            else f"{message!r} is the name of several messages",
            hint=nearest(message, names) if not short else f"choose from {', '.join(short)}",
        )
    return data, short[0]


@lru_cache(maxsize=64)
def message_class(files: bytes, name: str) -> Any:
    """Return the class of a message, made once in each process."""
    pool = descriptor_pool.DescriptorPool()
    left = {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(files).file}
    for file in list(left.values()):
        _add(pool, file.name, left)
    try:
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except KeyError:
        raise PipelineError(f"the descriptor set has no message {name!r}") from None


def _add(pool: Any, name: str, left: dict[str, Any]) -> None:
    """Add a file after those that it imports. Protobuf's own files need not be in the set."""
    file = left.pop(name, None)
    if file is None:
        return
    for needed in file.dependency:
        if needed not in left and needed.startswith("google/protobuf/"):
            left.setdefault(needed, _own_file(needed))
        _add(pool, needed, left)
    try:
        pool.Add(file)
    except TypeError as error:
        raise PipelineError(
            f"the descriptor set cannot be used: {error}",
            hint="make it with protoc --include_imports",
        ) from None


def _own_file(name: str) -> Any:
    import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    file = descriptor_pb2.FileDescriptorProto()
    descriptor_pool.Default().FindFileByName(name).CopyToProto(file)
    return file


def _collect(file: Any, files: dict[str, Any]) -> None:
    if file.name not in files:
        for dependency in file.dependencies:
            _collect(dependency, files)
        files[file.name] = file


def _serialized(files: Iterable[Any]) -> bytes:
    descriptors = descriptor_pb2.FileDescriptorSet()
    for file in files:
        file.CopyToProto(descriptors.file.add())
    data: bytes = descriptors.SerializeToString()
    return data


def _names(files: Any) -> list[str]:
    names: list[str] = []

    def take(messages: Any, prefix: str) -> None:
        for message in messages:
            names.append(prefix + message.name)
            take(message.nested_type, f"{prefix}{message.name}.")

    for file in files.file:
        take(file.message_type, f"{file.package}." if file.package else "")
    return names


def is_repeated(field: Any) -> bool:
    # protobuf 6 and later
    repeated = getattr(field, "is_repeated", None)
    return field.label == 3 if repeated is None else bool(repeated)


def is_map(field: Any) -> bool:
    return bool(
        is_repeated(field)
        and field.message_type is not None
        and field.message_type.GetOptions().map_entry
    )


def columns(descriptor: Any, within: tuple[str, ...] = ()) -> T.StructType:
    """Return the fields of a message as columns.

    A field without presence is never null, because protobuf reads its default.
    """
    if descriptor.full_name in within:
        raise PipelineError(
            f"the protobuf message {descriptor.full_name} contains itself, which a column cannot",
            hint='use value="raw" and decode it in the flow',
        )
    inside = (*within, descriptor.full_name)
    return T.StructType(
        [
            T.StructField(field.name, _field_type(field, inside), bool(field.has_presence))
            for field in descriptor.fields
        ]
    )


def _field_type(field: Any, within: tuple[str, ...]) -> T.DataType:
    if is_map(field):
        entry = field.message_type.fields_by_name
        return T.MapType(
            _single_type(entry["key"], within), _single_type(entry["value"], within), False
        )
    kind = _single_type(field, within)
    return T.ArrayType(kind, False) if is_repeated(field) else kind


def _single_type(field: Any, within: tuple[str, ...]) -> T.DataType:
    message = field.message_type
    if message is None:
        return _SCALARS[field.type]
    if message.full_name == TIMESTAMP:
        return T.TimestampType()
    if message.full_name in WRAPPERS:
        return _SCALARS[message.fields_by_name["value"].type]
    if message.full_name in JSON_LIKE:
        return T.StringType()
    return columns(message, within)
