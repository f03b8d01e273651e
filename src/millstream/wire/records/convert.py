"""Jobs on the records of batches: validation, recompression, conversion from and to old formats.

All are pure functions of picklable values, so a broker runs them inline for a small batch and in a
child process for a large one. They decode a few thousand records at a time, because small records
take far more memory decoded than encoded.

Validation and error codes follow Kafka's LogValidator. A wrong checksum or framing is
CORRUPT_MESSAGE (retriable), an inconsistent batch is INVALID_RECORD, and one bad record rejects its
whole batch. Kafka returns UNKNOWN_SERVER_ERROR for an unknown codec or data that does not
decompress; here those have specific codes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

from millstream.core.errors import ApiError, ErrorCode
from millstream.wire.records import legacy
from millstream.wire.records.batch import (
    BatchHeader,
    crc_matches,
    make_attributes,
    parse_header,
    seal_batch,
)
from millstream.wire.records.compression import Codec, compress, decompress
from millstream.wire.records.corrupt import (
    CorruptBatch,
    CorruptMessage,
    DecompressedTooLarge,
    UnknownCodec,
)
from millstream.wire.records.layout import HEADER_SIZE, MAGIC, MAGIC_AT
from millstream.wire.records.legacy import Message
from millstream.wire.records.payload import (
    CHUNK,
    KeyInfo,
    Record,
    encode_records,
    iter_keys,
    iter_records,
)
from millstream.wire.records.timestamps import out_of_range

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1

_MAX_RECORD_ERRORS: Final = 100
_NO_TIMESTAMP: Final = -1
_LONG_MIN: Final = -(1 << 63)
_LONG_MAX: Final = (1 << 63) - 1
_BLANK: Final = BatchHeader(0, 0, -1, MAGIC, 0, 0, 0, -1, -1, -1, -1, -1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildSpec:
    """The requirements of a topic for the batches produced to it."""

    max_decompressed_bytes: int
    # None keeps the producer's codec.
    target_codec: int | None = None
    # Level of the target codec; None is its default.
    level: int | None = None
    require_keys: bool = False
    timestamp_type: int = CREATE_TIME
    now_ms: int = 0
    # Maximum distance of record timestamps from now_ms; None is unlimited.
    before_max_ms: int | None = None
    after_max_ms: int | None = None
    # A topic setting requests validation of each record. Every rebuild does that anyway.
    deep: bool = False


class RecordsRejected(ApiError):
    """A batch rejected because of some records; Produce responses name them from v8 (KIP-467)."""

    def __init__(
        self, code: ErrorCode, message: str, record_errors: tuple[tuple[int, str], ...]
    ) -> None:
        super().__init__(code, message)
        # (index in the batch, reason) of the first hundred.
        self.record_errors = record_errors

    def __reduce__(self) -> tuple[type[ApiError], tuple[object, ...]]:  # type: ignore[override]
        return RecordsRejected, (self.code, self.message, self.record_errors)


def rebuild(records: bytes, spec: RebuildSpec) -> bytes:
    """Return a valid version 2 batch of produced records; the same object if nothing has to change.

    An empty message set (or one truncated in its first message) returns b"": nothing to append, and
    not an error.
    """
    try:
        if len(records) <= MAGIC_AT:
            return b""
        if records[MAGIC_AT] in (0, 1):
            return _from_legacy(bytes(records), spec)
        return _checked_v2(records, spec)
    except CorruptBatch as error:
        raise api_error(error) from None


def api_error(error: CorruptBatch) -> ApiError:
    """Return the error that Kafka responds with for such bytes."""
    if isinstance(error, DecompressedTooLarge):
        return ApiError(ErrorCode.MESSAGE_TOO_LARGE, str(error))
    if isinstance(error, UnknownCodec):
        return ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, str(error))
    if isinstance(error, CorruptMessage):
        return ApiError(ErrorCode.CORRUPT_MESSAGE, str(error))
    return ApiError(ErrorCode.INVALID_RECORD, str(error))


# ---------------------------------------------------------------- version 2 in


def check_header(header: BatchHeader) -> None:
    """Validate the header of a produced batch (LogValidator.validateBatch)."""
    if header.base_offset != 0:
        raise CorruptBatch(f"the base offset of a produced batch is {header.base_offset}, not 0")
    if header.count <= 0 or header.last_offset_delta != header.count - 1:
        raise CorruptBatch(
            f"{header.count} records with a last offset delta of {header.last_offset_delta}"
        )
    if header.control:
        raise CorruptBatch("clients may not write control records")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise CorruptBatch(f"sequence {header.base_sequence} of producer id {header.producer_id}")


def _checked_v2(records: bytes, spec: RebuildSpec) -> bytes:
    header = parse_header(records)
    if header.size > len(records):
        raise CorruptBatch(f"{len(records)} of the {header.size} bytes of the batch are present")
    if not crc_matches(records, 0, header):
        raise CorruptMessage("the CRC-32C of the batch is wrong")
    if header.size < len(records):
        raise CorruptBatch("more than one batch for a partition", header.size)
    check_header(header)
    packed = memoryview(records)[HEADER_SIZE:]
    body = decompress(header.codec, packed, max_bytes=spec.max_decompressed_bytes)
    validator = _RecordValidator(spec, header.log_append_time)
    for infos in iter_keys(body, header.count, 0, header.base_timestamp, None):
        validator.check(infos)
    validator.finish()
    new = _stamped(header, spec, validator.max_timestamp)
    if validator.renumber:
        return seal_batch(new, compress(new.codec, _renumbered(header, body), spec.level))
    if new == header:
        return records
    return seal_batch(
        new, packed if new.codec == header.codec else compress(new.codec, body, spec.level)
    )


def _stamped(header: BatchHeader, spec: RebuildSpec, max_timestamp: int) -> BatchHeader:
    """Return the header with the codec and the timestamp type of the topic."""
    codec = header.codec if spec.target_codec is None else spec.target_codec
    if spec.timestamp_type == LOG_APPEND_TIME:
        max_timestamp = spec.now_ms
    attributes = make_attributes(codec, spec.timestamp_type, header.transactional)
    return header._replace(attributes=attributes, max_timestamp=max_timestamp)


def _renumbered(header: BatchHeader, body: bytes) -> bytes:
    """Return the records with offset deltas 0, 1, 2, ...

    Other deltas are corrected and not rejected, because old clients sent such batches.
    """
    out = bytearray()
    index = 0
    for chunk in iter_records(body, header.count, 0, header.base_timestamp, None):
        numbered = [record._replace(offset=index + i) for i, record in enumerate(chunk)]
        out += encode_records(numbered, 0, header.base_timestamp)
        index += len(chunk)
    return bytes(out)


# ---------------------------------------------------------------- magic 0 and 1 in


def _from_legacy(data: bytes, spec: RebuildSpec) -> bytes:
    entries = legacy.parse_messages(data)
    first = next(entries, None)
    if first is None:
        return b""
    messages = _produced_messages(first, entries, spec)
    validator = _RecordValidator(spec, first.log_append_time)
    body = bytearray()
    base_timestamp = _NO_TIMESTAMP
    while chunk := list(islice(messages, CHUNK)):
        if not validator.count:
            base_timestamp = chunk[0].timestamp
        records = [
            Record(i, m.timestamp, m.key, m.value) for i, m in enumerate(chunk, validator.count)
        ]
        validator.check(
            [(offset, time, key, value is None) for offset, time, key, value, _ in records]
        )
        body += encode_records(records, 0, base_timestamp)
    validator.finish()
    header = _BLANK._replace(
        attributes=first.codec,
        last_offset_delta=validator.count - 1,
        base_timestamp=base_timestamp,
        count=validator.count,
    )
    header = _stamped(header, spec, validator.max_timestamp)
    return seal_batch(header, compress(header.codec, body, spec.level))


def _produced_messages(
    first: Message, rest: Iterator[Message], spec: RebuildSpec
) -> Iterator[Message]:
    """Yield the messages of a produced set: uncompressed ones, or those in its only wrapper."""
    if not first.codec:
        yield from _alike(first, chain((first,), rest))
    elif next(rest, None) is not None:
        raise CorruptBatch("a compressed message is not the only one of its set")
    else:
        inner = legacy.inner_messages(first, max_bytes=spec.max_decompressed_bytes)
        time = first.timestamp if first.log_append_time else None
        for message in _alike(first, inner):
            yield message if time is None else message._replace(timestamp=time)


def _alike(first: Message, messages: Iterable[Message]) -> Iterator[Message]:
    for message in messages:
        if message.magic != first.magic:
            raise CorruptBatch(f"messages of magic {first.magic} and {message.magic} in one set")
        if message.codec:
            raise CorruptBatch("a compressed message is not the only one of its set")
        if message.timestamp < _NO_TIMESTAMP:
            raise ApiError(
                ErrorCode.INVALID_TIMESTAMP, f"a message with timestamp {message.timestamp}"
            )
        yield message


# ---------------------------------------------------------------- each record


class _RecordValidator:
    """Validates records chunk by chunk.

    It counts all bad records and names the first hundred. As in Kafka, one bad timestamp determines
    the error code, and the timestamp of a record without its required key is not checked.
    """

    def __init__(self, spec: RebuildSpec, claims_append_time: bool) -> None:
        self.count = 0
        self.max_timestamp = _NO_TIMESTAMP
        self.renumber = False
        self._create_time = spec.timestamp_type == CREATE_TIME
        self._claims_append_time = claims_append_time
        self._require_keys = spec.require_keys
        self._earliest = (
            _LONG_MIN if spec.before_max_ms is None else spec.now_ms - spec.before_max_ms
        )
        self._latest = _LONG_MAX if spec.after_max_ms is None else spec.now_ms + spec.after_max_ms
        self._spec = spec
        self._keyless = 0
        self._bad_timestamps = 0
        self._record_errors: list[tuple[int, str]] = []

    def check(self, infos: list[KeyInfo]) -> None:
        if not infos:
            return
        start = self.count
        self.count += len(infos)
        if [info[0] for info in infos] != list(range(start, self.count)):
            self.renumber = True
        times = [info[1] for info in infos]
        newest = max(times)
        self.max_timestamp = max(self.max_timestamp, newest)
        out_of_range = self._create_time and (newest > self._latest or min(times) < self._earliest)
        keyless = self._require_keys and None in [info[2] for info in infos]
        if out_of_range or keyless or self._claims_append_time:
            for index, info in enumerate(infos, start):
                self._check_record(index, info)

    def _check_record(self, index: int, info: KeyInfo) -> None:
        timestamp = info[1]
        if self._require_keys and info[2] is None:
            self._keyless += 1
            self._add_error(index, "a compacted topic cannot hold a record without a key")
        elif self._create_time and timestamp != _NO_TIMESTAMP:
            if not self._earliest <= timestamp <= self._latest:
                self._bad_timestamps += 1
                spec = self._spec
                max_ms = spec.after_max_ms if timestamp > spec.now_ms else spec.before_max_ms
                self._add_error(index, out_of_range(timestamp, spec.now_ms, max_ms))
        elif self._claims_append_time:
            self._bad_timestamps += 1
            self._add_error(index, "a producer may not set the timestamp type LogAppendTime")

    def _add_error(self, index: int, reason: str) -> None:
        if len(self._record_errors) < _MAX_RECORD_ERRORS:
            self._record_errors.append((index, reason))

    def finish(self) -> None:
        if not self._record_errors:
            return
        code = ErrorCode.INVALID_TIMESTAMP if self._bad_timestamps else ErrorCode.INVALID_RECORD
        index, reason = self._record_errors[0]
        rejected = self._keyless + self._bad_timestamps
        message = f"{rejected} of {self.count} records are rejected; record {index}: {reason}"
        raise RecordsRejected(code, message, tuple(self._record_errors))


# ---------------------------------------------------------------- magic 0 and 1 out


def down_convert(
    batches: bytes, target_magic: int, *, first_offset: int, max_decompressed_bytes: int
) -> bytes:
    """Convert stored batches to a message set, for Fetch versions 0 to 3.

    Record headers and control batches are dropped, because message sets do not have them. Records
    below `first_offset` are dropped from uncompressed batches; some versions of librdkafka rely on
    that. The set ends before a zstd batch: the consumer reads the batches before it, and its next
    fetch gets an error (KIP-110).
    """
    out = bytearray()
    try:
        for header, view in _stored(batches):
            if header.control or header.count == 0:
                continue
            if header.codec == Codec.ZSTD:
                if out:
                    break
                raise ApiError(
                    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "this client cannot read zstd"
                )
            out += _down(header, view, target_magic, first_offset, max_decompressed_bytes)
    except DecompressedTooLarge as error:
        raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, str(error)) from None
    except CorruptBatch as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    return bytes(out)


def _stored(batches: bytes) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the complete batches of a slice of the log, which may end inside a batch."""
    view = memoryview(batches)
    pos = 0
    while len(view) - pos >= HEADER_SIZE:
        header = parse_header(view, pos)
        if header.size > len(view) - pos:
            return
        yield header, view[pos + HEADER_SIZE : pos + header.size]
        pos += header.size


def _down(
    header: BatchHeader, packed: memoryview, magic: int, first_offset: int, max_bytes: int
) -> bytes:
    body = decompress(header.codec, packed, max_bytes=max_bytes)
    append_time = header.max_timestamp if header.log_append_time else None
    chunks = iter_records(
        body, header.count, header.base_offset, header.base_timestamp, append_time
    )
    skip_below = _LONG_MIN if header.codec else first_offset
    records = (record for chunk in chunks for record in chunk if record.offset >= skip_below)
    return legacy.build_message_set(records, magic, codec=header.codec, append_time=append_time)
