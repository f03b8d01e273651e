"""NATS JetStream over its text protocol: PUB with a place for the acknowledgement, pulls of many messages, a push for latency."""

import json
import re
from collections import deque
from typing import Any

from bench.streams import SILENCE_S, Line, LineWriter, Payloads

ACKS = "_INBOX.acks"
ANSWER = "_INBOX.answer"
INBOX = "_INBOX.read"
PULL, PULLS = 5000, 3  # messages of one request; requests in flight
_HEAD = re.compile(rb"MSG (\S+) \S+(?: \S+)? (\d+)\r\n")
CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"lang":"bench","version":"0"}\r\n'


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
        self.subscribe(ANSWER, 9)
        self.line.sock.sendall(f"PUB {subject} {ANSWER} {len(data)}\r\n".encode() + data + b"\r\n")
        answer: dict[str, Any] = json.loads(self._answer())
        self.line.sock.sendall(b"UNSUB 9\r\n")
        if "error" in answer:
            raise RuntimeError(f"{subject}: {answer['error'].get('description')}")
        return answer

    def _answer(self) -> bytes:
        """A consumer that is pushed to may get its first messages before it is told that there is one: they are kept."""
        while True:
            subject, payload = self._message()
            if subject == ANSWER.encode():
                return payload
            self._early.append(payload)

    def next(self) -> bytes:
        """The payload of the next message."""
        return self._early.popleft() if self._early else self._message()[1]

    def _message(self) -> tuple[bytes, bytes]:
        """Subject and payload; what the server asks between is answered."""
        while True:
            head = self.line.until(b"\r\n")
            if head == b"PING\r\n":
                self.line.sock.sendall(b"PONG\r\n")
            elif head.startswith(b"-ERR"):
                raise RuntimeError(head.decode().strip())
            elif found := _HEAD.match(head):
                return found[1], self.line.take(int(found[2]) + 2)[:-2]
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
        """A PING between them may go unanswered: the server allows for two, minutes apart."""
        data = self.whole_lines(data)
        if b'"error"' in data or b"-ERR" in data:
            raise RuntimeError(f"refused: {data[:200]!r}")
        return data.count(b'"seq":')

    def length(self) -> int:
        self.sock.setblocking(True)
        found = self.client.request(f"$JS.API.STREAM.INFO.{_stream(self.name)}", {})
        return int(found["state"]["messages"])


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
        self.client.line.sock.sendall(f"PUB {subject} {INBOX} {len(body)}\r\n".encode() + body + b"\r\n")

    def read(self, messages: int) -> int:
        """Messages are counted by the subject of their acknowledgement, which each has once."""
        self._consumer()
        self.client.subscribe(INBOX, 2)
        for _ in range(PULLS):
            self._pull()
        line, mark, read, asked = self.client.line, b" $JS.ACK.", 0, PULLS * PULL
        while read < messages:
            end = line.buffer.rfind(b"\n") + 1
            read += line.buffer.count(mark, 0, end)
            del line.buffer[:end]
            while asked - read <= (PULLS - 1) * PULL:
                self._pull()
                asked += PULL
            if read < messages:
                line.more()
        return read

    def payloads(self) -> Payloads:
        self.client.subscribe(INBOX, 2)
        self._consumer(deliver_subject=INBOX)
        while True:
            yield self.client.next()
