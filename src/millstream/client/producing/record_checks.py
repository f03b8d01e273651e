"""Checks of the records given to ``Producer.send``: keys, values, headers and timestamps.

librdkafka's own messages say neither which part of a record is wrong nor how to fix it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millstream.client.errors import ClientError, WrongType

Payload = bytes | str | None
HeadersIn = Mapping[str, Payload] | Sequence[tuple[str, Payload]]

MAX_TIMESTAMP_MS = (1 << 63) - 1
# Types that the library sends unchanged.
PLAIN = (bytes, str)
_MAX_SHOWN = 80


def wrong_type(
    error: TypeError, topic: str, key: Any, value: Any, headers: Sequence[tuple[str, Any]] | None
) -> WrongType:
    """Return an error that names the part with the wrong type."""
    for part, content in (("key", key), ("value", value)):
        if content is not None and not isinstance(content, PLAIN):
            name = "int" if isinstance(content, int) and not isinstance(content, bool) else "json"
            serde = f'create the producer with {part}="{name}", or with another serde'
            return WrongType(
                f"cannot send the {part} {_shown(content)} to {topic!r}: "
                f"it is of type {type(content).__name__}, not bytes or str",
                hint="convert it with bytes()"
                if isinstance(content, bytearray | memoryview)
                else serde,
            )
    for name, content in headers or ():
        if content is not None and not isinstance(content, PLAIN):
            return WrongType(
                f"cannot send the header {name!r} with {_shown(content)} to {topic!r}: "
                f"it is of type {type(content).__name__}, not bytes or str",
                hint="encode it first, for example with str()",
            )
    return WrongType(f"cannot send a record to {topic!r}: {error}")


def checked_timestamp(timestamp_ms: int, topic: str) -> int:
    """Return the timestamp as an int; ClientError if a record cannot hold it."""
    try:
        timestamp_ms = operator.index(timestamp_ms)  # accepts integers of numpy too
    except TypeError:
        raise WrongType(
            f"cannot produce to {topic!r}: the timestamp {timestamp_ms!r} is not a whole number",
            hint="give milliseconds since 1970, for example int(time.time() * 1000)",
        ) from None
    if not -MAX_TIMESTAMP_MS <= timestamp_ms <= MAX_TIMESTAMP_MS:
        raise ClientError(
            f"cannot produce to {topic!r}: the timestamp {timestamp_ms} is out of range",
            hint="give milliseconds since 1970, for example int(time.time() * 1000)",
        )
    return timestamp_ms


def encoded(encode: Callable[[Any], bytes], value: Any, part: str, topic: str) -> bytes:
    try:
        return encode(value)
    except Exception as error:  # any kind: users bring their own serdes
        raise ClientError(
            f"cannot serialise the {part} of a record for {topic!r}: {error}"
        ) from error


def as_bytes(data: Payload) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def checked_headers(headers: HeadersIn) -> list[tuple[str, Payload]]:
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise WrongType(
                f"{_shown(pair)} is not a header",
                hint='give headers as {"name": b"value"} or [("name", b"value")]',
            )
    return [(name, value) for name, value in pairs]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
