"""Turn the bytes of fetch responses into the Arrow batches of one offset range. No I/O.

Offsets without a visible record are skipped: transaction markers, aborted transactions, and offsets
that compaction removed. Record batches may overlap the edges of the range, so records outside it
are dropped after decoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from millstream.client.errors import ClientError
from millstream.core.errors import ErrorCode
from millstream.spark.source.arrow_decode import (
    Body,
    Columns,
    arrow_schema,
    decode,
    from_records,
    to_record_batch,
)
from millstream.spark.source.arrow_json import UNPROVEN, Plan, proven
from millstream.spark.source.offsets import Range
from millstream.wire.records.batch import BatchHeader, crc_matches, parse_header, read_marker
from millstream.wire.records.compression import decompress
from millstream.wire.records.corrupt import CorruptBatch
from millstream.wire.records.layout import HEADER_SIZE, LOG_OVERHEAD, MAGIC, MAGIC_AT
from millstream.wire.records.legacy import read_message_set

# Decompressed bytes that are decoded together; an Arrow batch has about as many.
GROUP_BYTES = 2 << 20
MAX_DECOMPRESSED_BYTES = 1 << 30

AbortedTransaction = tuple[int, int]
"""Producer id and first offset of an aborted transaction, as a fetch response lists them."""


class RangeDecoder:
    """Decodes the records of one range.

    ``columns`` are the columns to return, each with whether it may be null. ``json`` is the schema
    by which values are parsed, if they are.
    """

    def __init__(self, span: Range, columns: Sequence[tuple[str, bool]], json: Plan | None) -> None:
        self._span = span
        self._json = json
        names = [name for name, _ in columns]
        schema = arrow_schema(names, json)
        self._schema = pa.schema([schema.field(name).with_nullable(null) for name, null in columns])
        self._include_headers = "headers" in names

    def select(
        self,
        records: memoryview | bytes,
        position: int,
        aborted: Sequence[AbortedTransaction] | None,
    ) -> tuple[list[Body | bytes], int]:
        """Return the batches that have records of the range, and the position after them.

        ``aborted`` is None for read_uncommitted. Old message sets are returned as bytes.
        """
        buffer = memoryview(records)
        hidden = None if aborted is None else _AbortedBatches(aborted)
        bodies: list[Body | bytes] = []
        pos = 0
        # An old message may be shorter than the header of a batch.
        while pos + MAGIC_AT < len(buffer) and position < self._span.end:
            if buffer[pos + MAGIC_AT] < MAGIC:
                old = bytes(buffer[pos:])
                return [*bodies, old], self._after_old_messages(old, position)
            if pos + HEADER_SIZE > len(buffer):
                break
            header = parse_header(buffer, pos)
            if pos + header.size > len(buffer):
                # Brokers may truncate the last batch of a response.
                break
            if not crc_matches(buffer, pos, header):
                raise self._corrupt(header.base_offset, "its checksum is wrong")
            if self._is_visible(buffer, pos, header, hidden):
                bodies.append(Body(header, buffer, pos + HEADER_SIZE, pos + header.size))
            position = max(position, min(header.next_offset, self._span.end))
            pos += header.size
        return bodies, position

    def _is_visible(
        self, buffer: memoryview, pos: int, header: BatchHeader, hidden: _AbortedBatches | None
    ) -> bool:
        if hidden is not None and hidden.hides(buffer, pos, header):
            return False
        if header.control or not header.count:
            return False
        return header.next_offset > self._span.start and header.base_offset < self._span.end

    def _after_old_messages(self, buffer: bytes, position: int) -> int:
        """Return the position after message sets from before Kafka 0.11.

        Brokers return them as they stored them.
        """
        records = read_message_set(buffer, max_bytes=MAX_DECOMPRESSED_BYTES)
        if not records:
            return position
        return max(position, min(records[-1].offset + 1, self._span.end))

    def decode(self, bodies: list[Body | bytes], first: int) -> Iterator[pa.RecordBatch]:
        """Yield the records of selected batches from the offset ``first`` on."""
        group: list[Body] = []
        size = 0
        for body in bodies:
            if isinstance(body, bytes):
                yield from self._decode_group(group, first)
                yield from self._decode_old_messages(body, first)
                group, size = [], 0
                continue
            group.append(self._decompressed(body))
            size += group[-1].end - group[-1].start
            if size >= GROUP_BYTES:
                yield from self._decode_group(group, first)
                group, size = [], 0
        yield from self._decode_group(group, first)

    def _decompressed(self, body: Body) -> Body:
        if not body.header.codec:
            return body
        packed = memoryview(body.buffer)[body.start : body.end]
        try:
            plain = decompress(body.header.codec, packed, max_bytes=MAX_DECOMPRESSED_BYTES)
        except CorruptBatch as error:
            raise self._corrupt(body.header.base_offset, str(error)) from None
        return Body(body.header, plain, 0, len(plain))

    def _decode_group(self, group: list[Body], first: int) -> Iterator[pa.RecordBatch]:
        if not group:
            return
        try:
            columns = decode(group, first, self._span.end, self._include_headers)
        except CorruptBatch as error:
            raise self._corrupt(group[0].header.base_offset, str(error)) from None
        if len(columns.offsets):
            yield from self._batch(columns)

    def _decode_old_messages(self, buffer: bytes, first: int) -> Iterator[pa.RecordBatch]:
        messages = read_message_set(buffer, max_bytes=MAX_DECOMPRESSED_BYTES)
        records = [record for record in messages if first <= record.offset < self._span.end]
        if records:
            yield from self._batch(from_records(records, [0] * len(records), self._include_headers))

    def _batch(self, columns: Columns) -> Iterator[pa.RecordBatch]:
        batch = to_record_batch(columns, *self._span.partition, self._schema, self._json)
        if self._json is not None and UNPROVEN in self._schema.names:
            batch = batch.filter(pa.array(~proven(columns.values, self._json)))
        if batch.num_rows:
            yield batch

    def _corrupt(self, offset: int, reason: str) -> ClientError:
        return ClientError(
            f"the batch of {self._span.partition} at offset {offset} is damaged: {reason}",
            hint="inspect it with `millstream log dump`; to skip it, start after it with startingOffsets",
            code=ErrorCode.CORRUPT_MESSAGE,
        )


class _AbortedBatches:
    """The batches of aborted transactions, found in log order."""

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._coming = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
        self._open: set[int] = set()

    def hides(self, buffer: memoryview, pos: int, header: BatchHeader) -> bool:
        """Return whether a batch belongs to an aborted transaction.

        Call it for each batch in order.
        """
        if not self._coming and not self._open:
            return False
        while self._coming and self._coming[-1][1] <= header.last_offset:
            self._open.add(self._coming.pop()[0])
        if header.producer_id not in self._open or not header.transactional:
            return False
        if header.control:
            marker = read_marker(buffer[pos : pos + header.length + LOG_OVERHEAD])
            if marker is not None and not marker.commit:
                self._open.discard(header.producer_id)
        return True
