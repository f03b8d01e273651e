"""Produce requests read and responses written by hand, without an object per topic and partition.

The hot path of the broker. ``messages/produce.py`` declares the same messages for everyone else, and a test holds both against
each other for all versions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from millstream.core.errors import ApiError
from millstream.wire.compiler import (
    LONGEST_STRING,
    read_tag_count,
    read_uvarint,
    skip_tags,
    write_uvarint,
)
from millstream.wire.frames import begin_response, finish_response
from millstream.wire.node_endpoints import NodeEndpoint, write_tags
from millstream.wire.schema import DecodeError

PRODUCE_KEY = 0
FLEXIBLE = 9
WITH_LEADERS = 10
BY_ID = 13

TopicKey = str | bytes
Data = list[tuple[int, memoryview | None]]

_I16 = struct.Struct(">h").unpack_from
_I32 = struct.Struct(">i").unpack_from
_ACKS = struct.Struct(">hi").unpack_from
_PARTITION = struct.Struct(">ii").unpack_from


# The most topics, partitions and tagged fields of one request: more than 1 MB of batches, which is what producers send
# at most unless they are told otherwise. All of them are decoded in one turn of the loop.
MOST_PARTITIONS = 1 << 14


class ProduceRequest(NamedTuple):
    """What a producer sent. Records are views of the frame, null stays None."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[TopicKey, Data]]


class Answer(NamedTuple):
    """One partition of the answer."""

    partition: int
    error_code: int = 0
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[tuple[int, str]] = ()
    message: str | None = None
    current_leader: tuple[int, int] | None = None  # and its epoch, where it is another broker (KIP-951)


def refusal(partition: int, error: ApiError) -> Answer:
    """The answer for a refused partition, with a reason per record if there are any (v8)."""
    return Answer(
        partition,
        error.code,
        log_start_offset=error.log_start_offset,
        record_errors=error.record_errors,
        message=error.message,
    )


def decode(frame: memoryview, position: int, version: int) -> ProduceRequest:
    """The request that begins at ``position``; raises DecodeError, whatever the bytes are."""
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
    room = MOST_PARTITIONS
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
    room = MOST_PARTITIONS
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
    """A count that the frame can hold, in a request that has room for so many more partitions."""
    if not 0 <= count <= left:
        raise DecodeError("count beyond the end")
    if count > room:
        raise DecodeError(f"more than {MOST_PARTITIONS} topics, partitions or tagged fields")
    return count


def _skip_tags(frame: memoryview, p: int, end: int, room: int) -> tuple[int, int]:
    """Where tagged fields end, and the room that is left: they count like partitions, since they take as long."""
    count, _ = read_tag_count(frame, p)
    return skip_tags(frame, p, end), room - _checked(count, end - p, room)


def _text(frame: memoryview, start: int, size: int, end: int) -> str:
    if size < 0 or start + size > end:
        raise DecodeError("string reaches beyond the end")
    if size > LONGEST_STRING:
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
    topics: Sequence[tuple[TopicKey, Sequence[Answer]]],
    nodes: Sequence[NodeEndpoint] = (),
) -> bytes | bytearray:
    """The whole response, size included. ``nodes`` are where the leaders are that it names."""
    flexible = version >= FLEXIBLE
    if flexible and len(topics) == 1 and len(topics[0][1]) == 1:
        shape = None if topics[0][1][0].error_code else alone(topics[0][0], topics[0][1][0].partition)
        if shape is not None:
            return encode_alone(shape, correlation_id, *topics[0][1][0][2:5])
    out = begin_response(PRODUCE_KEY, version, correlation_id)
    _count(out, len(topics), flexible)
    for key, answers in topics:
        if isinstance(key, bytes):
            out += key
        else:
            _string(out, key, flexible)
        _count(out, len(answers), flexible)
        for answer in answers:
            _answer(out, answer, version, flexible)
        if flexible:
            out.append(0)
    if version >= 1:
        out += b"\x00\x00\x00\x00"
    if flexible:
        write_tags(out, nodes if version >= WITH_LEADERS else ())
    return finish_response(out)


_SIZE_AND_CORRELATION = struct.Struct(">ii").pack
_OFFSETS_AND_TIME = struct.Struct(">qqq").pack
# No record errors, no message, no tags of the partition; none of the topic; no throttling, no tags of the answer.
_ALONE_ENDS = b"\x01\x00\x00\x00\x00\x00\x00\x00\x00"


def alone(key: TopicKey, partition: int) -> bytes | None:
    """What all answers to one partition alone have in common, while nothing goes wrong; None where the topic's name is too long."""
    if isinstance(key, bytes):
        name = key
    else:
        name = key.encode()
        if len(name) > 126:
            return None
        name = bytes((len(name) + 1,)) + name
    return b"\x00\x02" + name + b"\x02" + _PARTITION_AND_ERROR(partition, 0)


def encode_alone(
    shape: bytes, correlation_id: int, base_offset: int, append_time_ms: int, log_start_offset: int
) -> bytes:
    """The most frequent answer by far, in one piece: one partition, no error. ``shape`` is of ``alone``."""
    return b"".join(
        (
            _SIZE_AND_CORRELATION(37 + len(shape), correlation_id),
            shape,
            _OFFSETS_AND_TIME(base_offset, append_time_ms, log_start_offset),
            _ALONE_ENDS,
        )
    )


# The tags of a partition, its topic and the request, where there are none.
NO_TAGS = b"\x00\x00\x00"


def usual_length(request: ProduceRequest, frame: memoryview, body: int, version: int) -> int | None:
    """How much of a request repeats itself in the next to the same partition: up to the size of the records. None where it
    is no request for one partition alone, outside of transactions and with an answer, in the shortest form there is."""
    topics = request.topics
    if version < FLEXIBLE or request.transactional_id is not None or not request.acks:
        return None
    if len(topics) != 1 or len(topics[0][1]) != 1 or frame[body]:
        return None
    # An id, or a name behind a length of one byte; the answer to a longer one has no shape to remember (``alone``).
    name = 16 if version >= BY_ID else 1 + len(topics[0][0])
    until = body + 1 + 6 + 1 + name + 1 + 4
    size, start = read_uvarint(frame, until)
    as_expected = size == len(topics[0][1][0][1] or b"") + 1 and frame[start + size - 1 :] == NO_TAGS
    return until if as_expected else None


def _answer(out: bytearray, answer: Answer, version: int, flexible: bool) -> None:
    partition, error_code, base_offset, append_time_ms, log_start_offset, record_errors, message, leader = (
        answer
    )
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
