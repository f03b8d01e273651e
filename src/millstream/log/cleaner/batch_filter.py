"""Decides what cleaning keeps of a batch: all of it, some records, an empty header, or nothing.

Records keep their bytes: a batch keeps its base offset and base timestamp, so the kept records are
copied from the old body and joined. Only a batch that gets a delete horizon is re-encoded, once,
because the horizon replaces the base timestamp (KIP-534).
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
    """The data to write for a batch. `aborted` is its entry for the transaction index."""

    data: bytes | memoryview
    records: int
    aborted: AbortedTransaction | None = None


class BatchFilter:
    """Takes batches in the order of their offsets, from the start of the log."""

    def __init__(
        self,
        rules: Retention,
        latest: OffsetMap,
        transactions: CleanedTransactions,
        decode: Decode = decode_keys,
        first_mapped_offset: int | None = None,
    ) -> None:
        """Create a filter.

        The map has every key of the records from `first_mapped_offset` on.
        """
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
            return Kept(batch, header.count)  # beyond the map: left to the next round
        return self._keep_data(header, batch)

    def _is_superseded(self, header: BatchHeader) -> bool:
        """Return whether later records have all keys of a batch, without reading the batch.

        That is certain if the map has all keys of the batch, but none of its offsets. In a log of
        few keys that is true of nearly every batch.
        """
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
        if not header.count or (unneeded and self._horizon_reached(header)):
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
        return Kept(self._with_records(header, batch, body, infos, kept), len(kept))

    def _kept_records(self, header: BatchHeader, infos: Sequence[KeyInfo]) -> list[int]:
        """Return the records to keep: those not superseded, and tombstones before their horizon."""
        keep_tombstones = not self._horizon_reached(header)
        end, get = self._latest.latest_offset, self._latest.get
        return [
            i
            for i, (offset, _, key, tombstone) in enumerate(infos)
            if offset > end
            or (key is not None and offset >= get(key, -1) and (keep_tombstones or not tombstone))
        ]

    def _horizon_reached(self, header: BatchHeader) -> bool:
        """Return whether tombstones and markers of this batch may go.

        Their horizon is reached (KIP-534), and every replica has them.
        """
        horizon_ms = header.delete_horizon_ms
        return (
            self._rules.drop_deletions
            and horizon_ms is not None
            and horizon_ms <= self._rules.now_ms
        )

    def _needs_horizon(self, header: BatchHeader) -> bool:
        """Return whether a batch needs a delete horizon.

        Not before all of it is cleaned: the time of a tombstone starts when it removes older
        values.
        """
        return not header.has_delete_horizon and header.last_offset <= self._latest.latest_offset

    def _emptied(self, header: BatchHeader, batch: memoryview) -> Kept | None:
        """Return the header alone, or None if not even that is needed.

        It must stay if it has the last sequence or epoch of a producer, or ends the round.
        """
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
        producer = (
            self._rules.active_producers.get(header.producer_id)
            if header.producer_id >= 0
            else None
        )
        if producer is None:
            return False
        if producer.last_data_offset >= 0:
            return header.last_offset == producer.last_data_offset
        return header.control and header.producer_epoch == producer.epoch

    def _with_horizon(
        self, header: BatchHeader, batch: memoryview, kept: Sequence[int] | None
    ) -> bytes:
        """Return the batch, or its kept records, with a delete horizon."""
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

    def _with_records(
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
    """Return the records of a batch, decompressed."""
    return decompress(header.codec, batch[HEADER_SIZE : header.size], max_bytes=max_bytes)


def key_columns(
    header: BatchHeader, body: bytes, decode: DecodeColumns = decode_key_columns
) -> KeyColumns:
    """Return only offsets and keys. Small batches use the reference decoder, as in `key_infos`."""
    if header.count < _MIN_FAST:
        decode = decode_key_columns
    return decode(body, header.count, header.base_offset, header.last_offset)


def key_infos(header: BatchHeader, body: bytes, decode: Decode = decode_keys) -> list[KeyInfo]:
    """Decode the keys of a batch. `decode` may be the C extension.

    Small batches use the reference decoder, since the extension has an overhead per call.
    """
    append_time = header.max_timestamp if header.log_append_time else None
    if header.count < _MIN_FAST:
        decode = decode_keys
    return decode(body, header.count, header.base_offset, header.base_timestamp, append_time)


def record_spans(body: bytes, count: int) -> list[int]:
    """Return the start of each record, and the end of the last. The body must be valid."""
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
    """Return a batch with the same header and other records."""
    head = bytearray(batch[:HEADER_SIZE])
    struct.pack_into(">i", head, LENGTH_AT, HEADER_SIZE - LOG_OVERHEAD + len(body))
    struct.pack_into(">q", head, MAX_TIMESTAMP_AT, max_timestamp)
    struct.pack_into(">i", head, COUNT_AT, count)
    stamp_crc(head, body)
    return b"".join((head, body))
