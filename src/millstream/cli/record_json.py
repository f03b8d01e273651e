"""One record as one line of JSON, and back: what ``consume --format json`` writes, ``produce --format json`` reads.

Keys, values and header values are strings where they are UTF-8, ``{"base64": ...}`` where they are not, null where
they are null; so nothing is lost on the way.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, NamedTuple

from millstream.client.errors import ClientError
from millstream.client.record import Headers, Record


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
    """Read one line; ClientError says what is wrong with it."""
    try:
        document = json.loads(line)
        if not isinstance(document, dict):
            raise ValueError("an object with key, value, headers is expected")
        headers = tuple((str(name), _bytes(value)) for name, value in document.get("headers") or ())
        return Sent(
            _bytes(document.get("key")),
            _bytes(document.get("value")),
            headers,
            document.get("partition"),
            document.get("timestamp"),
        )
    except (ValueError, TypeError, binascii.Error) as error:
        raise ClientError(f"not a record in JSON ({error}): {line[:80].decode(errors='replace')!r}") from None


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
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return base64.b64decode(value["base64"], validate=True)
    return json.dumps(value, ensure_ascii=False).encode()
