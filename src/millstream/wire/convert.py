"""Jobs that look inside produced or stored batches: validation, recompression, conversion from and to old formats.

Pure functions of picklable values, so that a broker runs them inline when the batch is small and in a child process
when it is large. What is refused, and with which code, follows Kafka's LogValidator: a wrong checksum or framing is
CORRUPT_MESSAGE (worth a retry), a batch that contradicts itself is INVALID_RECORD, and one bad record refuses its
batch. Where Kafka fails with UNKNOWN_SERVER_ERROR (data that does not decompress, an unknown codec) we say more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from millstream.core.errors import ApiError, ErrorCode
from millstream.wire import batch as batches_v2
from millstream.wire import legacy
from millstream.wire.batch import BatchHeader, build_batch, parse_header, rewrite_header
from millstream.wire.compression import Codec, compress, decompress
from millstream.wire.corrupt import CorruptBatch, CorruptMessage, DecompressedTooLarge, UnknownCodec
from millstream.wire.records import KeyInfo, Record, decode_keys, decode_records

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1

_MAX_REPORTED: Final = 100
_NO_TIMESTAMP: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildSpec:
    """What a topic asks of the batches produced to it."""

    max_decompressed_bytes: int
    target_codec: int | None = None  # None keeps the producer's
    level: int | None = None  # of the target codec
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
        if len(records) <= legacy.MAGIC_AT:
            return b""
        if records[legacy.MAGIC_AT] in (0, 1):
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
    if not batches_v2.crc_matches(records, 0, header):
        raise CorruptMessage("the CRC-32C of the batch is wrong")
    if header.size < len(records):
        raise CorruptBatch("more than one batch for a partition", header.size)
    check_header(header)
    packed = memoryview(records)[batches_v2.HEADER_SIZE :]
    body = decompress(header.codec, packed, max_bytes=spec.max_decompressed_bytes)
    infos = decode_keys(body, header.count, 0, header.base_timestamp, None)
    _check_records(infos, spec, header.log_append_time)
    if any(info[0] != index for index, info in enumerate(infos)):
        return _renumbered(header, body, spec)
    return _restamped(records, header, body, infos, spec)


def _renumbered(header: BatchHeader, body: bytes, spec: RebuildSpec) -> bytes:
    """Offset deltas that do not count 0, 1, 2, ... are put right, not refused: old clients sent such batches."""
    return _build(
        decode_records(body, header.count, 0, header.base_timestamp, None),
        header.codec,
        spec,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.transactional,
    )


def _restamped(
    records: bytes, header: BatchHeader, body: bytes, infos: list[KeyInfo], spec: RebuildSpec
) -> bytes:
    """The batch with another codec, timestamp type or maximum, its records' bytes untouched."""
    codec = header.codec if spec.target_codec is None else spec.target_codec
    if spec.timestamp_type == LOG_APPEND_TIME:
        max_timestamp = spec.now_ms
    else:
        max_timestamp = max(_NO_TIMESTAMP, max(info[1] for info in infos))
    same_time = header.log_append_time == bool(spec.timestamp_type) and header.max_timestamp == max_timestamp
    if codec == header.codec and same_time and not header.has_delete_horizon:
        return records
    packed = records[batches_v2.HEADER_SIZE :] if codec == header.codec else compress(codec, body, spec.level)
    return rewrite_header(
        header, packed, codec=codec, timestamp_type=spec.timestamp_type, max_timestamp=max_timestamp
    )


# ---------------------------------------------------------------- magic 0 and 1 in


def _from_legacy(records: bytes, spec: RebuildSpec) -> bytes:
    entries = legacy.parse_messages(records)
    if not entries:
        return b""
    first = entries[0]
    if len(entries) > 1 and any(entry.codec for entry in entries):
        raise CorruptBatch("a compressed message is not the only one of its set")
    messages = legacy.unwrap(first, max_bytes=spec.max_decompressed_bytes) if first.codec else entries
    if any(message.magic != first.magic for message in messages):
        raise CorruptBatch("messages of different magic in one set")
    infos = [(m.offset, m.timestamp, m.key, m.value is None) for m in messages]
    _check_records(infos, spec, first.log_append_time)
    decoded = [Record(m.offset, m.timestamp, m.key, m.value) for m in messages]
    return _build(decoded, first.codec, spec)


def _build(
    records: list[Record],
    codec: int,
    spec: RebuildSpec,
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """A new batch with offsets from 0."""
    if any(record.timestamp < _NO_TIMESTAMP for record in records):
        raise ApiError(ErrorCode.INVALID_TIMESTAMP, "a record with a negative timestamp")
    return build_batch(
        [record._replace(offset=index) for index, record in enumerate(records)],
        codec=codec if spec.target_codec is None else spec.target_codec,
        level=spec.level if spec.target_codec is not None else None,
        timestamp_type=spec.timestamp_type,
        max_timestamp=spec.now_ms if spec.timestamp_type == LOG_APPEND_TIME else None,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
    )


# ---------------------------------------------------------------- each record


def _check_records(infos: list[KeyInfo], spec: RebuildSpec, claims_append_time: bool) -> None:
    """Null keys and timestamps. All bad records are told, and one bad timestamp decides the code, as in Kafka."""
    keyless = dict(_key_errors(infos)) if spec.require_keys else {}
    late = {
        index: why
        for index, why in _timestamp_errors(infos, spec, claims_append_time)
        if index not in keyless
    }
    if late:
        code = ErrorCode.INVALID_TIMESTAMP
        message = f"{len(late)} records are refused for their timestamps, the first because {next(iter(late.values()))}"
    elif keyless:
        code = ErrorCode.INVALID_RECORD
        message = f"{len(keyless)} records have no key, which a compacted topic cannot hold"
    else:
        return
    raise RecordsRejected(code, message, tuple(sorted((keyless | late).items())[:_MAX_REPORTED]))


def _key_errors(infos: list[KeyInfo]) -> Iterator[tuple[int, str]]:
    for index, info in enumerate(infos):
        if info[2] is None:
            yield index, "a compacted topic cannot hold a record without a key"


def _timestamp_errors(
    infos: list[KeyInfo], spec: RebuildSpec, claims_append_time: bool
) -> Iterator[tuple[int, str]]:
    """A record with a timestamp must lie within the topic's bounds; else its producer must not claim append time."""
    create_time = spec.timestamp_type == CREATE_TIME
    earliest = spec.now_ms - spec.before_max_ms if spec.before_max_ms is not None else None
    latest = spec.now_ms + spec.after_max_ms if spec.after_max_ms is not None else None
    if create_time and earliest is None and latest is None and not claims_append_time:
        return
    for index, info in enumerate(infos):
        timestamp = info[1]
        if create_time and timestamp != _NO_TIMESTAMP:
            if (earliest is not None and timestamp < earliest) or (latest is not None and timestamp > latest):
                yield index, f"timestamp {timestamp} is not within [{earliest}, {latest}]"
        elif claims_append_time:
            yield index, "a producer may not set the timestamp type LogAppendTime"


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
    while len(view) - pos >= batches_v2.HEADER_SIZE:
        header = parse_header(view, pos)
        if header.size > len(view) - pos:
            return
        yield header, view[pos : pos + header.size]
        pos += header.size


def _down(header: BatchHeader, view: memoryview, magic: int, first_offset: int, max_bytes: int) -> bytes:
    records = batches_v2.read_records(view, max_bytes=max_bytes)
    if not header.codec:
        records = [record for record in records if record.offset >= first_offset]
    append_time = header.max_timestamp if header.log_append_time else None
    return legacy.build_message_set(records, magic, codec=header.codec, append_time=append_time)
