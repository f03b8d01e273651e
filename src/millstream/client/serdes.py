"""Serialisation of keys and values: ``Producer(value="json")``, ``Consumer(value=Order)``.

A serde converts a value to bytes and back. It is given as a name (``bytes``, ``str``, ``int``,
``json``), as a class (a dataclass, a ``msgspec.Struct``, a generated Protobuf message), as
``avro(schema)``, or as any object with ``encode`` and ``decode``. None (no key, or a tombstone)
stays None with all of them. The packages that a serde needs are imported on first use.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import operator
from collections.abc import Callable
from typing import Any, Protocol

from millstream.client.errors import ClientError

_MAX_SHOWN = 200  # characters of a value in an error message


class Serde(Protocol):
    """A pair of conversions. They never get None."""

    def encode(self, value: Any) -> bytes: ...

    def decode(self, data: bytes) -> Any: ...


SerdeLike = str | type | Serde | None


class Functions:
    """A serde made of two functions."""

    def __init__(self, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> None:
        self.encode = encode
        self.decode = decode


class _Bytes:
    """Bytes only. A str is rejected, and not silently encoded as UTF-8."""

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"bytes are required, not {type(value).__name__}")
        return bytes(value)

    def decode(self, data: bytes) -> bytes:
        return data


class _Text:
    def encode(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"a str is required, not {type(value).__name__}")
        return value.encode()

    def decode(self, data: bytes) -> str:
        return data.decode()


class _Integer:
    """Eight bytes, big-endian, as Kafka's LongSerializer writes them."""

    def encode(self, value: Any) -> bytes:
        if isinstance(value, bool):
            raise TypeError("an integer is required, not bool")
        try:
            # accepts integers of numpy; rejects float, which would lose its fraction, and str
            number = operator.index(value)
        except TypeError:
            raise TypeError(f"an integer is required, not {type(value).__name__}") from None
        try:
            return number.to_bytes(8, "big", signed=True)
        except OverflowError:
            raise ValueError(f"{number} does not fit into 8 bytes") from None

    def decode(self, data: bytes) -> int:
        if len(data) != 8:
            raise ValueError(f"an integer has 8 bytes, not {len(data)}")
        return int.from_bytes(data, "big", signed=True)


class _Json:
    """JSON in UTF-8, without spaces; dataclasses are written as objects.

    NaN and Infinity are rejected, because JSON does not have them.
    """

    def encode(self, value: Any) -> bytes:
        text = json.dumps(
            value, ensure_ascii=False, separators=(",", ":"), default=_plain, allow_nan=False
        )
        return text.encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _typed_json(kind: type) -> Serde:
    """Return a serde for a dataclass or msgspec.Struct as a JSON object.

    Types are checked on both sides. Python does not check them when an object is created, so a
    producer could write records that its own readers reject. Encoded data is therefore decoded
    again before it is sent.
    """
    import msgspec

    encoder = msgspec.json.Encoder()
    decoder: Any = msgspec.json.Decoder(kind)

    def encode(value: Any) -> bytes:
        data = encoder.encode(_checked(kind, value))
        try:
            decoder.decode(data)
        except msgspec.ValidationError as error:
            raise TypeError(_mismatch(kind, value, error)) from None
        if b"null" in data:
            _reject_nan(msgspec.to_builtins(value))
        return data

    return Functions(encode, decoder.decode)


def _mismatch(kind: type, value: Any, error: Exception) -> str:
    """Rewrite msgspec's message for the object: Order.count: expected int, got str."""
    reason, _, path = str(error).partition(" - at ")
    location = kind.__name__ + path.strip("`").removeprefix("$")
    reason = reason.replace("`", "")
    return f"{location}: {reason[:1].lower()}{reason[1:]}, in {_shown(value)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _reject_nan(value: Any) -> None:
    """Raise for NaN and Infinity.

    msgspec writes them as null, which an optional field would read as None.
    """
    json.dumps(value, allow_nan=False, default=str, skipkeys=True)


def _checked(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{kind.__name__} is required, not {type(value).__name__}")
    return value


def protobuf(kind: type) -> Serde:
    """Return the serde of a generated Protobuf class."""

    def decode(data: bytes) -> Any:
        message = kind()
        message.ParseFromString(data)
        return message

    return Functions(lambda message: _checked(kind, message).SerializeToString(), decode)


def avro(schema: str | dict[str, Any] | list[Any]) -> Serde:
    """Return the serde for Avro's binary form of a schema, without a header (`pip install
    fastavro`).
    """
    try:
        import fastavro
        from fastavro.validation import ValidationError, validate
    except ImportError:
        raise ClientError("Avro needs the package fastavro", hint="pip install fastavro") from None
    from io import BytesIO

    parsed = fastavro.parse_schema(json.loads(schema) if isinstance(schema, str) else schema)

    def encode(value: Any) -> bytes:
        """Validate first: the writer alone writes 1.5 as 1, and "no" as true."""
        try:
            validate(value, parsed)
        except ValidationError as error:
            first = error.errors[0]
            location = f"{first.field}: " if getattr(first, "field", "") else ""
            raise TypeError(
                f"{location}expected {_avro_type(first.schema)}, got {_shown(first.datum)}"
            ) from None
        out = BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        return out.getvalue()

    def decode(data: bytes) -> Any:
        source = BytesIO(data)
        try:
            value = fastavro.schemaless_reader(source, parsed, None)
        except EOFError:
            raise ValueError(f"{len(data)} bytes are too few for the Avro schema") from None
        if left := len(data) - source.tell():
            raise ValueError(f"{left} of {len(data)} bytes are left over after the Avro schema")
        return value

    return Functions(encode, decode)


def _avro_type(schema: Any) -> str:
    if isinstance(schema, list):
        return " or ".join(_avro_type(branch) for branch in schema)
    if isinstance(schema, dict):
        return str(schema.get("logicalType") or schema.get("name") or schema.get("type"))
    return str(schema)


_NAMED: dict[str, Callable[[], Serde]] = {
    "bytes": _Bytes,
    "str": _Text,
    "int": _Integer,
    "json": _Json,
}
_TYPES: dict[type, str] = {bytes: "bytes", str: "str", int: "int", dict: "json", list: "json"}


def serde(choice: SerdeLike) -> Serde | None:
    """Return the serde; None passes bytes and str unchanged."""
    if choice is None:
        return None
    if isinstance(choice, str):
        return _named(choice)
    if isinstance(choice, type):
        return _of_class(choice)
    if callable(getattr(choice, "encode", None)) and callable(getattr(choice, "decode", None)):
        return choice
    raise ClientError(
        f"{choice!r} is not a serde",
        hint="give a name, a class, or an object with encode and decode",
    )


def encoder(choice: SerdeLike) -> Callable[[Any], bytes] | None:
    chosen = serde(choice)
    return None if chosen is None else chosen.encode


def decoder(choice: SerdeLike) -> Callable[[bytes], Any] | None:
    chosen = serde(choice)
    return None if chosen is None else chosen.decode


def _named(name: str) -> Serde:
    if name not in _NAMED:
        close = difflib.get_close_matches(name, _NAMED, 1)
        hint = (
            f"did you mean {close[0]!r}?"
            if close
            else f"choose {', '.join(_NAMED)}, avro(schema), or a class"
        )
        raise ClientError(f"unknown serde {name!r}", hint=hint)
    return _NAMED[name]()


def _of_class(kind: type) -> Serde:
    if kind in _TYPES:
        return _named(_TYPES[kind])
    if hasattr(kind, "SerializeToString"):
        return protobuf(kind)
    if dataclasses.is_dataclass(kind) or hasattr(kind, "__struct_fields__"):
        return _typed_json(kind)
    raise ClientError(
        f"{kind.__name__} has no serde",
        hint="dataclasses, msgspec.Struct and generated Protobuf messages have one; "
        "for others give an object with encode and decode",
    )
