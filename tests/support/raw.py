"""A client that speaks in frames: whatever bytes a test wants, and answers decoded by the
declarations.

Blocking, one socket, no cleverness: what a test sends is what the broker gets.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any

from millstream.core.ids import NULL_ID
from millstream.wire.apis import Api, api_of
from millstream.wire.frames import API_VERSIONS_KEY
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.wire.schema import Struct

HEADER = struct.Struct(">hhih")  # api key, version, correlation id, length of the client id
SIZE = struct.Struct(">i")
# A test that waits this long has failed.
PATIENCE_S = 120.0


class Closed(Exception):
    """The broker ended the connection."""


def request_frame(
    api: Api, version: int, message: Struct, correlation_id: int = 1, client_id: str = "raw"
) -> bytes:
    """A whole request, size prefix included."""
    name = client_id.encode()
    head = HEADER.pack(api.key, version, correlation_id, len(name)) + name
    if api.flexible(version):
        head += b"\x00"
    return framed(head + bytes(message.encode(version)))


def framed(body: bytes) -> bytes:
    return SIZE.pack(len(body)) + body


def decode_answer(api: Api, version: int, answer: bytes) -> tuple[int, Struct]:
    """(correlation id, message) of an answer without its size prefix; fails where a byte is left
    over.
    """
    (correlation_id,) = SIZE.unpack_from(answer)
    position = 4
    if api.flexible(version) and api.key != API_VERSIONS_KEY:
        assert answer[4] == 0, "tagged fields in the header of an answer"
        position = 5
    message, end = api.response_class().decode(answer, version, position)
    assert end == len(answer), f"{api.name} v{version}: {len(answer) - end} bytes after the answer"
    return correlation_id, message


class RawClient:
    """One connection to a broker."""

    def __init__(
        self, bootstrap: str, *, timeout_s: float = PATIENCE_S, receive_buffer: int = 0
    ) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.settimeout(timeout_s)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            self.socket.connect((host, int(port)))
        except OSError:
            self.socket.close()
            raise
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._next_id = 0
        self._pending: dict[int, tuple[Api, int]] = {}

    def send(self, message: Struct, version: int) -> int:
        """Sends a request and returns its correlation id."""
        self._next_id += 1
        api = api_of(message)
        self._pending[self._next_id] = (api, version)
        self.write(request_frame(api, version, message, self._next_id))
        return self._next_id

    def receive(self) -> tuple[int, Any]:
        """The next answer, whichever request it belongs to."""
        answer = self.read_frame()
        api, version = self._pending.pop(SIZE.unpack_from(answer)[0])
        return decode_answer(api, version, answer)

    def call(self, message: Struct, version: int) -> Any:
        sent = self.send(message, version)
        got, answer = self.receive()
        assert got == sent, f"answer {got} came where {sent} was due"
        return answer

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_frame(self) -> bytes:
        """The next answer without its size prefix; raises Closed at the end of the stream."""
        (size,) = SIZE.unpack(self._read(4))
        return self._read(size)

    def _read(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self.socket.recv(min(count - len(parts), 1 << 20))
            except ConnectionError:
                raise Closed from None
            if not part:
                raise Closed
            parts += part
        return bytes(parts)

    def wait_closed(self) -> None:
        """Returns when the broker has ended the connection; whatever it still sent is dropped."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionError:
            pass

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


# ---- the requests that most tests need ----


def create_topic(client: RawClient, name: str, partitions: int = 1, **config: object) -> bytes:
    """Makes a topic and returns its id; settings with underscores for periods."""
    rows = [
        CreatableTopicConfig(name=key.replace("_", "."), value=str(value))
        for key, value in config.items()
    ]
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=rows)
    (made,) = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7).topics
    assert made.error_code == 0, made
    return bytes(made.topic_id)


def topic_id(client: RawClient, name: str) -> bytes:
    asked = MetadataRequestTopic(name=name, topic_id=NULL_ID)
    (topic,) = client.call(
        MetadataRequest(topics=[asked], allow_auto_topic_creation=False), 12
    ).topics
    assert topic.error_code == 0, topic
    return bytes(topic.topic_id)


def produce_request(topic: str, partition: int, records: bytes, *, acks: int = 1) -> ProduceRequest:
    """For Produce v0-v12, which name topics."""
    data = PartitionProduceData(index=partition, records=records)
    return ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )


def produce(
    client: RawClient, topic: str, partition: int, records: bytes, *, version: int = 9
) -> Any:
    """The answer for the one partition."""
    answer = client.call(produce_request(topic, partition, records), version)
    return answer.responses[0].partition_responses[0]


def fetch_request(
    topic: str,
    partition: int = 0,
    offset: int = 0,
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
) -> FetchRequest:
    """For Fetch v0-v12, which name topics."""
    row = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=topic, partitions=[row])],
    )


def fetch(client: RawClient, topic: str, partition: int = 0, offset: int = 0, **more: Any) -> Any:
    """The answer for the one partition (v11)."""
    answer = client.call(fetch_request(topic, partition, offset, **more), 11)
    return answer.responses[0].partitions[0]
