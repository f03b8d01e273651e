"""Version 2 record batches: parsing and checking headers, stamping fields, building and reading.

The CRC-32C does not cover offsets and the leader epoch. So a broker fills them in place and writes
the producer's bytes unchanged. Only `read_records` and `read_keys` look at records. They do not
check the CRC; `crc_matches` does. Attribute bits: 0-2 codec, 3 LogAppendTime, 4 transactional, 5
control, 6 delete horizon (KIP-534: the base timestamp then holds the horizon).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from millstream.wire.records.checksum import crc32c
from millstream.wire.records.compression import compress, decompress
from millstream.wire.records.corrupt import CorruptBatch, CorruptMessage, DecompressedTooLarge
from millstream.wire.records.layout import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL,
    CRC_AT,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    KNOWN_BITS,
    LEADER_EPOCH_AT,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    MAX_TIMESTAMP_AT,
    TRANSACTIONAL,
)
from millstream.wire.records.payload import (
    KeyInfo,
    Record,
    check_count,
    decode_keys,
    decode_records,
    encode_records,
)

__all__ = [
    "BatchHeader",
    "ControlMarker",
    "CorruptBatch",
    "DecompressedTooLarge",
    "Record",
    "build_batch",
    "build_marker",
    "crc_matches",
    "make_attributes",
    "parse_header",
    "read_keys",
    "read_marker",
    "read_records",
    "seal_batch",
    "stamp_append_time",
    "stamp_crc",
    "stamp_offsets",
]

Buffer = bytes | bytearray | memoryview

_LONG: Final = struct.Struct(">q")
_INT: Final = struct.Struct(">i")

_MAX_INT: Final = 0x7FFFFFFF


class BatchHeader(NamedTuple):
    """The fields of a batch header, in wire order."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is useless for a header

    @property
    def size(self) -> int:
        """Size of the whole batch in bytes."""
        return self.length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def has_delete_horizon(self) -> bool:
        return self.attributes & DELETE_HORIZON != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    @property
    def last_sequence(self) -> int:
        """The last sequence number, or -1 without idempotence. Sequences wrap from 2^31-1 to 0."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & _MAX_INT


class ControlMarker(NamedTuple):
    """The contents of a transaction marker."""

    commit: bool
    coordinator_epoch: int


def parse_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """Parse the header of the batch at `pos`. The caller checks that the batch is complete."""
    try:
        header = tuple.__new__(BatchHeader, HEADER.unpack_from(buf, pos))
    except struct.error:
        raise CorruptMessage(
            f"{len(buf) - pos} bytes are too few for a batch header", pos
        ) from None
    if header.magic != MAGIC:
        raise CorruptMessage(f"magic {header.magic} where a version 2 batch should be", pos)
    if header.length < HEADER_SIZE - LOG_OVERHEAD:
        raise CorruptMessage(f"a batch of {header.length} bytes is shorter than its header", pos)
    return header


def crc_matches(buf: Buffer, pos: int, header: BatchHeader) -> bool:
    """Return whether the batch is complete and its CRC-32C is correct."""
    end = pos + header.size
    if end > len(buf):
        return False
    return crc32c(memoryview(buf)[pos + ATTRIBUTES_AT : end]) == header.crc


def stamp_offsets(
    buf: bytearray | memoryview, pos: int, base_offset: int, leader_epoch: int
) -> None:
    """Assign offsets and leader epoch in place; the CRC covers neither."""
    _LONG.pack_into(buf, pos, base_offset)
    _INT.pack_into(buf, pos + LEADER_EPOCH_AT, leader_epoch)


def stamp_append_time(
    buf: bytearray | memoryview, pos: int, header: BatchHeader, now_ms: int
) -> BatchHeader:
    """Set LogAppendTime and its timestamp in place, with a new CRC. Return the new header."""
    attributes = header.attributes & KNOWN_BITS | LOG_APPEND_TIME
    struct.pack_into(">h", buf, pos + ATTRIBUTES_AT, attributes)
    struct.pack_into(">q", buf, pos + MAX_TIMESTAMP_AT, now_ms)
    crc = crc32c(memoryview(buf)[pos + ATTRIBUTES_AT : pos + header.size])
    struct.pack_into(">I", buf, pos + CRC_AT, crc)
    return header._replace(attributes=attributes, max_timestamp=now_ms, crc=crc)


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    last_offset: int | None = None,
    leader_epoch: int = -1,
    codec: int = 0,
    level: int | None = None,
    timestamp_type: int = 0,
    max_timestamp: int | None = None,
    delete_horizon_ms: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """Build a batch of records with absolute offsets (>= `base_offset`).

    Gaps that compaction left between offsets are kept. `last_offset` and `max_timestamp` default to
    those of the records. With timestamp_type 1 (LogAppendTime), `max_timestamp` is the time of all
    records. Without records the result is an empty batch, which compaction keeps for a producer's
    last sequence. `last_offset` and `max_timestamp` are then those of the original batch.
    """
    items = records if isinstance(records, list | tuple) else list(records)
    if delete_horizon_ms is not None:
        base_timestamp = delete_horizon_ms
    else:
        base_timestamp = items[0].timestamp if items else -1
    if last_offset is None:
        last_offset = items[-1].offset if items else base_offset
    if max_timestamp is None:
        max_timestamp = max((record.timestamp for record in items), default=-1)
    body = encode_records(items, base_offset, base_timestamp)
    if codec and items:
        body = compress(codec, body, level)
    header = BatchHeader(
        base_offset,
        0,
        leader_epoch,
        MAGIC,
        0,
        make_attributes(
            codec if items else 0,
            timestamp_type,
            transactional,
            control,
            delete_horizon_ms is not None,
        ),
        last_offset - base_offset,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(items),
    )
    return seal_batch(header, body)


def make_attributes(
    codec: int,
    timestamp_type: int,
    transactional: bool,
    control: bool = False,
    delete_horizon: bool = False,
) -> int:
    return (
        codec
        | (LOG_APPEND_TIME if timestamp_type else 0)
        | (TRANSACTIONAL if transactional else 0)
        | (CONTROL if control else 0)
        | (DELETE_HORIZON if delete_horizon else 0)
    )


def seal_batch(header: BatchHeader, body: Buffer) -> bytes:
    """Join header and body, and set length and checksum. The attributes state the body's codec."""
    head = bytearray(HEADER_SIZE)
    base_offset, _length, leader_epoch, magic, _crc, *rest = header
    length = HEADER_SIZE - LOG_OVERHEAD + len(body)
    HEADER.pack_into(head, 0, base_offset, length, leader_epoch, magic, 0, *rest)
    stamp_crc(head, body)
    return b"".join((head, body))


def stamp_crc(head: bytearray, body: Buffer) -> None:
    """Write the checksum of a batch, given as header and records, into the header."""
    crc = crc32c(body, crc32c(memoryview(head)[ATTRIBUTES_AT:]))
    struct.pack_into(">I", head, CRC_AT, crc)


def build_marker(
    *,
    base_offset: int,
    leader_epoch: int,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    commit: bool,
    timestamp: int,
) -> bytes:
    """Build the control batch that ends a transaction in one partition."""
    key = struct.pack(">hh", 0, 1 if commit else 0)
    value = struct.pack(">hi", 0, coordinator_epoch)
    return build_batch(
        [Record(base_offset, timestamp, key, value)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def read_marker(batch: Buffer) -> ControlMarker | None:
    """Return the marker of a control batch, or None if it has another control type."""
    records = read_records(batch, max_bytes=4096)
    if not records:
        return None
    key, value = records[0].key, records[0].value
    if key is None or len(key) < 4:
        raise CorruptBatch("a control record without a type", HEADER_SIZE)
    kind = struct.unpack_from(">h", key, 2)[0]
    if kind not in (0, 1):
        return None
    if value is None or len(value) < 6:
        raise CorruptBatch("a transaction marker without a coordinator epoch", HEADER_SIZE)
    return ControlMarker(kind == 1, struct.unpack_from(">i", value, 2)[0])


def read_records(batch: Buffer, *, max_bytes: int) -> list[Record]:
    """Return all records of the batch at the start of the buffer.

    `max_bytes` is the maximum size of the decompressed records.
    """
    header = parse_header(batch)
    body = _body(batch, header, max_bytes)
    return decode_records(
        body, header.count, header.base_offset, header.base_timestamp, _append_time(header)
    )


def read_keys(batch: Buffer, *, max_bytes: int) -> list[KeyInfo]:
    """Return (offset, timestamp, key, value is null) of each record, for compaction and checks."""
    header = parse_header(batch)
    body = _body(batch, header, max_bytes)
    return decode_keys(
        body, header.count, header.base_offset, header.base_timestamp, _append_time(header)
    )


def _append_time(header: BatchHeader) -> int | None:
    return header.max_timestamp if header.attributes & LOG_APPEND_TIME else None


def _body(batch: Buffer, header: BatchHeader, max_bytes: int) -> bytes:
    """Return the decompressed bytes of the records.

    If the header counts no records, bytes that follow it are ignored, as in Kafka.
    """
    if header.size > len(batch):
        raise CorruptBatch(f"a batch of {header.size} bytes, of which {len(batch)} are there")
    if header.count == 0:
        return b""
    data = memoryview(batch)[HEADER_SIZE : header.size]
    if not header.codec:
        check_count(data, header.count)
        return bytes(data)
    return decompress(header.codec, data, max_bytes=max_bytes, magic=MAGIC)
