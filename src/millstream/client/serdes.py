"""Keys and values as something else than bytes: ``Producer(..., value="json")``, ``Consumer(...,
value=Order)``.

A serde turns a value into bytes and back. It is given as a name (``bytes``, ``str``, ``int``,
``json``), as a class (a dataclass, a ``msgspec.Struct``, a generated Protobuf message), as
``avro(schema)``, or as any object with ``encode`` and ``decode``. None, a record without a key or a
tombstone, stays None with all of them. What a serde needs is imported when it is asked for.
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
    """Never given None."""

    def encode(self, value: Any) -> bytes: ...

    def decode(self, data: bytes) -> Any: ...


SerdeLike = str | type | Serde | None


class Functions:
    """A serde made of two functions."""

    def __init__(self, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> None:
        self.encode = encode
        self.decode = decode


class _Bytes:
    """Bytes, and nothing else: a text, which would be taken for UTF-8 silently, is refused."""

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"bytes are wanted, not {type(value).__name__}")
        return bytes(value)

    def decode(self, data: bytes) -> bytes:
        return data


class _Text:
    def encode(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"a text is wanted, not {type(value).__name__}")
        return value.encode()

    def decode(self, data: bytes) -> str:
        return data.decode()


class _Integer:
    """Eight bytes, the highest first, as Kafka's LongSerializer writes them."""

    def encode(self, value: Any) -> bytes:
        if isinstance(value, bool):
            raise TypeError("an integer is wanted, not bool")
        try:
            number = operator.index(
                value
            )  # also of numpy; a float would lose its fraction, a text is no number
        except TypeError:
            raise TypeError(f"an integer is wanted, not {type(value).__name__}") from None
        try:
            return number.to_bytes(8, "big", signed=True)
        except OverflowError:
            raise ValueError(f"{number} does not fit into 8 bytes") from None

    def decode(self, data: bytes) -> int:
        if len(data) != 8:
            raise ValueError(f"an integer has 8 bytes, not {len(data)}")
        return int.from_bytes(data, "big", signed=True)


class _Json:
    """JSON in UTF-8, without spaces; dataclasses within are written as objects. NaN and Infinity,
    which JSON has not, are refused.
    """

    def encode(self, value: Any) -> bytes:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain, allow_nan=False)
        return text.encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _typed_json(kind: type) -> Serde:
    """A dataclass or a msgspec.Struct as a JSON object, checked against the types of the fields on
    both sides.

    Python checks no types when an object is made. Unchecked, a producer would write records that
    its own readers refuse, so what was encoded is decoded again before it is sent.
    """
    import msgspec

    encoder = msgspec.json.Encoder()
    decoder: Any = msgspec.json.Decoder(kind)

    def encode(value: Any) -> bytes:
        data = encoder.encode(_wanted(kind, value))
        try:
            decoder.decode(data)
        except msgspec.ValidationError as error:
            raise TypeError(_mismatch(kind, value, error)) from None
        if b"null" in data:
            _refuse_nan(msgspec.to_builtins(value))
        return data

    return Functions(encode, decoder.decode)


def _mismatch(kind: type, value: Any, error: Exception) -> str:
    """What msgspec says of the JSON, of the object: Order.count: expected int, got str."""
    reason, _, path = str(error).partition(" - at ")
    place = kind.__name__ + path.strip("`").removeprefix("$")
    reason = reason.replace("`", "")
    return f"{place}: {reason[:1].lower()}{reason[1:]}, in {_shown(value)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _refuse_nan(value: Any) -> None:
    """msgspec writes NaN and Infinity as null, which a field that may be None would take for no
    value.
    """
    json.dumps(value, allow_nan=False, default=str, skipkeys=True)


def _wanted(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{kind.__name__} is wanted, not {type(value).__name__}")
    return value


def protobuf(kind: type) -> Serde:
    """Messages of a generated class, as Protobuf writes them."""

    def decode(data: bytes) -> Any:
        message = kind()
        message.ParseFromString(data)
        return message

    return Functions(lambda message: _wanted(kind, message).SerializeToString(), decode)


def avro(schema: str | dict[str, Any] | list[Any]) -> Serde:
    """Avro's binary form of this schema, without a header (`pip install fastavro`)."""
    try:
        import fastavro
        from fastavro.validation import ValidationError, validate
    except ImportError:
        raise ClientError("Avro needs the package fastavro", hint="pip install fastavro") from None
    from io import BytesIO

    parsed = fastavro.parse_schema(json.loads(schema) if isinstance(schema, str) else schema)

    def encode(value: Any) -> bytes:
        """The writer alone would write 1.5 as 1, "no" as true, and a number for which the type is
        too small.
        """
        try:
            validate(value, parsed)
        except ValidationError as error:
            first = error.errors[0]
            place = f"{first.field}: " if getattr(first, "field", "") else ""
            raise TypeError(
                f"{place}expected {_avro_type(first.schema)}, got {_shown(first.datum)}"
            ) from None
        out = BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        return out.getvalue()

    def decode(data: bytes) -> Any:
        source = BytesIO(data)
        try:
            value = fastavro.schemaless_reader(source, parsed, None)
        except EOFError:
            raise ValueError(f"{len(data)} bytes end before what the Avro schema asks for") from None
        if left := len(data) - source.tell():
            raise ValueError(f"{left} of {len(data)} bytes are left behind what the Avro schema asks for")
        return value

    return Functions(encode, decode)


def _avro_type(schema: Any) -> str:
    if isinstance(schema, list):
        return " or ".join(_avro_type(one) for one in schema)
    if isinstance(schema, dict):
        return str(schema.get("logicalType") or schema.get("name") or schema.get("type"))
    return str(schema)


_NAMED: dict[str, Callable[[], Serde]] = {"bytes": _Bytes, "str": _Text, "int": _Integer, "json": _Json}
_TYPES: dict[type, str] = {bytes: "bytes", str: "str", int: "int", dict: "json", list: "json"}


def serde(given: SerdeLike) -> Serde | None:
    """The serde that is meant; None where bytes and texts go as they are."""
    if given is None:
        return None
    if isinstance(given, str):
        return _named(given)
    if isinstance(given, type):
        return _of_class(given)
    if callable(getattr(given, "encode", None)) and callable(getattr(given, "decode", None)):
        return given
    raise ClientError(
        f"{given!r} is no serde", hint="give a name, a class, or an object with encode and decode"
    )


def encoder(given: SerdeLike) -> Callable[[Any], bytes] | None:
    found = serde(given)
    return None if found is None else found.encode


def decoder(given: SerdeLike) -> Callable[[bytes], Any] | None:
    found = serde(given)
    return None if found is None else found.decode


def _named(name: str) -> Serde:
    if name not in _NAMED:
        close = difflib.get_close_matches(name, _NAMED, 1)
        hint = (
            f"did you mean {close[0]!r}?"
            if close
            else f"there are {', '.join(_NAMED)}, avro(schema), and classes"
        )
        raise ClientError(f"there is no serde {name!r}", hint=hint)
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
        hint="dataclasses, msgspec.Struct and generated Protobuf messages have one; else give an object with encode and decode",
    )
