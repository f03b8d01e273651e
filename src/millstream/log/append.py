"""Checks of a produce before it is written: those of Kafka's LogValidator that headers can decide.

Records are not decoded here. `inspect` says when they have to be (an old format, keys of a
compacted topic, another codec, timestamp bounds, deep validation). `wire.records.convert.rebuild`
then does it, before the append.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.core.errors import ApiError, ErrorCode
from millstream.core.settings import LONG_MAX
from millstream.log.config import LogConfig
from millstream.log.producers.state import Origin
from millstream.wire.records.batch import (
    BatchHeader,
    CorruptBatch,
    crc_matches,
    parse_header,
    stamp_append_time,
)
from millstream.wire.records.checksum import crc32c
from millstream.wire.records.layout import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL,
    CRC_AT,
    FLAGS_AT,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_AT,
)
from millstream.wire.records.payload import MIN_RECORD_SIZE
from millstream.wire.records.timestamps import out_of_range

if TYPE_CHECKING:
    from millstream.wire.records.convert import RebuildSpec

_CODECS: Final = {"uncompressed": 0, "none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
MAX_DECOMPRESSED_BYTES: Final = 1 << 28
# By codec: the maximum number of bytes that one compressed byte expands to, rounded.
_MAX_EXPANSION: Final = (1, 1_100, 100, 300, 50_000, 1, 1, 1)
# An uncompressed batch of at most this many records is walked through, so it has exactly the
# records that it declares. Kafka walks through every batch, which takes too long here: of a longer
# batch only the first record is checked.
_WALKED_RECORDS: Final = 8
_SHORTEST_RECORD: Final = 2 * (MIN_RECORD_SIZE - 1)  # zigzag, and without the length itself

__all__ = ["AppendResult", "Origin", "inspect", "parse_produced", "parse_replicated"]


class AppendResult(NamedTuple):
    """The result of a produce. A duplicate has the offsets and the time of the original batch."""

    base_offset: int
    last_offset: int
    append_time_ms: int  # -1 if the records keep the producer's timestamps
    log_start_offset: int
    duplicate: bool
    records: int


def parse_produced(
    records: memoryview, config: LogConfig, origin: Origin, now_ms: int, name: str
) -> BatchHeader:
    """Check the one batch that a client or coordinator appends. Return its header.

    Makes every check that needs no state. Timestamps are stamped in place for a LogAppendTime
    topic.
    """
    header = _parse(records, 0, name)
    size = len(records)
    if header.length + LOG_OVERHEAD != size:
        raise _wrong_size(header, size, name)
    if size > config.max_message_bytes:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch for {name} has {size} bytes, more than max.message.bytes {config.max_message_bytes}",
        )
    if not crc_matches(records, 0, header):
        raise _corrupt(f"the batch for {name} does not match its checksum")
    if origin is Origin.CLIENT:
        _check_client(records, header, name)
    if size > config.segment_bytes:
        raise ApiError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the batch for {name} has {size} bytes, more than segment.bytes {config.segment_bytes}",
        )
    return _check_times(records, header, config, now_ms, name)


def _parse(records: memoryview, position: int, name: str) -> BatchHeader:
    try:
        return parse_header(records, position)
    except CorruptBatch as error:
        raise _corrupt(f"the data for {name} is not a record batch: {error}") from None


def _wrong_size(header: BatchHeader, size: int, name: str) -> ApiError:
    if header.length + LOG_OVERHEAD > size:
        return _corrupt(f"the batch for {name} ends after {size} of {header.size} bytes")
    return _invalid(f"more than one record batch for {name} in one request")


def _check_client(records: memoryview, header: BatchHeader, name: str) -> None:
    if header.base_offset:
        raise _invalid(
            f"the base offset of the batch for {name} must be 0, but is {header.base_offset}"
        )
    if header.count <= 0 or header.last_offset_delta != header.count - 1:
        raise _invalid(
            f"the batch for {name} declares {header.count} records and last offset {header.last_offset_delta}"
        )
    if header.attributes & CONTROL:
        raise _invalid(f"clients may not write control records ({name})")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise _invalid(
            f"producer {header.producer_id} sent sequence {header.base_sequence} to {name};"
            " it must be 0 or more"
        )
    # Every consumer would stop at a batch whose number of records is wrong.
    count, codec, end = header.count, header.attributes & CODEC_MASK, header.length + LOG_OVERHEAD
    if count * MIN_RECORD_SIZE > (end - HEADER_SIZE) * _MAX_EXPANSION[codec]:
        raise _wrong_count(header, name)
    if codec:
        return
    # No call for each record, and no `len` or `range`: this runs for every produced batch.
    at, left = HEADER_SIZE, count
    walked_until = 0 if count <= _WALKED_RECORDS else count - 1
    try:
        while left > walked_until:
            length = records[at]
            if length < 128:
                at += 1
            elif records[at + 1] < 128:
                length = length & 127 | records[at + 1] << 7
                at += 2
            else:
                length, shift = 0, 0
                while True:
                    length |= (records[at] & 127) << shift
                    at += 1
                    if records[at - 1] < 128 or shift > 28:
                        break
                    shift += 7
            if length & 1 or length < _SHORTEST_RECORD:
                raise _wrong_count(header, name)
            at += length >> 1
            left -= 1
    except IndexError:
        raise _wrong_count(header, name) from None
    if at != end if not left else at + left * MIN_RECORD_SIZE > end:
        raise _wrong_count(header, name)


def _wrong_count(header: BatchHeader, name: str) -> ApiError:
    return _invalid(
        f"the batch for {name} declares {header.count} records, but its {header.size} bytes"
        " have another number"
    )


def _check_times(
    records: memoryview, header: BatchHeader, config: LogConfig, now_ms: int, name: str
) -> BatchHeader:
    if config.append_time:
        return stamp_append_time(records, 0, header, now_ms)
    if header.max_timestamp - now_ms > config.message_timestamp_after_max_ms:
        raise ApiError(
            ErrorCode.INVALID_TIMESTAMP,
            f"the batch for {name} is rejected: "
            + out_of_range(header.max_timestamp, now_ms, config.message_timestamp_after_max_ms),
        )
    if header.attributes & LOG_APPEND_TIME:
        return _clear_append_time(records, header)
    return header


def _clear_append_time(records: memoryview, header: BatchHeader) -> BatchHeader:
    """Clear the LogAppendTime bit, which a client must not set on a CreateTime topic."""
    attributes = header.attributes & ~LOG_APPEND_TIME
    struct.pack_into(">h", records, ATTRIBUTES_AT, attributes)
    crc = crc32c(records[ATTRIBUTES_AT:])
    struct.pack_into(">I", records, CRC_AT, crc)
    return header._replace(attributes=attributes, crc=crc)


def parse_replicated(
    records: memoryview, next_offset: int, leader_epoch: int, name: str
) -> list[BatchHeader]:
    """Return the headers of whole batches from a leader.

    CRC and increasing offsets are checked. Sizes are not: the leader accepted them. A partial batch
    at the end, and batches of an epoch newer than this replica's, are left out.
    """
    headers: list[BatchHeader] = []
    position, end = 0, len(records)
    while position + HEADER_SIZE <= end:
        header = _parse(records, position, name)
        if position + header.size > end or header.leader_epoch > leader_epoch:
            break
        if not crc_matches(records, position, header):
            raise _corrupt(
                f"the replicated batch at offset {header.base_offset} of {name} is corrupt"
            )
        if header.base_offset < next_offset or header.last_offset_delta < 0:
            raise ApiError(
                ErrorCode.INVALID_RECORD,
                f"the replicated batch at offset {header.base_offset} of {name} is before {next_offset}",
            )
        headers.append(header)
        next_offset = header.next_offset
        position += header.size
    return headers


def inspect(records: memoryview, config: LogConfig, *, now_ms: int) -> RebuildSpec | None:
    """Return how a produce must be rebuilt before it is appended; None if the headers suffice."""
    if len(records) <= MAGIC_AT:
        return None
    old = records[MAGIC_AT] < MAGIC
    if config.takes_as_sent and not old:
        return None
    target = _CODECS.get(config.compression_type)
    if target is not None and not old and len(records) > FLAGS_AT:
        target = None if target == records[FLAGS_AT] & CODEC_MASK else target
    bounded = config.message_timestamp_before_max_ms != LONG_MAX and not config.append_time
    if not (
        old or target is not None or config.compact or bounded or config.message_validation_deep
    ):
        return None
    from millstream.wire.records.convert import RebuildSpec

    return RebuildSpec(
        target_codec=target,
        level=_level(config, target),
        require_keys=config.compact,
        timestamp_type=1 if config.append_time else 0,
        now_ms=now_ms,
        before_max_ms=config.message_timestamp_before_max_ms if bounded else None,
        after_max_ms=None if config.append_time else config.message_timestamp_after_max_ms,
        max_decompressed_bytes=MAX_DECOMPRESSED_BYTES,
        deep=config.message_validation_deep,
    )


def _level(config: LogConfig, codec: int | None) -> int | None:
    levels = {
        1: config.compression_gzip_level,
        3: config.compression_lz4_level,
        4: config.compression_zstd_level,
    }
    return levels.get(codec) if codec is not None else None


def _corrupt(message: str) -> ApiError:
    return ApiError(ErrorCode.CORRUPT_MESSAGE, message)


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_RECORD, message)
