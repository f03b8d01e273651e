"""Frames of group members, written by hand like those in `frames.py`: FindCoordinator v1, JoinGroup
v5, SyncGroup v3, Heartbeat v3, OffsetCommit v7, ConsumerGroupHeartbeat v1, and what stands in their
answers.
"""

import socket
import struct
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bench.load.frames import CLIENT_ID, connect, read_answer, request

OFFSET_COMMIT, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, SYNC_GROUP = 8, 10, 11, 12, 14
CONSUMER_GROUP_HEARTBEAT = 68
SESSION_TIMEOUT_MS, REBALANCE_TIMEOUT_MS = 45_000, 300_000  # Kafka's defaults

NONE, LOAD_IN_PROGRESS, NOT_AVAILABLE, NOT_COORDINATOR = 0, 14, 15, 16
ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED = 22, 27, 79
NOT_YET = frozenset({LOAD_IN_PROGRESS, NOT_AVAILABLE, NOT_COORDINATOR})  # the coordinator is being made

BODY_AT = 8  # of an answer with header v0: behind its length and its correlation id
COORDINATOR_TIMEOUT_S = 30.0


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def _bytes(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


# ---- classic protocol: requests
# -----------------------------------------------------------------------------


def find_coordinator(group: str) -> bytes:
    return request(FIND_COORDINATOR, 1, 1, _text(group) + b"\0")


def wait_for_coordinator(address: str, group: str) -> None:
    """Until it serves the group: it is made when it is first asked for, and may have to read its
    log.
    """
    deadline, member = time.monotonic() + COORDINATOR_TIMEOUT_S, heartbeat(group, -1, "nobody")
    with connect(address) as sock:
        for question in (find_coordinator(group), member):
            while _asked(sock, question) in NOT_YET:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no coordinator in {COORDINATOR_TIMEOUT_S:.0f} s")
                time.sleep(0.05)


def _asked(sock: socket.socket, question: bytes) -> int:
    """The error code of FindCoordinator or Heartbeat, which stands at the same place."""
    sock.sendall(question)
    return heartbeat_error(read_answer(sock))


def subscription(topic: str) -> bytes:
    """ConsumerProtocolSubscription v0, without user data."""
    return struct.pack(">hi", 0, 1) + _text(topic) + struct.pack(">i", -1)


def assignment(topic: str, partitions: Iterable[int]) -> bytes:
    """ConsumerProtocolAssignment v0."""
    numbers = list(partitions)
    listed = struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return struct.pack(">hi", 0, 1) + _text(topic) + listed + struct.pack(">i", -1)


def join(group: str, member_id: str, protocol: str, metadata: bytes, *, correlation_id: int = 1) -> bytes:
    body = (
        _text(group)
        + struct.pack(">ii", SESSION_TIMEOUT_MS, REBALANCE_TIMEOUT_MS)
        + _text(member_id)
        + struct.pack(">h", -1)
        + _text("consumer")
        + struct.pack(">i", 1)
        + _text(protocol)
        + _bytes(metadata)
    )
    return request(JOIN_GROUP, 5, correlation_id, body)


def sync(
    group: str, generation: int, member_id: str, plan: Mapping[str, bytes], *, correlation_id: int = 1
) -> bytes:
    """`plan` is the leader's: member id -> assignment."""
    parts = [_member(group, generation, member_id), struct.pack(">i", len(plan))]
    parts += [_text(name) + _bytes(given) for name, given in plan.items()]
    return request(SYNC_GROUP, 3, correlation_id, b"".join(parts))


def heartbeat(group: str, generation: int, member_id: str, *, correlation_id: int = 1) -> bytes:
    return request(HEARTBEAT, 3, correlation_id, _member(group, generation, member_id))


def _member(group: str, generation: int, member_id: str) -> bytes:
    return _text(group) + struct.pack(">i", generation) + _text(member_id) + struct.pack(">h", -1)


def offset_commit(group: str, topic: str, partition: int, offset: int, *, correlation_id: int = 1) -> bytes:
    """Of a consumer that assigned itself: no member, no generation."""
    body = _member(group, -1, "") + struct.pack(">i", 1) + _text(topic)
    body += struct.pack(">iiqih", 1, partition, offset, -1, -1)
    return request(OFFSET_COMMIT, 7, correlation_id, body)


def offset_commit_error_at(topic: str) -> int:
    """Where in its answer the error code of the only partition stands."""
    return BODY_AT + 4 + 4 + len(_text(topic)) + 4 + 4


# ---- classic protocol: answers
# ------------------------------------------------------------------------------


class Joined(NamedTuple):
    error: int
    generation: int
    leader: str
    member_id: str
    members: tuple[str, ...]  # told to the leader only


def sync_error(answer: bytes) -> int:
    return _error(answer, BODY_AT + 4)


def heartbeat_error(answer: bytes) -> int:
    return _error(answer, BODY_AT + 4)


def _error(answer: bytes, at: int) -> int:
    return int.from_bytes(answer[at : at + 2], "big", signed=True)


def joined(answer: bytes) -> Joined:
    _throttle, error, generation = struct.unpack_from(">ihi", answer, BODY_AT)
    _protocol, at = _read_text(answer, BODY_AT + 10)
    leader, at = _read_text(answer, at)
    member_id, at = _read_text(answer, at)
    (count,), members = struct.unpack_from(">i", answer, at), []
    at += 4
    for _ in range(count):
        name, at = _read_text(answer, at)
        _instance, at = _read_text(answer, at)
        at += 4 + struct.unpack_from(">i", answer, at)[0]
        members.append(name)
    return Joined(error, generation, leader, member_id, tuple(members))


def _read_text(answer: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", answer, at)
    end = at + 2 + max(0, length)
    return answer[at + 2 : end].decode(), end


# ---- consumer protocol (KIP-848)
# ----------------------------------------------------------------------------

Partitions = Mapping[bytes, tuple[int, ...]]  # by topic id


class Beaten(NamedTuple):
    error: int
    member_id: str
    epoch: int
    interval_ms: int
    assignment: Partitions | None  # None: as before


def consumer_heartbeat(
    group: str,
    member_id: str,
    epoch: int,
    *,
    topics: Iterable[str] | None = None,
    owned: Partitions | None = None,
    correlation_id: int = 1,
) -> bytes:
    """With `topics` a joining member's, with `owned` one that tells what it holds, else one that
    says it is alive.
    """
    names = None if topics is None else [_compact(name) for name in topics]
    joins = names is not None
    body = _compact(group) + _compact(member_id) + struct.pack(">i", epoch)
    body += _NULL + _NULL + struct.pack(">i", REBALANCE_TIMEOUT_MS if joins else -1)
    body += _compact_array(names) + _NULL + _NULL
    rows = None if owned is None else [_owned(topic, held) for topic, held in owned.items()]
    return _flexible(CONSUMER_GROUP_HEARTBEAT, 1, correlation_id, body + _compact_array(rows) + _NO_TAGS)


def beaten(answer: bytes) -> Beaten:
    at = BODY_AT + 1 + 4  # the tags of header v1, the throttle time
    error = _error(answer, at)
    _message, at = _read_compact(answer, at + 2)
    member_id, at = _read_compact(answer, at)
    epoch, interval_ms, present = struct.unpack_from(">iib", answer, at)
    given = _read_assignment(answer, at + 9) if present >= 0 else None
    return Beaten(error, member_id, epoch, interval_ms, given)


_NULL, _NO_TAGS = b"\0", b"\0"


def _unsigned(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _compact(value: str) -> bytes:
    data = value.encode()
    return _unsigned(len(data) + 1) + data


def _compact_array(rows: list[bytes] | None) -> bytes:
    return _NULL if rows is None else _unsigned(len(rows) + 1) + b"".join(rows)


def _owned(topic_id: bytes, partitions: tuple[int, ...]) -> bytes:
    numbers = struct.pack(f">{len(partitions)}i", *partitions)
    return topic_id + _unsigned(len(partitions) + 1) + numbers + _NO_TAGS


def _flexible(api_key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    """Request header v2 and the body, with the length in front."""
    head = struct.pack(">hhih", api_key, version, correlation_id, len(CLIENT_ID)) + CLIENT_ID + _NO_TAGS
    return struct.pack(">i", len(head) + len(body)) + head + body


def _read_unsigned(answer: bytes, at: int) -> tuple[int, int]:
    number, shift = 0, 0
    while True:
        byte = answer[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def _read_compact(answer: bytes, at: int) -> tuple[str, int]:
    length, at = _read_unsigned(answer, at)
    end = at + max(0, length - 1)
    return answer[at:end].decode(), end


def _read_assignment(answer: bytes, at: int) -> Partitions:
    found: dict[bytes, tuple[int, ...]] = {}
    topics, at = _read_unsigned(answer, at)
    for _ in range(topics - 1):
        topic_id = answer[at : at + 16]
        count, at = _read_unsigned(answer, at + 16)
        found[topic_id] = struct.unpack_from(f">{count - 1}i", answer, at)
        at += 4 * (count - 1) + 1  # and the tags
    return found
