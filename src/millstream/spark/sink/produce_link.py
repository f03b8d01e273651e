"""A connection for Produce requests that sends batches without copying them into a message.

Several requests may be in flight. Always version 12: transactional batches then add their partition
to the transaction automatically (KIP-890), and topics are identified by name.
``wire/messages/produce.py`` declares the same request; a test compares the two.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from millstream.client.connection import CONNECT_TIMEOUT_S
from millstream.client.protocol import Address
from millstream.wire.apis import BY_NAME
from millstream.wire.frames import SIZE
from millstream.wire.link import Link

VERSION = 12
CLIENT_ID = "millstream-spark"
MAX_RESPONSE_BYTES = 16 << 20
ACKS_ALL = -1
# Buffers of one sendmsg: well below the limit of any system.
_BUFFERS = 64
_PRODUCE = BY_NAME["Produce"]
_ACKS = struct.Struct(">hi")

Bytes = bytes | bytearray | memoryview


class PartitionBatch(NamedTuple):
    """One batch of a request: its partition, its stamped header, its records."""

    topic: str
    partition: int
    head: Bytes
    body: Bytes


class ProduceLink:
    """Sends requests and receives responses in order. The caller counts those in flight."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.address = address
        self._peer = socket.create_connection(
            (address.host, address.port), timeout=CONNECT_TIMEOUT_S
        )
        self._timeout_s = timeout_s
        self._peer.settimeout(timeout_s)
        self._peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._link: Link[None] = Link(
            CLIENT_ID, max_response_bytes=MAX_RESPONSE_BYTES, in_order=True
        )

    @property
    def idle(self) -> bool:
        """Whether no response is due, so that the connection can be reused as a new one."""
        return self._link.idle

    def alive(self) -> bool:
        """Return whether the peer has neither closed nor sent unexpected data."""
        self._peer.setblocking(False)
        try:
            self._peer.recv(1, socket.MSG_PEEK)
            return False
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            self._peer.settimeout(self._timeout_s)

    def send(
        self, batches: Iterable[PartitionBatch], *, transactional_id: str | None, timeout_ms: int
    ) -> None:
        header = self._link.header(_PRODUCE, VERSION, None)
        pieces = request(header, batches, transactional_id=transactional_id, timeout_ms=timeout_ms)
        _send_all(self._peer, pieces)

    def receive(self) -> Any:
        """Return the next ProduceResponse."""
        link, frame = self._link, None
        while frame is None:
            frame = link.received(self._peer.recv_into(link.buffer))
        return link.response(frame)[1]

    def close(self) -> None:
        self._peer.close()


def request(
    header: bytes,
    batches: Iterable[PartitionBatch],
    *,
    transactional_id: str | None,
    timeout_ms: int,
) -> list[Bytes]:
    """Return a whole request, size included, as pieces to send one after the other."""
    by_topic: dict[str, list[PartitionBatch]] = {}
    for batch in batches:
        by_topic.setdefault(batch.topic, []).append(batch)
    # The first four bytes are for the size.
    text = bytearray(4)
    text += header
    _compact_string(text, transactional_id)
    text += _ACKS.pack(ACKS_ALL, timeout_ms)
    _uvarint(text, len(by_topic) + 1)
    pieces: list[Bytes] = []
    total = -4
    for topic, topic_batches in by_topic.items():
        _compact_string(text, topic)
        _uvarint(text, len(topic_batches) + 1)
        for batch in topic_batches:
            text += SIZE.pack(batch.partition)
            _uvarint(text, len(batch.head) + len(batch.body) + 1)
            text += batch.head
            pieces += (text, batch.body)
            total += len(text) + len(batch.body)
            # No tagged fields.
            text = bytearray(b"\0")
        text += b"\0"
    text += b"\0"
    pieces.append(text)
    SIZE.pack_into(pieces[0], 0, total + len(text))
    return pieces


def _compact_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out.append(0)
        return
    raw = text.encode()
    _uvarint(out, len(raw) + 1)
    out += raw


def _uvarint(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _send_all(peer: socket.socket, pieces: Iterable[Bytes]) -> None:
    left = deque(memoryview(piece) for piece in pieces if len(piece))
    while left:
        sent = peer.sendmsg([left[index] for index in range(min(len(left), _BUFFERS))])
        while sent:
            if sent >= len(left[0]):
                sent -= len(left.popleft())
            else:
                left[0] = left[0][sent:]
                sent = 0
