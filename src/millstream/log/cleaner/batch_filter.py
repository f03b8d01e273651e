"""What cleaning leaves of one batch: all of it, some records, an empty header, or nothing.

Records keep their bytes: a batch keeps its base offset and base timestamp, so what stays is cut out of the old
body and joined. Only a batch that gets a delete horizon is encoded anew, once, because the horizon takes the place of
the base timestamp (KIP-534).
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from millstream.log.cleaner.job import Retention
from millstream.log.cleaner.offset_map import OffsetMap
from millstream.log.cleaner.transactions import CleanedTransactions
from millstream.log.segments.transaction_index import AbortedTransaction
from millstream.wire.records.batch import (
    BatchHeader,
    build_batch,
    read_marker,
    read_records,
    stamp_crc,
)
from millstream.wire.records.compression import compress, decompress
from millstream.wire.records.layout import (
    COUNT_AT,
    HEADER_SIZE,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAX_TIMESTAMP_AT,
)
from millstream.wire.records.payload import KeyColumns, KeyInfo, decode_key_columns, decode_keys
from millstream.wire.varint import read_unsigned_varint

_MIN_FAST: Final = 16

Decode = Callable[[bytes, int, int, int, int | None], list[KeyInfo]]
DecodeColumns = Callable[[bytes, int, int, int], KeyColumns]


class Kept(NamedTuple):
    """What is written for a batch; `aborted` goes into the transaction index beside it."""

    data: bytes | memoryview
    records: int
    aborted: AbortedTransaction | None = None


class BatchFilter:
    """Decides batch by batch, told in the order of their offsets from the start of the log."""

    def __init__(
        self,
        rules: Retention,
        latest: OffsetMap,
        transactions: CleanedTransactions,
        decode: Decode = decode_keys,
        first_mapped_offset: int | None = None,
    ) -> None:
        """`first_mapped_offset` is where the section begins of which the map has every key."""
        self._decode = decode
        self._first_mapped = first_mapped_offset
        self._survivors = None if first_mapped_offset is None else latest.survivors()
        self._rules = rules
        self._latest = latest
        self._transactions = transactions

    def keep(self, header: BatchHeader, batch: memoryview) -> Kept | None:
        if header.control:
            return self._keep_control(header, batch)
        aborted = self._transactions.on_data(header)
        if aborted or not header.count or self._is_superseded(header):
            return self._emptied(header, batch)
        if header.base_offset > self._latest.latest_offset:
            return Kept(batch, header.count)  # beyond what the map knows: the next round's work
        return self._keep_data(header, batch)

    def _is_superseded(self, header: BatchHeader) -> bool:
        """Whether later records have all the keys of a batch, as can be told without a look into it: that it has none of the offsets in
        the map, though the map has all of its keys. In a log of few keys that is nearly every batch."""
        survivors, first = self._survivors, self._first_mapped
        if survivors is None or first is None:
            return False
        if header.base_offset < first or header.last_offset > self._latest.latest_offset:
            return False
        at = bisect_left(survivors, header.base_offset)
        return at == len(survivors) or survivors[at] > header.last_offset

    def _keep_control(self, header: BatchHeader, batch: memoryview) -> Kept | None:
        marker = read_marker(batch) if header.count else None
        unneeded, aborted = self._transactions.on_control(header, marker)
        if not header.count or (unneeded and self._time_has_come(header)):
            return self._emptied(header, batch)
        if unneeded and header.delete_horizon_ms is None:
            return Kept(self._with_horizon(header, batch, None), header.count, aborted)
        return Kept(batch, header.count, aborted)

    def _keep_data(self, header: BatchHeader, batch: memoryview) -> Kept | None:
        body = body_of(header, batch, self._rules.max_decompressed_bytes)
        infos = key_infos(header, body, self._decode)
        kept = self._kept_records(header, infos)
        if not kept:
            return self._emptied(header, batch)
        if self._needs_horizon(header) and any(infos[i][3] for i in kept):
            return Kept(self._with_horizon(header, batch, kept), len(kept))
        if len(kept) == len(infos):
            return Kept(batch, len(kept))
        return Kept(self._cut(header, batch, body, infos, kept), len(kept))

    def _kept_records(self, header: BatchHeader, infos: Sequence[KeyInfo]) -> list[int]:
        """Which records stay: those that no later one supersedes, and of tombstones those whose time has not come."""
        keep_tombstones = not self._time_has_come(header)
        end, get = self._latest.latest_offset, self._latest.get
        return [
            i
            for i, (offset, _, key, tombstone) in enumerate(infos)
            if offset > end
            or (key is not None and offset >= get(key, -1) and (keep_tombstones or not tombstone))
        ]

    def _time_has_come(self, header: BatchHeader) -> bool:
        """Whether what tells of deletions may go from this batch: KIP-534, and every replica has it."""
        horizon_ms = header.delete_horizon_ms
        return self._rules.forget_deletions and horizon_ms is not None and horizon_ms <= self._rules.now_ms

    def _needs_horizon(self, header: BatchHeader) -> bool:
        """Not before all of the batch is cleaned: a tombstone's time runs from when it took older values away."""
        return not header.has_delete_horizon and header.last_offset <= self._latest.latest_offset

    def _emptied(self, header: BatchHeader, batch: memoryview) -> Kept | None:
        """The header alone where a producer's last sequence or epoch, or the end of the round, hangs on it."""
        if not self._must_stay(header):
            return None
        if not header.count:
            return Kept(batch, 0)
        data = build_batch(
            (),
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            leader_epoch=header.leader_epoch,
            timestamp_type=int(header.log_append_time),
            max_timestamp=header.max_timestamp,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=header.transactional,
            control=header.control,
        )
        return Kept(data, 0)

    def _must_stay(self, header: BatchHeader) -> bool:
        if header.next_offset == self._rules.end_offset:
            return True
        producer = self._rules.active_producers.get(header.producer_id) if header.producer_id >= 0 else None
        if producer is None:
            return False
        if producer.last_data_offset >= 0:
            return header.last_offset == producer.last_data_offset
        return header.control and header.producer_epoch == producer.epoch

    def _with_horizon(self, header: BatchHeader, batch: memoryview, kept: Sequence[int] | None) -> bytes:
        """The batch (or the kept records of it) with the time from which its tombstones or marker may go."""
        records = read_records(batch, max_bytes=self._rules.max_decompressed_bytes)
        return build_batch(
            records if kept is None else [records[i] for i in kept],
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            leader_epoch=header.leader_epoch,
            codec=header.codec,
            level=self._rules.levels.get(header.codec),
            timestamp_type=int(header.log_append_time),
            max_timestamp=header.max_timestamp if header.log_append_time else None,
            delete_horizon_ms=self._rules.now_ms + self._rules.delete_retention_ms,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=header.transactional,
            control=header.control,
        )

    def _cut(
        self,
        header: BatchHeader,
        batch: memoryview,
        body: bytes,
        infos: Sequence[KeyInfo],
        kept: Sequence[int],
    ) -> bytes:
        spans = record_spans(body, header.count)
        new_body = b"".join([body[spans[i] : spans[i + 1]] for i in kept])
        if header.codec:
            new_body = compress(header.codec, new_body, self._rules.levels.get(header.codec))
        latest = header.max_timestamp if header.log_append_time else max(infos[i][1] for i in kept)
        return _with_body(batch, new_body, len(kept), latest)


def body_of(header: BatchHeader, batch: memoryview, max_bytes: int) -> bytes:
    """The records of a batch, decompressed."""
    return decompress(header.codec, batch[HEADER_SIZE : header.size], max_bytes=max_bytes)


def key_columns(header: BatchHeader, body: bytes, decode: DecodeColumns = decode_key_columns) -> KeyColumns:
    """Offsets and keys alone; of small batches as `key_infos`."""
    if header.count < _MIN_FAST:
        decode = decode_key_columns
    return decode(body, header.count, header.base_offset, header.last_offset)


def key_infos(header: BatchHeader, body: bytes, decode: Decode = decode_keys) -> list[KeyInfo]:
    """`decode` may be the C extension; for small batches, which it has a price for, the reference serves."""
    append_time = header.max_timestamp if header.log_append_time else None
    if header.count < _MIN_FAST:
        decode = decode_keys
    return decode(body, header.count, header.base_offset, header.base_timestamp, append_time)


def record_spans(body: bytes, count: int) -> list[int]:
    """Where each record begins, and at last where they end. Only for a body whose structure was checked."""
    at = 0
    spans = [0]
    for _ in range(count):
        size = body[at]
        if size < 128:
            at += 1 + (size >> 1)
        else:
            size, at = read_unsigned_varint(body, at)
            at += size >> 1
        spans.append(at)
    return spans


def _with_body(batch: memoryview, body: bytes, count: int, max_timestamp: int) -> bytes:
    """The same header over other records."""
    head = bytearray(batch[:HEADER_SIZE])
    struct.pack_into(">i", head, LENGTH_AT, HEADER_SIZE - LOG_OVERHEAD + len(body))
    struct.pack_into(">q", head, MAX_TIMESTAMP_AT, max_timestamp)
    struct.pack_into(">i", head, COUNT_AT, count)
    stamp_crc(head, body)
    return b"".join((head, body))
