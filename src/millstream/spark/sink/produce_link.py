"""A connection for Produce requests: batches go out as they are, without being copied into a message, several requests at a time.

Always version 12: transactional batches then add their partition to the transaction by themselves (KIP-890), and topics are
named, not numbered. ``wire/messages/produce.py`` declares the same request; a test holds both against each other.
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
MAX_ANSWER_BYTES = 16 << 20
ACKS_ALL = -1
_PARTS = 64  # parts of one sendmsg: well below what any system allows
_PRODUCE = BY_NAME["Produce"]
_ACKS = struct.Struct(">hi")

Bytes = bytes | bytearray | memoryview


class Part(NamedTuple):
    """One batch of a request: where it goes, its stamped header, its records."""

    topic: str
    partition: int
    head: Bytes
    body: Bytes


class ProduceLink:
    """Requests in order, answers in the same order; the caller counts how many are on their way."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.address = address
        self._peer = socket.create_connection((address.host, address.port), timeout=CONNECT_TIMEOUT_S)
        self._timeout_s = timeout_s
        self._peer.settimeout(timeout_s)
        self._peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._link: Link[None] = Link(CLIENT_ID, max_response_bytes=MAX_ANSWER_BYTES, in_order=True)

    @property
    def idle(self) -> bool:
        """No answer is due, so the next user finds the connection as a new one."""
        return self._link.idle

    def alive(self) -> bool:
        """The other end has neither closed nor said something that nobody asked for."""
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

    def send(self, parts: Iterable[Part], *, transactional_id: str | None, timeout_ms: int) -> None:
        header = self._link.header(_PRODUCE, VERSION, None)
        pieces = request(header, parts, transactional_id=transactional_id, timeout_ms=timeout_ms)
        _send_all(self._peer, pieces)

    def receive(self) -> Any:
        """The next ProduceResponse."""
        link, frame = self._link, None
        while frame is None:
            frame = link.received(self._peer.recv_into(link.buffer))
        return link.response(frame)[1]

    def close(self) -> None:
        self._peer.close()


def request(
    header: bytes, parts: Iterable[Part], *, transactional_id: str | None, timeout_ms: int
) -> list[Bytes]:
    """Return a whole request, size included, as pieces to send one after the other."""
    by_topic: dict[str, list[Part]] = {}
    for part in parts:
        by_topic.setdefault(part.topic, []).append(part)
    text = bytearray(4)  # for the size
    text += header
    _compact_string(text, transactional_id)
    text += _ACKS.pack(ACKS_ALL, timeout_ms)
    _uvarint(text, len(by_topic) + 1)
    pieces: list[Bytes] = []
    total = -4
    for topic, batches in by_topic.items():
        _compact_string(text, topic)
        _uvarint(text, len(batches) + 1)
        for part in batches:
            text += SIZE.pack(part.partition)
            _uvarint(text, len(part.head) + len(part.body) + 1)
            text += part.head
            pieces += (text, part.body)
            total += len(text) + len(part.body)
            text = bytearray(b"\0")  # no tagged fields
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
        sent = peer.sendmsg([left[index] for index in range(min(len(left), _PARTS))])
        while sent:
            if sent >= len(left[0]):
                sent -= len(left.popleft())
            else:
                left[0] = left[0][sent:]
                sent = 0
