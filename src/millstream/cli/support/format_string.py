r"""kcat's format strings: ``compile_format('%t[%p] %o %k %s\n')`` returns a function of records.

    %s value  %S its length  %R its length as 4 bytes, big-endian    %k key  %K its length
    %T timestamp in milliseconds  %h headers (a=1,b=2)  %t topic  %p partition  %o offset
    %% a percent sign    \n \r \t \xHH \\ as usual

The length of null is -1. Keys and values are written byte for byte.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from millstream.client.errors import ClientError
from millstream.client.record import Record

Part = Callable[[Record], bytes]

_TOKEN = re.compile(rb"%(.?)|\\x([0-9a-fA-F]{2})|\\(.?)|[^%\\]+", re.S)
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"\\": b"\\", b"0": b"\0"}


def compile_format(text: str, *, null: bytes = b"") -> Part:
    """Return a function that renders records; ``null`` replaces a null key or value.

    Raise ClientError for an unknown format.
    """
    parts = _joined(_parse(text, _fields(null)))

    def render(record: Record) -> bytes:
        return b"".join([part if isinstance(part, bytes) else part(record) for part in parts])

    return render


def _fields(null: bytes) -> dict[bytes, Part]:
    return {
        b"s": lambda record: null if record.value is None else record.value,
        b"S": lambda record: b"%d" % _length(record.value),
        b"R": lambda record: struct.pack(">i", _length(record.value)),
        b"k": lambda record: null if record.key is None else record.key,
        b"K": lambda record: b"%d" % _length(record.key),
        b"T": lambda record: b"%d" % record.timestamp_ms,
        b"h": _headers,
        b"t": lambda record: record.topic.encode(),
        b"p": lambda record: b"%d" % record.partition,
        b"o": lambda record: b"%d" % record.offset,
    }


def _parse(text: str, fields: dict[bytes, Part]) -> list[bytes | Part]:
    parts: list[bytes | Part] = []
    for token in _TOKEN.finditer(text.encode("utf-8", "surrogateescape")):
        letter, code, escape = token.groups()
        if letter is not None:
            parts.append(b"%" if letter == b"%" else _field(letter, fields))
        elif code is not None:
            parts.append(bytes.fromhex(code.decode()))
        elif escape is not None:
            parts.append(_ESCAPES.get(escape, token[0]))
        else:
            parts.append(token[0])
    return parts


def _field(letter: bytes, fields: dict[bytes, Part]) -> Part:
    if letter not in fields:
        known = " ".join(f"%{name.decode()}" for name in fields)
        raise ClientError(
            f"unknown format %{letter.decode(errors='replace')}",
            hint=f"use {known}, or %% for a percent sign",
        )
    return fields[letter]


def _joined(parts: list[bytes | Part]) -> list[bytes | Part]:
    """Merge adjacent literal texts."""
    joined: list[bytes | Part] = []
    for part in parts:
        if isinstance(part, bytes) and joined and isinstance(joined[-1], bytes):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(record: Record) -> bytes:
    return b",".join(
        name.encode() + b"=" + (b"NULL" if value is None else value)
        for name, value in record.headers
    )
