"""The Kafka frames of the raw generators.

They are written by hand, so that no client or broker code is measured with them: ApiVersions v0,
CreateTopics v2, Produce v7, Fetch v4, and a record batch (v2).
"""

import socket
import struct

from crc32c import crc32c

PRODUCE, FETCH, API_VERSIONS, CREATE_TOPICS = 0, 1, 18, 19
# Served by librdkafka's mock, Apache Kafka 4.x and Millstream.
PRODUCE_VERSION, FETCH_VERSION, CREATE_TOPICS_VERSION = 7, 4, 2
CLIENT_ID = b"bench"


def request(api_key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    """Request header v1 and the body, with the length in front."""
    head = struct.pack(">hhih", api_key, version, correlation_id, len(CLIENT_ID)) + CLIENT_ID
    return struct.pack(">i", len(head) + len(body)) + head + body


def api_versions(correlation_id: int = 1) -> bytes:
    return request(API_VERSIONS, 0, correlation_id, b"")


def create_topic(topic: str, partitions: int = 1, replication: int = 1) -> bytes:
    name, timeout_ms = topic.encode(), 30_000
    body = (
        struct.pack(">ih", 1, len(name))
        + name
        + struct.pack(">ihii", partitions, replication, 0, 0)
    )
    return request(
        CREATE_TOPICS, CREATE_TOPICS_VERSION, 1, body + struct.pack(">ib", timeout_ms, 0)
    )


def produce(
    topic: str, partition: int, records: bytes, *, acks: int = 1, correlation_id: int = 1
) -> bytes:
    name = topic.encode()
    body = struct.pack(">hhii", -1, acks, 30_000, 1) + struct.pack(">h", len(name)) + name
    return request(
        PRODUCE,
        PRODUCE_VERSION,
        correlation_id,
        body + struct.pack(">iii", 1, partition, len(records)) + records,
    )


def fetch(
    topic: str, partition: int, offset: int, max_bytes: int, *, correlation_id: int = 1
) -> bytes:
    name = topic.encode()
    body = struct.pack(">iiiibi", -1, 0, 1, max_bytes, 0, 1) + struct.pack(">h", len(name)) + name
    return request(
        FETCH,
        FETCH_VERSION,
        correlation_id,
        body + struct.pack(">iiqi", 1, partition, offset, max_bytes),
    )


def error_position(api_key: int, topic: str) -> int:
    """Return the position of the only partition's error code in a response with its length."""
    # length, correlation, topics, name, partitions, partition
    named = 4 + 4 + 4 + 2 + len(topic.encode()) + 4 + 4
    return named if api_key == PRODUCE else named + 4  # Fetch puts the throttle time in front


def record_batch(values: list[bytes], timestamp_ms: int) -> bytes:
    """Return an uncompressed batch without keys or headers, not idempotent."""
    records = b"".join(_record(i, value) for i, value in enumerate(values))
    last = len(values) - 1
    body = (
        struct.pack(">hiqqqhii", 0, last, timestamp_ms, timestamp_ms, -1, -1, -1, len(values))
        + records
    )
    return struct.pack(">qiibI", 0, 9 + len(body), -1, 2, crc32c(body)) + body


def _record(offset_delta: int, value: bytes) -> bytes:
    body = (
        b"\0"
        + _varint(0)
        + _varint(offset_delta)
        + _varint(-1)
        + _varint(len(value))
        + value
        + _varint(0)
    )
    return _varint(len(body)) + body


def _varint(number: int) -> bytes:
    zigzag, out = (number << 1) ^ (number >> 63), bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def connect(address: str, timeout_s: float = 10.0) -> socket.socket:
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def read_response(sock: socket.socket) -> bytes:
    """Read one whole response, including its length."""
    head = _read_exactly(sock, 4)
    return head + _read_exactly(sock, struct.unpack(">i", head)[0])


def _read_exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = sock.recv(count - len(data))
        if not chunk:
            raise ConnectionError("the broker closed the connection")
        data += chunk
    return bytes(data)
