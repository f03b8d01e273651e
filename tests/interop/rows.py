"""The records that every client writes and every client must read back byte by byte, and how to
compare them.
"""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Iterable, Sequence
from typing import Any

from interop.programs import Line, Row, shown

# An hour ago: old enough to be told from the time of writing, young enough for every retention.
START_MS = int(time.time()) * 1000 - 3_600_000


def b64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def row(
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]] = (),
    *,
    timestamp: int | None = START_MS,
    partition: int = 0,
) -> Row:
    return {
        "partition": partition,
        "key": b64(key),
        "value": b64(value),
        "headers": [[name, b64(data)] for name, data in headers],
        "timestamp": timestamp,
    }


def noise(size: int, seed: int = 1) -> bytes:
    """Bytes that no codec makes smaller."""
    return random.Random(seed).randbytes(size)


def various_rows() -> list[Row]:
    """Null, empty and binary keys and values, headers of every kind, small and medium sizes, own
    timestamps.
    """
    words = b"the stream drives the mill " * 40
    return [
        row(b"plain", b"value"),
        row(None, b"no key", timestamp=START_MS + 1),
        row(b"tombstone", None, timestamp=START_MS + 2),
        row(None, None, timestamp=START_MS + 3),
        row(b"", b"", timestamp=START_MS + 4),
        row(b"one", b"\0", [("h", b"1")], timestamp=START_MS + 5),
        row(
            b"\xff\0\xfe",
            bytes(range(256)),
            [("a", b"1"), ("b", b""), ("c", b"\xff\0")],
            timestamp=START_MS + 90,
        ),
        row(
            "schlüssel-鍵".encode(),
            "wert-値-🌾".encode(),
            [("überschrift-頭", b"wert")],
            timestamp=START_MS + 7,
        ),
        row(
            b"repeated",
            b"headers",
            [("same", b"1"), ("same", b"2"), ("same", b"3")],
            timestamp=START_MS + 8,
        ),
        row(b"null header", b"x", [("nothing", None), ("something", b"s")], timestamp=START_MS + 9),
        row(b"squeezable", words, timestamp=START_MS + 10),
        row(b"noise", noise(10_000), timestamp=START_MS + 11),
        *[
            row(f"key-{i}".encode(), f"value-{i}".encode(), timestamp=START_MS + 20 + i)
            for i in range(200)
        ],
    ]


def rows_for(writer: str) -> list[Row]:
    """``various_rows`` without what a client cannot write: KafkaJS has no null header values."""
    rows = various_rows()
    if writer != "node":
        return rows
    return [row for row in rows if all(value is not None for _, value in row["headers"])]


def rows_of_sizes(sizes: Iterable[int]) -> list[Row]:
    return [row(str(size).encode(), noise(size, size)) for size in sizes]


def _data(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def expected(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """What any reader must print for these rows in one partition, offsets from 0."""
    return [
        {
            "offset": offset,
            "timestamp": row["timestamp"],
            "timestamp_type": "CreateTime",
            "key": shown(_data(row["key"])),
            "value": shown(_data(row["value"])),
            "headers": [[name, shown(_data(value))] for name, value in row["headers"]],
        }
        for offset, row in enumerate(rows)
    ]


def records(lines: Iterable[Line], partition: int = 0) -> list[dict[str, Any]]:
    """The record lines of a partition, without what is the same in all."""
    found = [line for line in lines if line["op"] == "record" and line["partition"] == partition]
    return [
        {name: value for name, value in line.items() if name not in ("op", "partition")}
        for line in found
    ]
