"""Frames of group members, written by hand like those in `frames.py`.

FindCoordinator v1, JoinGroup v5, SyncGroup v3, Heartbeat v3, OffsetCommit v7 and
ConsumerGroupHeartbeat v1, and the fields of their responses.
"""

import socket
import struct
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bench.load.frames import CLIENT_ID, connect, read_response, request

OFFSET_COMMIT, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, SYNC_GROUP = 8, 10, 11, 12, 14
CONSUMER_GROUP_HEARTBEAT = 68
SESSION_TIMEOUT_MS, REBALANCE_TIMEOUT_MS = 45_000, 300_000  # Kafka's defaults

NONE, LOAD_IN_PROGRESS, NOT_AVAILABLE, NOT_COORDINATOR = 0, 14, 15, 16
ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED = 22, 27, 79
NOT_YET = frozenset(
    {LOAD_IN_PROGRESS, NOT_AVAILABLE, NOT_COORDINATOR}
)  # the coordinator is not ready

BODY_AT = 8  # in a response with header v0: after its length and correlation id
COORDINATOR_TIMEOUT_S = 30.0


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def _bytes(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


# ---- classic protocol: requests ----


def find_coordinator(group: str) -> bytes:
    return request(FIND_COORDINATOR, 1, 1, _text(group) + b"\0")


def wait_for_coordinator(address: str, group: str) -> None:
    """Wait until the coordinator serves the group.

    It is created by the first request for it, and may have to read its log.
    """
    deadline, member = time.monotonic() + COORDINATOR_TIMEOUT_S, heartbeat(group, -1, "nobody")
    with connect(address) as sock:
        for frame in (find_coordinator(group), member):
            while _error_of(sock, frame) in NOT_YET:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no coordinator in {COORDINATOR_TIMEOUT_S:.0f} s")
                time.sleep(0.05)


def _error_of(sock: socket.socket, frame: bytes) -> int:
    """Return the error code of FindCoordinator or Heartbeat, which is at the same position."""
    sock.sendall(frame)
    return heartbeat_error(read_response(sock))


def subscription(topic: str) -> bytes:
    """ConsumerProtocolSubscription v0, without user data."""
    return struct.pack(">hi", 0, 1) + _text(topic) + struct.pack(">i", -1)


def assignment(topic: str, partitions: Iterable[int]) -> bytes:
    """ConsumerProtocolAssignment v0."""
    numbers = list(partitions)
    listed = struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return struct.pack(">hi", 0, 1) + _text(topic) + listed + struct.pack(">i", -1)


def join(
    group: str, member_id: str, protocol: str, metadata: bytes, *, correlation_id: int = 1
) -> bytes:
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
    group: str,
    generation: int,
    member_id: str,
    plan: Mapping[str, bytes],
    *,
    correlation_id: int = 1,
) -> bytes:
    """`plan` is the leader's: member id -> assignment."""
    parts = [_member(group, generation, member_id), struct.pack(">i", len(plan))]
    parts += [_text(name) + _bytes(share) for name, share in plan.items()]
    return request(SYNC_GROUP, 3, correlation_id, b"".join(parts))


def heartbeat(group: str, generation: int, member_id: str, *, correlation_id: int = 1) -> bytes:
    return request(HEARTBEAT, 3, correlation_id, _member(group, generation, member_id))


def _member(group: str, generation: int, member_id: str) -> bytes:
    return _text(group) + struct.pack(">i", generation) + _text(member_id) + struct.pack(">h", -1)


def offset_commit(
    group: str, topic: str, partition: int, offset: int, *, correlation_id: int = 1
) -> bytes:
    """Return the request of a consumer that assigned itself: no member, no generation."""
    body = _member(group, -1, "") + struct.pack(">i", 1) + _text(topic)
    body += struct.pack(">iiqih", 1, partition, offset, -1, -1)
    return request(OFFSET_COMMIT, 7, correlation_id, body)


def offset_commit_error_at(topic: str) -> int:
    """Return the position of the only partition's error code in the response."""
    return BODY_AT + 4 + 4 + len(_text(topic)) + 4 + 4


# ---- classic protocol: responses ----


class Joined(NamedTuple):
    error: int
    generation: int
    leader: str
    member_id: str
    members: tuple[str, ...]  # only for the leader


def sync_error(response: bytes) -> int:
    return _error(response, BODY_AT + 4)


def heartbeat_error(response: bytes) -> int:
    return _error(response, BODY_AT + 4)


def _error(response: bytes, at: int) -> int:
    return int.from_bytes(response[at : at + 2], "big", signed=True)


def joined(response: bytes) -> Joined:
    _throttle, error, generation = struct.unpack_from(">ihi", response, BODY_AT)
    _protocol, at = _read_text(response, BODY_AT + 10)
    leader, at = _read_text(response, at)
    member_id, at = _read_text(response, at)
    (count,), members = struct.unpack_from(">i", response, at), []
    at += 4
    for _ in range(count):
        name, at = _read_text(response, at)
        _instance, at = _read_text(response, at)
        at += 4 + struct.unpack_from(">i", response, at)[0]
        members.append(name)
    return Joined(error, generation, leader, member_id, tuple(members))


def _read_text(response: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", response, at)
    end = at + 2 + max(0, length)
    return response[at + 2 : end].decode(), end


# ---- consumer protocol (KIP-848) ----

Partitions = Mapping[bytes, tuple[int, ...]]  # by topic id


class HeartbeatResponse(NamedTuple):
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
    """Return a heartbeat: with `topics` to join, with `owned` to report partitions, else to stay
    alive.
    """
    names = None if topics is None else [_compact(name) for name in topics]
    joins = names is not None
    body = _compact(group) + _compact(member_id) + struct.pack(">i", epoch)
    body += _NULL + _NULL + struct.pack(">i", REBALANCE_TIMEOUT_MS if joins else -1)
    body += _compact_array(names) + _NULL + _NULL
    rows = None if owned is None else [_owned(topic, held) for topic, held in owned.items()]
    return _flexible(
        CONSUMER_GROUP_HEARTBEAT, 1, correlation_id, body + _compact_array(rows) + _NO_TAGS
    )


def heartbeat_response(response: bytes) -> HeartbeatResponse:
    at = BODY_AT + 1 + 4  # the tags of header v1, the throttle time
    error = _error(response, at)
    _message, at = _read_compact(response, at + 2)
    member_id, at = _read_compact(response, at)
    epoch, interval_ms, present = struct.unpack_from(">iib", response, at)
    assigned = _read_assignment(response, at + 9) if present >= 0 else None
    return HeartbeatResponse(error, member_id, epoch, interval_ms, assigned)


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
    head = (
        struct.pack(">hhih", api_key, version, correlation_id, len(CLIENT_ID))
        + CLIENT_ID
        + _NO_TAGS
    )
    return struct.pack(">i", len(head) + len(body)) + head + body


def _read_unsigned(response: bytes, at: int) -> tuple[int, int]:
    number, shift = 0, 0
    while True:
        byte = response[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def _read_compact(response: bytes, at: int) -> tuple[str, int]:
    length, at = _read_unsigned(response, at)
    end = at + max(0, length - 1)
    return response[at:end].decode(), end


def _read_assignment(response: bytes, at: int) -> Partitions:
    partitions: dict[bytes, tuple[int, ...]] = {}
    topics, at = _read_unsigned(response, at)
    for _ in range(topics - 1):
        topic_id = response[at : at + 16]
        count, at = _read_unsigned(response, at + 16)
        partitions[topic_id] = struct.unpack_from(f">{count - 1}i", response, at)
        at += 4 * (count - 1) + 1  # and the tags
    return partitions
