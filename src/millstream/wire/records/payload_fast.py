"""Reading records through aiokafka's C extension: the same results as `wire/records/payload`, two to three times as fast.

For child processes that read stored batches by the million. Importing aiokafka takes a tenth of a second, so that
happens on the first call; where it is not installed, and whenever it stumbles, the reference does the work. The
extension trusts lengths more than it should: it gets its bytes with padding behind them, which it may read past
the end of, and its offsets are compared with what the batch allows. Clients' own bytes are not for this module.
"""

from __future__ import annotations

from functools import cache
from operator import lt
from typing import Any, Final

from millstream.wire.records import payload
from millstream.wire.records.layout import HEADER
from millstream.wire.records.payload import KeyColumns, KeyInfo, Record, check_count

_PADDING: Final = bytes(64)
_STUMBLES: Final = (ValueError, OverflowError, SystemError, MemoryError)  # UnicodeDecodeError is a ValueError


@cache
def _extension() -> Any:
    try:
        from aiokafka.errors import CorruptRecordException
        from aiokafka.record._crecords.default_records import DefaultRecordBatch
    except ImportError:
        return None
    return DefaultRecordBatch, (*_STUMBLES, CorruptRecordException)


def available() -> bool:
    """Whether the extension is there; imports it."""
    return _extension() is not None


def decode_records(
    body: bytes, count: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> list[Record]:
    found = _read(body, count, base_offset, base_timestamp, append_time)
    if found is None:
        return payload.decode_records(body, count, base_offset, base_timestamp, append_time)
    return [
        Record(offset, -1 if (t := r.timestamp) is None else t, r.key, r.value, tuple(r.headers))
        for offset, r in zip(*found, strict=True)
    ]


def decode_keys(
    body: bytes, count: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> list[KeyInfo]:
    found = _read(body, count, base_offset, base_timestamp, append_time)
    if found is None:
        return payload.decode_keys(body, count, base_offset, base_timestamp, append_time)
    return [
        (offset, -1 if (t := r.timestamp) is None else t, r.key, r.value is None)
        for offset, r in zip(*found, strict=True)
    ]


def decode_key_columns(body: bytes, count: int, base_offset: int, last_offset: int) -> KeyColumns:
    found = _read(body, count, base_offset, 0, None)
    if found is None:
        return payload.decode_key_columns(body, count, base_offset, last_offset)
    offsets, items = found
    return KeyColumns(offsets, [r.key for r in items], offsets[-1] <= last_offset)


def _read(
    body: bytes, count: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> tuple[list[int], list[Any]] | None:
    """The extension's records with their offsets, or None where the reference has to decide."""
    extension = _extension()
    if extension is None or not count:
        return None
    check_count(body, count)
    reader, stumbles = extension
    try:
        items = list(reader(_uncompressed_batch(body, count, base_offset, base_timestamp, append_time)))
        offsets = [item.offset for item in items]
    except stumbles:
        return None
    return (offsets, items) if _in_order(offsets, base_offset) else None


def _uncompressed_batch(
    body: bytes, count: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> memoryview:
    """A batch around the body, whose bytes go on behind its end."""
    attributes, max_timestamp = (0, -1) if append_time is None else (8, append_time)
    head = HEADER.pack(
        base_offset, 49 + len(body), -1, 2, 0, attributes, 0, base_timestamp, max_timestamp, -1, -1, -1, count
    )
    return memoryview(b"".join((head, body, _PADDING)))[: len(head) + len(body)]


def _in_order(offsets: list[int], base_offset: int) -> bool:
    """Increasing offsets from the base on, as every batch has that this broker wrote after looking into it."""
    inside = offsets[0] >= base_offset and offsets[-1] - base_offset < 1 << 31
    return inside and all(map(lt, offsets, offsets[1:]))
