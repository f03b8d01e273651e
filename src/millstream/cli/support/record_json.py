"""Records as lines of JSON, for ``consume --format json`` and ``produce --format json``.

Keys, values and header values that are UTF-8 become strings, others become ``{"base64": ...}``, and
null stays null. So the round trip loses nothing.
"""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple

from millstream.client.errors import ClientError, nearest
from millstream.client.record import Headers, Record

# The names that ``to_json`` writes. Topic, partition, offset and timestamp_type describe where a
# record was and are not sent.
NAMES = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
_SHAPE = 'a line is {"key": ..., "value": ..., "headers": [["name", "value"]]}, and only "value" is required'
MAX_INTEGER_DIGITS = 20  # enough for every partition and timestamp
MAX_TIMESTAMP_MS = (1 << 63) - 1
_RAW = "without --format json every line is sent unchanged"


class JsonRecord(NamedTuple):
    """The parts of a JSON line that are sent; the caller may drop partition and timestamp."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None
    timestamp_ms: int | None


def to_json(record: Record) -> bytes:
    document = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "timestamp_type": record.timestamp_type,
        "key": as_json(record.key),
        "value": as_json(record.value),
        "headers": [[name, as_json(value)] for name, value in record.headers],
    }
    return json.dumps(document, ensure_ascii=False, separators=(", ", ": ")).encode() + b"\n"


def from_json(line: bytes) -> JsonRecord:
    """Parse one line. Raise ClientError that describes the mistake.

    A line without ``value`` is refused. It would be a tombstone, which deletes its key from a
    compacted topic.
    """
    try:
        document = json.loads(
            line,
            object_pairs_hook=_object,
            parse_float=_Number,
            parse_int=_integer,
            parse_constant=_refuse_constant,
        )
        if not isinstance(document, dict):
            raise ValueError(f"expected an object, not {_kind(document)}")
        _check_names(document, line)
        return JsonRecord(
            _bytes(document.get("key")),
            _bytes(document["value"]),
            _headers(document.get("headers")),
            _whole_number(document, "partition"),
            _whole_number(document, "timestamp"),
        )
    except RecursionError:
        raise ClientError(f"not a record in JSON (too deeply nested): {_shown(line)}") from None
    except (ValueError, TypeError) as error:
        raise ClientError(
            f"not a record in JSON ({error}): {_shown(line)}", hint=f"{_SHAPE}; {_RAW}"
        ) from None


class _Number(str):
    """The text of a number with a fraction or exponent, which float would round, or a long one."""


def _integer(text: str) -> int | _Number:
    """Keep long integers as text: Python refuses to convert thousands of digits."""
    return int(text) if len(text) <= MAX_INTEGER_DIGITS else _Number(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict. Refuse a repeated name, because one value would be dropped."""
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f'the name "{twice}" is repeated')
    return document


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")


def _check_names(document: dict[str, Any], line: bytes) -> None:
    unknown = [name for name in document if name not in NAMES]
    for name in unknown:
        if (close := nearest(name, NAMES, 1)) and close[0] not in document:
            raise ClientError(
                f'unknown name "{name}" in {_shown(line)}', hint=f'did you mean "{close[0]}"?'
            )
    if "value" not in document:
        raise ClientError(
            f'no "value" in {_shown(line)}',
            hint=f'write the value as {{"value": ...}}, or "value": null for a tombstone; {_RAW}',
        )
    if unknown:
        names = ", ".join(f'"{name}"' for name in unknown)
        raise ClientError(f"unknown name {names} in {_shown(line)}", hint=f"{_SHAPE}; {_RAW}")


def _headers(headers: Any) -> Headers:
    """Parse pairs, as ``to_json`` writes them, or an object, which cannot repeat a name."""
    if headers is None:
        return ()
    if isinstance(headers, dict):
        headers = list(headers.items())
    if not isinstance(headers, list):
        raise ValueError(f"headers are a list of pairs, not {_kind(headers)}")
    for pair in headers:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise ValueError(f'a header is ["name", "value"], not {_text(pair)}')
    return tuple((name, _bytes(value)) for name, value in headers)


def _whole_number(document: dict[str, Any], name: str) -> int | None:
    number = document.get(name)
    if number is None:
        return None
    unit = " of milliseconds" if name == "timestamp" else ""
    if isinstance(number, int) and not isinstance(number, bool):
        if abs(number) > MAX_TIMESTAMP_MS:
            raise ValueError(f"{name} is out of range: {number}")
        return number
    raise ValueError(f"{name} is a whole number{unit}, not {_text(number)}")


def _kind(value: Any) -> str:
    kinds = {
        list: "a list",
        dict: "an object",
        str: "a string",
        bool: "true or false",
        type(None): "null",
    }
    return kinds.get(type(value), "a number")


def _shown(line: bytes) -> str:
    text = line.decode(errors="replace").strip()
    return text if len(text) <= 80 else f"{text[:80]}..."


def as_json(data: bytes | None) -> Any:
    """Return a key, value or header value as JSON (see the top of this module)."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(value: Any) -> bytes | None:
    """Return the bytes of a string, null or base64; any other JSON is sent as its text."""
    if value is None:
        return None
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return _from_base64(value["base64"])
    text = value if isinstance(value, str) else _text(value)  # a _Number is a string as well
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        escape = f"\\u{ord(text[error.start]):04x}"
        raise ValueError(
            f"{escape} is half of a surrogate pair and has no UTF-8 encoding"
        ) from None


def _from_base64(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, TypeError):
        raise ValueError(f"not base64: {_text(text)}") from None


def _text(value: Any) -> str:
    """Return parsed JSON as text, with numbers as they were written."""
    if isinstance(value, _Number):
        return value
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(name)}: {_text(part)}' for name, part in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return json.dumps(value, ensure_ascii=False)
