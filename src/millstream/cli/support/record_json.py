"""One record as one line of JSON, and back: what ``consume --format json`` writes, ``produce --format json`` reads.

Keys, values and header values are strings where they are UTF-8, ``{"base64": ...}`` where they are not, null where
they are null; so nothing is lost on the way.
"""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple

from millstream.client.errors import ClientError, nearest
from millstream.client.record import Headers, Record

# The names that ``to_json`` writes. Topic, partition, offset and timestamp_type say where a record was and are not sent on.
NAMES = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
_SHAPE = 'a line is {"key": ..., "value": ..., "headers": [["name", "value"]]}, and only "value" is required'
MAX_INTEGER_DIGITS = 20  # enough for every partition and timestamp
MAX_TIMESTAMP_MS = (1 << 63) - 1
_RAW = "without --format json every line is sent as it is"


class Sent(NamedTuple):
    """What of a JSON line is sent on; partition and timestamp only where the caller wants to keep them."""

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


def from_json(line: bytes) -> Sent:
    """Read one line; ClientError says what is wrong with it.

    A line without ``value`` is refused: it would be a tombstone, which deletes its key from a compacted topic.
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
            raise ValueError(f"an object is expected, not {_kind(document)}")
        _check_names(document, line)
        return Sent(
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
    """A number with a fraction or an exponent, as it is written: a float would round it. Or a very long one."""


def _integer(text: str) -> int | _Number:
    """Python refuses to convert integers of thousands of digits."""
    return int(text) if len(text) <= MAX_INTEGER_DIGITS else _Number(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A name that stands twice is refused, since one of the two would be dropped."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f'the name "{twice}" stands twice')
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")


def _check_names(document: dict[str, Any], line: bytes) -> None:
    unknown = [name for name in document if name not in NAMES]
    for name in unknown:
        if (close := nearest(name, NAMES, 1)) and close[0] not in document:
            raise ClientError(f'unknown name "{name}" in {_shown(line)}', hint=f'did you mean "{close[0]}"?')
    if "value" not in document:
        raise ClientError(
            f'no "value" in {_shown(line)}',
            hint=f'write the value as {{"value": ...}}, or "value": null for a tombstone; {_RAW}',
        )
    if unknown:
        names = ", ".join(f'"{name}"' for name in unknown)
        raise ClientError(f"unknown name {names} in {_shown(line)}", hint=f"{_SHAPE}; {_RAW}")


def _headers(found: Any) -> Headers:
    """Pairs, as ``to_json`` writes them, or an object, in which a name can stand only once."""
    if found is None:
        return ()
    if isinstance(found, dict):
        found = list(found.items())
    if not isinstance(found, list):
        raise ValueError(f"headers are a list of pairs, not {_kind(found)}")
    for pair in found:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise ValueError(f'a header is ["name", "value"], not {_text(pair)}')
    return tuple((name, _bytes(value)) for name, value in found)


def _whole_number(document: dict[str, Any], name: str) -> int | None:
    found = document.get(name)
    if found is None:
        return None
    unit = " of milliseconds" if name == "timestamp" else ""
    if isinstance(found, int) and not isinstance(found, bool):
        if abs(found) > MAX_TIMESTAMP_MS:
            raise ValueError(f"{name} is out of range: {found}")
        return found
    raise ValueError(f"{name} is a whole number{unit}, not {_text(found)}")


def _kind(value: Any) -> str:
    kinds = {list: "a list", dict: "an object", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _shown(line: bytes) -> str:
    text = line.decode(errors="replace").strip()
    return text if len(text) <= 80 else f"{text[:80]}..."


def as_json(data: bytes | None) -> Any:
    """A key, a value or that of a header, as said above."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(value: Any) -> bytes | None:
    """A string, null or base64 as said above; any other JSON is sent as its text, which is what people mean by it."""
    if value is None:
        return None
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return _from_base64(value["base64"])
    text = value if isinstance(value, str) else _text(value)  # a _Number is a string, too
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        escape = f"\\u{ord(text[error.start]):04x}"
        raise ValueError(f"{escape} is half of a character and has no UTF-8") from None


def _from_base64(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, TypeError):
        raise ValueError(f"not base64: {_text(text)}") from None


def _text(value: Any) -> str:
    """JSON that was read, as text; numbers as they were written."""
    if isinstance(value, _Number):
        return value
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(name)}: {_text(part)}' for name, part in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return json.dumps(value, ensure_ascii=False)
