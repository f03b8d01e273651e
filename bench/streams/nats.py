"""NATS JetStream over its text protocol.

PUB with a subject for the acknowledgement, pulls of many messages, and a push consumer for latency.
"""

import json
import re
from collections import deque
from typing import Any

from bench.streams import SILENCE_S, Line, LineWriter, Payloads

ACKS = "_INBOX.acks"
REPLY = "_INBOX.answer"
INBOX = "_INBOX.read"
PULL, PULLS = 5000, 3  # messages of one request; requests in flight
_HEAD = re.compile(rb"MSG (\S+) \S+(?: \S+)? (\d+)\r\n")
CONNECT = (
    b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"lang":"bench","version":"0"}\r\n'
)


class Client:
    def __init__(self, address: str) -> None:
        self.line, self._early = Line(address), deque[bytes]()
        self.line.until(b"\r\n")  # INFO
        self.line.sock.sendall(CONNECT + b"PING\r\n")
        if self.line.until(b"\r\n") != b"PONG\r\n":
            raise OSError("not ready")

    def subscribe(self, subject: str, number: int) -> None:
        self.line.sock.sendall(f"SUB {subject} {number}\r\n".encode())

    def request(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(body).encode()
        self.subscribe(REPLY, 9)
        self.line.sock.sendall(f"PUB {subject} {REPLY} {len(data)}\r\n".encode() + data + b"\r\n")
        response: dict[str, Any] = json.loads(self._response())
        self.line.sock.sendall(b"UNSUB 9\r\n")
        if "error" in response:
            raise RuntimeError(f"{subject}: {response['error'].get('description')}")
        return response

    def _response(self) -> bytes:
        """Return the response; keep messages that arrive before it.

        A push consumer may get its first messages before the response to its creation.
        """
        while True:
            subject, payload = self._message()
            if subject == REPLY.encode():
                return payload
            self._early.append(payload)

    def next(self) -> bytes:
        """Return the payload of the next message."""
        return self._early.popleft() if self._early else self._message()[1]

    def _message(self) -> tuple[bytes, bytes]:
        """Return subject and payload, and answer PINGs in between."""
        while True:
            head = self.line.until(b"\r\n")
            if head == b"PING\r\n":
                self.line.sock.sendall(b"PONG\r\n")
            elif head.startswith(b"-ERR"):
                raise RuntimeError(head.decode().strip())
            elif match := _HEAD.match(head):
                return match[1], self.line.take(int(match[2]) + 2)[:-2]
            elif head.startswith(b"HMSG"):  # headers only: a pull that is over
                self.line.take(int(head.split()[-1]) + 2)


def ping(address: str) -> None:
    client = Client(address)
    with client.line.sock:
        client.request("$JS.API.INFO", {})


def _stream(name: str) -> str:
    return name.upper()


def create(address: str, name: str) -> None:
    client = Client(address)
    with client.line.sock:
        body = {"name": _stream(name), "subjects": [name], "storage": "file", "retention": "limits"}
        client.request(f"$JS.API.STREAM.CREATE.{_stream(name)}", body)


class Writer(LineWriter):
    def __init__(self, address: str, name: str, message_bytes: int) -> None:
        self.client, self.name = Client(address), name
        self.head = f"PUB {name} {ACKS} {message_bytes}\r\n".encode()
        self.client.subscribe(ACKS, 1)
        super().__init__(self.client.line.sock, message_bytes)

    def message(self, payload: bytes) -> bytes:
        return self.head + payload + b"\r\n"

    def acknowledged(self, data: bytes) -> int:
        """Count acknowledgements. PINGs may stay unanswered: the server allows two."""
        data = self.whole_lines(data)
        if b'"error"' in data or b"-ERR" in data:
            raise RuntimeError(f"rejected: {data[:200]!r}")
        return data.count(b'"seq":')

    def length(self) -> int:
        self.sock.setblocking(True)
        info = self.client.request(f"$JS.API.STREAM.INFO.{_stream(self.name)}", {})
        return int(info["state"]["messages"])


class Reader:
    def __init__(self, address: str, name: str, message_bytes: int) -> None:
        self.client, self.stream, self.message_bytes = Client(address), _stream(name), message_bytes

    def _consumer(self, **config: object) -> None:
        config |= {"durable_name": "reader", "ack_policy": "none", "deliver_policy": "all"}
        body = {"stream_name": self.stream, "config": config}
        self.client.request(f"$JS.API.CONSUMER.DURABLE.CREATE.{self.stream}.reader", body)

    def _pull(self) -> None:
        body = b'{"batch":%d,"expires":%d}' % (PULL, SILENCE_S * 1e9)
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.reader"
        self.client.line.sock.sendall(
            f"PUB {subject} {INBOX} {len(body)}\r\n".encode() + body + b"\r\n"
        )

    def read(self, messages: int) -> int:
        """Count messages by the subject of their acknowledgement, which each has once."""
        self._consumer()
        self.client.subscribe(INBOX, 2)
        for _ in range(PULLS):
            self._pull()
        line, mark, read, requested = self.client.line, b" $JS.ACK.", 0, PULLS * PULL
        while read < messages:
            end = line.buffer.rfind(b"\n") + 1
            read += line.buffer.count(mark, 0, end)
            del line.buffer[:end]
            while requested - read <= (PULLS - 1) * PULL:
                self._pull()
                requested += PULL
            if read < messages:
                line.more()
        return read

    def payloads(self) -> Payloads:
        self.client.subscribe(INBOX, 2)
        self._consumer(deliver_subject=INBOX)
        while True:
            yield self.client.next()
