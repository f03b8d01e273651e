"""A handwritten codec of Produce requests and responses, without an object per topic and partition.

This is the hot path of the broker. ``messages/produce.py`` declares the same messages for all other
users. A test compares both for all versions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from millstream.core.errors import ApiError
from millstream.wire.compiler import (
    MAX_STRING_BYTES,
    read_tag_count,
    read_uvarint,
    skip_tags,
    write_uvarint,
)
from millstream.wire.frames import begin_response, finish_response
from millstream.wire.node_endpoints import NodeEndpoint, write_tags
from millstream.wire.schema import DecodeError

PRODUCE_KEY = 0
# The first versions with flexible encoding, current leaders (KIP-951), and topic ids.
FLEXIBLE = 9
WITH_LEADERS = 10
BY_ID = 13

TopicKey = str | bytes
Data = list[tuple[int, memoryview | None]]

_I16 = struct.Struct(">h").unpack_from
_I32 = struct.Struct(">i").unpack_from
_ACKS = struct.Struct(">hi").unpack_from
_PARTITION = struct.Struct(">ii").unpack_from


# Maximum number of topics, partitions and tagged fields in a request. More than fit into 1 MB of
# batches, the default maximum of producers. All of them are decoded in one turn of the loop.
MAX_PARTITIONS = 1 << 14


class ProduceRequest(NamedTuple):
    """A decoded request. Records are views of the frame, or None if null."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[TopicKey, Data]]


class PartitionResult(NamedTuple):
    """One partition of a response."""

    partition: int
    error_code: int = 0
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[tuple[int, str]] = ()
    message: str | None = None
    # The id and epoch of the leader if it is another broker (KIP-951).
    current_leader: tuple[int, int] | None = None


def rejection(partition: int, error: ApiError) -> PartitionResult:
    """Return the result of a rejected partition, with the reasons per record if any (v8)."""
    return PartitionResult(
        partition,
        error.code,
        log_start_offset=error.log_start_offset,
        record_errors=error.record_errors,
        message=error.message,
    )


def decode(frame: memoryview, position: int, version: int) -> ProduceRequest:
    """Return the request that begins at ``position``. Bad bytes only ever raise DecodeError."""
    try:
        if version >= FLEXIBLE:
            return _decode_flexible(frame, position, version >= BY_ID)
        return _decode_classic(frame, position, version)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise DecodeError(f"ProduceRequest v{version}: {error}") from None


def _decode_classic(frame: memoryview, p: int, version: int) -> ProduceRequest:
    end = len(frame)
    transactional_id = None
    if version >= 3:
        (n,) = _I16(frame, p)
        p += 2
        if n >= 0:
            transactional_id = _text(frame, p, n, end)
            p += n
    acks, timeout_ms = _ACKS(frame, p)
    (count,) = _I32(frame, p + 6)
    p += 10
    topics: list[tuple[TopicKey, Data]] = []
    room = MAX_PARTITIONS
    for _ in range(_checked(count, end - p, room)):
        (n,) = _I16(frame, p)
        name = _text(frame, p + 2, n, end)
        p += 2 + n
        (count,) = _I32(frame, p)
        p += 4
        data: Data = []
        room -= _checked(count, end - p, room)
        for _ in range(count):
            index, size = _PARTITION(frame, p)
            p += 8
            if size < 0:
                data.append((index, None))
            else:
                data.append((index, _slice(frame, p, size, end)))
                p += size
        topics.append((name, data))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _decode_flexible(frame: memoryview, p: int, by_id: bool) -> ProduceRequest:
    end = len(frame)
    transactional_id = None
    if frame[p] == 0:
        p += 1
    else:
        n, p = read_uvarint(frame, p)
        transactional_id = _text(frame, p, n - 1, end)
        p += n - 1
    acks, timeout_ms = _ACKS(frame, p)
    p += 6
    # Nearly every length here is below 128: one byte, read without a call.
    if (count := frame[p]) < 128:
        p += 1
    else:
        count, p = read_uvarint(frame, p)
    topics: list[tuple[TopicKey, Data]] = []
    room = MAX_PARTITIONS
    for _ in range(_checked(count - 1, end - p, room)):
        key: TopicKey
        if by_id:
            key = bytes(_slice(frame, p, 16, end))
            p += 16
        else:
            if (n := frame[p]) < 128:
                p += 1
            else:
                n, p = read_uvarint(frame, p)
            key = _text(frame, p, n - 1, end)
            p += n - 1
        if (count := frame[p]) < 128:
            p += 1
        else:
            count, p = read_uvarint(frame, p)
        data: Data = []
        room -= _checked(count - 1, end - p, room)
        for _ in range(count - 1):
            (index,) = _I32(frame, p)
            size, p = read_uvarint(frame, p + 4)
            if size == 0:
                data.append((index, None))
            else:
                data.append((index, _slice(frame, p, size - 1, end)))
                p += size - 1
            if frame[p] == 0:
                p += 1
            else:
                p, room = _skip_tags(frame, p, end, room)
        topics.append((key, data))
        if frame[p] == 0:
            p += 1
        else:
            p, room = _skip_tags(frame, p, end, room)
    if frame[p]:
        skip_tags(frame, p, end)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _checked(count: int, left: int, room: int) -> int:
    """Return the count if the frame can hold it and the request has room for it, else raise."""
    if not 0 <= count <= left:
        raise DecodeError("count beyond the end")
    if count > room:
        raise DecodeError(f"more than {MAX_PARTITIONS} topics, partitions or tagged fields")
    return count


def _skip_tags(frame: memoryview, p: int, end: int, room: int) -> tuple[int, int]:
    """Return the end of tagged fields, and the remaining room.

    Tagged fields count like partitions, because they take as long to decode.
    """
    count, _ = read_tag_count(frame, p)
    return skip_tags(frame, p, end), room - _checked(count, end - p, room)


def _text(frame: memoryview, start: int, size: int, end: int) -> str:
    if size < 0 or start + size > end:
        raise DecodeError("string reaches beyond the end")
    if size > MAX_STRING_BYTES:
        raise DecodeError(f"a string of {size} bytes is too long")
    return str(frame[start : start + size], "utf-8")


def _slice(frame: memoryview, start: int, size: int, end: int) -> memoryview:
    if start + size > end:
        raise DecodeError("records reach beyond the end")
    return frame[start : start + size]


_PARTITION_AND_ERROR = struct.Struct(">ih").pack
_HEAD_0 = struct.Struct(">ihq").pack
_HEAD_2 = struct.Struct(">ihqq").pack
_HEAD_5 = struct.Struct(">ihqqq").pack
_NO_ERRORS = b"\x00\x00\x00\x00\xff\xff"
_NO_ERRORS_FLEXIBLE = b"\x01\x00\x00"


_LEADER = struct.Struct(">BBBiiB").pack


def encode(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[TopicKey, Sequence[PartitionResult]]],
    nodes: Sequence[NodeEndpoint] = (),
) -> bytes | bytearray:
    """Encode a whole response, with its size. ``nodes`` are the endpoints of its leaders."""
    flexible = version >= FLEXIBLE
    if flexible and len(topics) == 1 and len(topics[0][1]) == 1:
        prefix = (
            None
            if topics[0][1][0].error_code
            else single_prefix(topics[0][0], topics[0][1][0].partition)
        )
        if prefix is not None:
            return encode_single(prefix, correlation_id, *topics[0][1][0][2:5])
    out = begin_response(PRODUCE_KEY, version, correlation_id)
    _count(out, len(topics), flexible)
    for key, results in topics:
        if isinstance(key, bytes):
            out += key
        else:
            _string(out, key, flexible)
        _count(out, len(results), flexible)
        for result in results:
            _result(out, result, version, flexible)
        if flexible:
            out.append(0)
    if version >= 1:
        out += b"\x00\x00\x00\x00"
    if flexible:
        write_tags(out, nodes if version >= WITH_LEADERS else ())
    return finish_response(out)


_SIZE_AND_CORRELATION = struct.Struct(">ii").pack
_OFFSETS_AND_TIME = struct.Struct(">qqq").pack
# No record errors, message or tags of the partition, no tags of the topic, no throttling, no tags
# of the response.
_SINGLE_SUFFIX = b"\x01\x00\x00\x00\x00\x00\x00\x00\x00"


def single_prefix(key: TopicKey, partition: int) -> bytes | None:
    """Return the constant start of successful responses for a single partition.

    Return None if the name of the topic is too long.
    """
    if isinstance(key, bytes):
        name = key
    else:
        name = key.encode()
        if len(name) > 126:
            return None
        name = bytes((len(name) + 1,)) + name
    return b"\x00\x02" + name + b"\x02" + _PARTITION_AND_ERROR(partition, 0)


def encode_single(
    prefix: bytes, correlation_id: int, base_offset: int, append_time_ms: int, log_start_offset: int
) -> bytes:
    """Encode the most frequent response: one partition, no error. See ``single_prefix``."""
    return b"".join(
        (
            _SIZE_AND_CORRELATION(37 + len(prefix), correlation_id),
            prefix,
            _OFFSETS_AND_TIME(base_offset, append_time_ms, log_start_offset),
            _SINGLE_SUFFIX,
        )
    )


# The empty tags of a partition, its topic and the request.
NO_TAGS = b"\x00\x00\x00"


def fast_path_length(
    request: ProduceRequest, frame: memoryview, body: int, version: int
) -> int | None:
    """Return the length of the part that later requests to the same partition repeat.

    It ends before the size of the records. None if the request does not qualify for the fast path:
    it must have a single partition, no transaction, a response, and the shortest encoding.
    """
    topics = request.topics
    if version < FLEXIBLE or request.transactional_id is not None or not request.acks:
        return None
    if len(topics) != 1 or len(topics[0][1]) != 1 or frame[body]:
        return None
    # An id, or a name after a length of one byte; ``single_prefix`` does not support longer names.
    name = 16 if version >= BY_ID else 1 + len(topics[0][0])
    end = body + 1 + 6 + 1 + name + 1 + 4
    size, start = read_uvarint(frame, end)
    as_expected = (
        size == len(topics[0][1][0][1] or b"") + 1 and frame[start + size - 1 :] == NO_TAGS
    )
    return end if as_expected else None


def _result(out: bytearray, result: PartitionResult, version: int, flexible: bool) -> None:
    (
        partition,
        error_code,
        base_offset,
        append_time_ms,
        log_start_offset,
        record_errors,
        message,
        leader,
    ) = result
    if version >= 5:
        out += _HEAD_5(partition, error_code, base_offset, append_time_ms, log_start_offset)
    elif version >= 2:
        out += _HEAD_2(partition, error_code, base_offset, append_time_ms)
    else:
        out += _HEAD_0(partition, error_code, base_offset)
    if version < 8:
        return
    if not record_errors and message is None and leader is None:
        out += _NO_ERRORS_FLEXIBLE if flexible else _NO_ERRORS
        return
    _count(out, len(record_errors), flexible)
    for index, reason in record_errors:
        out += struct.pack(">i", index)
        _string(out, reason, flexible)
        if flexible:
            out.append(0)
    _string(out, message, flexible)
    if leader is not None and version >= WITH_LEADERS:
        out += _LEADER(1, 0, 9, *leader, 0)
    elif flexible:
        out.append(0)


def _count(out: bytearray, n: int, flexible: bool) -> None:
    if flexible:
        write_uvarint(out, n + 1)
    else:
        out += struct.pack(">i", n)


def _string(out: bytearray, text: str | None, flexible: bool) -> None:
    raw = b"" if text is None else text.encode()
    if flexible:
        write_uvarint(out, 0 if text is None else len(raw) + 1)
    else:
        out += struct.pack(">h", -1 if text is None else len(raw))
    out += raw
