"""The records that every client writes and every client must read back byte by byte."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

START_MS = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SIZES = (1, 10, 1_000, 100_000, 1_000_000, 10_000_000)

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Row:
    """A record to be sent; without a timestamp the client takes its own."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int | None = START_MS
    partition: int = 0


@dataclass(frozen=True, order=True)
class Got:
    """A record as a client handed it out."""

    partition: int
    offset: int
    timestamp: int
    log_append_time: bool
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def noise(size: int, seed: int = 1) -> bytes:
    """Bytes that no codec makes smaller."""
    return random.Random(seed).randbytes(size)


WORDS = b"the stream drives the mill " * 40

VARIOUS: tuple[Row, ...] = tuple(
    replace(row, timestamp=START_MS + number)
    for number, row in enumerate(
        [
            Row(b"plain", b"value"),
            Row(None, b"no key"),
            Row(b"tombstone", None),
            Row(None, None),
            Row(b"", b""),
            Row(b"one", b"\0", (("h", b"1"),)),
            Row(b"\xff\0\xfe", bytes(range(256)), (("a", b"1"), ("b", b""), ("c", b"\xff\0"))),
            Row("schlüssel-鍵".encode(), "wert-値-🌾".encode(), (("überschrift-頭", b"wert"),)),
            Row(b"repeated", b"headers", (("same", b"1"), ("same", b"2"), ("same", b"3"))),
            Row(b"null header", b"x", (("nothing", None), ("something", b"s"))),
            Row(b"squeezable", WORDS),
            Row(b"noise", noise(10_000)),
            *[Row(b"key-%d" % i, b"value-%d" % i) for i in range(50)],
        ]
    )
)
# Timestamps that go back and forth inside a batch.
JUMPING = tuple(
    replace(row, timestamp=START_MS + (37 * i) % 101) for i, row in enumerate(VARIOUS[12:])
)


def of_sizes(sizes: Iterable[int] = SIZES) -> list[Row]:
    """Values of these sizes, half of them noise; the timestamps tell them apart."""
    return [
        Row(
            b"k",
            noise(size)
            if number % 2
            else WORDS * (size // len(WORDS)) + WORDS[: size % len(WORDS)],
        )
        for number, size in enumerate(sizes)
    ]


def expected(rows: Sequence[Row], *, base_offset: int = 0) -> list[Got]:
    """What any reader must get of these rows, which all have timestamps, partition by partition."""
    offsets: dict[int, int] = {}
    found = []
    for row in rows:
        offset = offsets.get(row.partition, base_offset)
        offsets[row.partition] = offset + 1
        assert row.timestamp is not None
        found.append(
            Got(row.partition, offset, row.timestamp, False, row.key, row.value, row.headers)
        )
    return sorted(found, key=lambda got: (got.partition, got.offset))
