"""Jobs that look inside produced or stored batches: validation, recompression, conversion from and to old formats.

Pure functions of picklable values, so that a broker runs them inline when the batch is small and in a child process
when it is large; they decode a few thousand records at a time, since small ones take far more room decoded than
encoded. What is refused, and with which code, follows Kafka's LogValidator: a wrong checksum or framing is
CORRUPT_MESSAGE (worth a retry), a batch that contradicts itself is INVALID_RECORD, and one bad record refuses its
batch. Where Kafka fails with UNKNOWN_SERVER_ERROR (data that does not decompress, an unknown codec) we say more.
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

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1

_MAX_NAMED: Final = 100
_NO_TIMESTAMP: Final = -1
_LONG_MIN: Final = -(1 << 63)
_LONG_MAX: Final = (1 << 63) - 1
_BLANK: Final = BatchHeader(0, 0, -1, MAGIC, 0, 0, 0, -1, -1, -1, -1, -1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildSpec:
    """What a topic asks of the batches produced to it."""

    max_decompressed_bytes: int
    target_codec: int | None = None  # None keeps the producer's
    level: int | None = None  # of the target codec; None = its default
    require_keys: bool = False
    timestamp_type: int = CREATE_TIME
    now_ms: int = 0
    before_max_ms: int | None = (
        None  # how far record timestamps may lie from now_ms; None = as far as they like
    )
    after_max_ms: int | None = None
    deep: bool = (
        False  # the topic asks for it by a setting; every rebuild looks as deeply, for whatever reason
    )


class RecordsRejected(ApiError):
    """A batch refused for some of its records, which Produce answers from version 8 on name (KIP-467)."""

    def __init__(self, code: ErrorCode, message: str, record_errors: tuple[tuple[int, str], ...]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors  # (index in the batch, why), the first hundred

    def __reduce__(self) -> tuple[type[ApiError], tuple[object, ...]]:  # type: ignore[override]
        return RecordsRejected, (self.code, self.message, self.record_errors)


def rebuild(records: bytes, spec: RebuildSpec) -> bytes:
    """One valid version 2 batch out of what a client produced; the very same object when nothing has to change.

    An empty message set (or one cut inside its first message) gives b"": nothing to append, and no error.
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
    """The answer that Kafka gives for bytes like these."""
    if isinstance(error, DecompressedTooLarge):
        return ApiError(ErrorCode.MESSAGE_TOO_LARGE, str(error))
    if isinstance(error, UnknownCodec):
        return ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, str(error))
    if isinstance(error, CorruptMessage):
        return ApiError(ErrorCode.CORRUPT_MESSAGE, str(error))
    return ApiError(ErrorCode.INVALID_RECORD, str(error))


# ---------------------------------------------------------------- version 2 in


def check_header(header: BatchHeader) -> None:
    """What a client's batch must satisfy by its header alone (LogValidator.validateBatch)."""
    if header.base_offset != 0:
        raise CorruptBatch(f"the base offset of a produced batch is {header.base_offset}, not 0")
    if header.count <= 0 or header.last_offset_delta != header.count - 1:
        raise CorruptBatch(f"{header.count} records with a last offset delta of {header.last_offset_delta}")
    if header.control:
        raise CorruptBatch("clients may not write control records")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise CorruptBatch(f"sequence {header.base_sequence} of producer id {header.producer_id}")


def _checked_v2(records: bytes, spec: RebuildSpec) -> bytes:
    header = parse_header(records)
    if header.size > len(records):
        raise CorruptBatch(f"{len(records)} of the {header.size} bytes of the batch are there")
    if not crc_matches(records, 0, header):
        raise CorruptMessage("the CRC-32C of the batch is wrong")
    if header.size < len(records):
        raise CorruptBatch("more than one batch for a partition", header.size)
    check_header(header)
    packed = memoryview(records)[HEADER_SIZE:]
    body = decompress(header.codec, packed, max_bytes=spec.max_decompressed_bytes)
    judge = _Judge(spec, header.log_append_time)
    for infos in iter_keys(body, header.count, 0, header.base_timestamp, None):
        judge.look(infos)
    judge.conclude()
    new = _stamped(header, spec, judge.max_timestamp)
    if judge.renumber:
        return seal_batch(new, compress(new.codec, _renumbered(header, body), spec.level))
    if new == header:
        return records
    return seal_batch(new, packed if new.codec == header.codec else compress(new.codec, body, spec.level))


def _stamped(header: BatchHeader, spec: RebuildSpec, max_timestamp: int) -> BatchHeader:
    """The header with the codec and the kind of timestamps that the topic wants."""
    codec = header.codec if spec.target_codec is None else spec.target_codec
    if spec.timestamp_type == LOG_APPEND_TIME:
        max_timestamp = spec.now_ms
    attributes = make_attributes(codec, spec.timestamp_type, header.transactional)
    return header._replace(attributes=attributes, max_timestamp=max_timestamp)


def _renumbered(header: BatchHeader, body: bytes) -> bytes:
    """Offset deltas that do not count 0, 1, 2, ... are put right, not refused: old clients sent such batches."""
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
    judge = _Judge(spec, first.log_append_time)
    body = bytearray()
    base_timestamp = _NO_TIMESTAMP
    while chunk := list(islice(messages, CHUNK)):
        if not judge.count:
            base_timestamp = chunk[0].timestamp
        records = [Record(i, m.timestamp, m.key, m.value) for i, m in enumerate(chunk, judge.count)]
        judge.look([(offset, time, key, value is None) for offset, time, key, value, _ in records])
        body += encode_records(records, 0, base_timestamp)
    judge.conclude()
    header = _BLANK._replace(
        attributes=first.codec,
        last_offset_delta=judge.count - 1,
        base_timestamp=base_timestamp,
        count=judge.count,
    )
    header = _stamped(header, spec, judge.max_timestamp)
    return seal_batch(header, compress(header.codec, body, spec.level))


def _produced_messages(first: Message, rest: Iterator[Message], spec: RebuildSpec) -> Iterator[Message]:
    """The messages of a produced set: all of the plain ones, or those in its only, compressed one."""
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
            raise ApiError(ErrorCode.INVALID_TIMESTAMP, f"a message with timestamp {message.timestamp}")
        yield message


# ---------------------------------------------------------------- each record


class _Judge:
    """Looks at records chunk by chunk. All bad ones are counted and the first hundred named; one bad timestamp
    decides the code, and of a record without a key the timestamp does not matter, as in Kafka."""

    def __init__(self, spec: RebuildSpec, claims_append_time: bool) -> None:
        self.count = 0
        self.max_timestamp = _NO_TIMESTAMP
        self.renumber = False
        self._create_time = spec.timestamp_type == CREATE_TIME
        self._claims_append_time = claims_append_time
        self._require_keys = spec.require_keys
        self._earliest = _LONG_MIN if spec.before_max_ms is None else spec.now_ms - spec.before_max_ms
        self._latest = _LONG_MAX if spec.after_max_ms is None else spec.now_ms + spec.after_max_ms
        self._keyless = 0
        self._late = 0
        self._named: list[tuple[int, str]] = []

    def look(self, infos: list[KeyInfo]) -> None:
        if not infos:
            return
        start = self.count
        self.count += len(infos)
        if [info[0] for info in infos] != list(range(start, self.count)):
            self.renumber = True
        times = [info[1] for info in infos]
        newest = max(times)
        self.max_timestamp = max(self.max_timestamp, newest)
        bounded = self._create_time and (newest > self._latest or min(times) < self._earliest)
        keyless = self._require_keys and None in [info[2] for info in infos]
        if bounded or keyless or self._claims_append_time:
            for index, info in enumerate(infos, start):
                self._judge(index, info)

    def _judge(self, index: int, info: KeyInfo) -> None:
        timestamp = info[1]
        if self._require_keys and info[2] is None:
            self._keyless += 1
            self._name(index, "a compacted topic cannot hold a record without a key")
        elif self._create_time and timestamp != _NO_TIMESTAMP:
            if not self._earliest <= timestamp <= self._latest:
                self._late += 1
                self._name(index, f"timestamp {timestamp} is not within [{self._earliest}, {self._latest}]")
        elif self._claims_append_time:
            self._late += 1
            self._name(index, "a producer may not set the timestamp type LogAppendTime")

    def _name(self, index: int, why: str) -> None:
        if len(self._named) < _MAX_NAMED:
            self._named.append((index, why))

    def conclude(self) -> None:
        if not self._named:
            return
        code = ErrorCode.INVALID_TIMESTAMP if self._late else ErrorCode.INVALID_RECORD
        index, why = self._named[0]
        refused = self._keyless + self._late
        message = f"{refused} of {self.count} records are refused; record {index}: {why}"
        raise RecordsRejected(code, message, tuple(self._named))


# ---------------------------------------------------------------- magic 0 and 1 out


def down_convert(
    batches: bytes, target_magic: int, *, first_offset: int, max_decompressed_bytes: int
) -> bytes:
    """Stored batches as a message set for Fetch versions 0 to 3; headers and control batches have no place in one.

    Records below `first_offset` are left out of uncompressed batches, on which some versions of librdkafka rely. A
    batch in zstd ends the set: the consumer reads what comes before, and is told on its next fetch (KIP-110).
    """
    out = bytearray()
    try:
        for header, view in _stored(batches):
            if header.control or header.count == 0:
                continue
            if header.codec == Codec.ZSTD:
                if out:
                    break
                raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "this client cannot read zstd")
            out += _down(header, view, target_magic, first_offset, max_decompressed_bytes)
    except DecompressedTooLarge as error:
        raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, str(error)) from None
    except CorruptBatch as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    return bytes(out)


def _stored(batches: bytes) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The whole batches of a slice of the log, which may end inside one."""
    view = memoryview(batches)
    pos = 0
    while len(view) - pos >= HEADER_SIZE:
        header = parse_header(view, pos)
        if header.size > len(view) - pos:
            return
        yield header, view[pos + HEADER_SIZE : pos + header.size]
        pos += header.size


def _down(header: BatchHeader, packed: memoryview, magic: int, first_offset: int, max_bytes: int) -> bytes:
    body = decompress(header.codec, packed, max_bytes=max_bytes)
    append_time = header.max_timestamp if header.log_append_time else None
    chunks = iter_records(body, header.count, header.base_offset, header.base_timestamp, append_time)
    skip_below = _LONG_MIN if header.codec else first_offset
    records = (record for chunk in chunks for record in chunk if record.offset >= skip_below)
    return legacy.build_message_set(records, magic, codec=header.codec, append_time=append_time)
