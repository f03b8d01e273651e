"""RabbitMQ streams over their binary protocol.

Publish frames hold many messages; chunks are delivered against credit.
"""

import struct

from bench.streams import BlockWriter, Line, Payloads, text

DECLARE_PUBLISHER, PUBLISH, CONFIRM, SUBSCRIBE, DELIVER, CREDIT = 0x01, 0x02, 0x03, 0x07, 0x08, 0x09
CREATE, PROPERTIES, SASL_HANDSHAKE, SASL_AUTHENTICATE, TUNE, OPEN = (
    0x0D,
    0x11,
    0x12,
    0x13,
    0x14,
    0x15,
)
HEARTBEAT, METADATA_UPDATE = 0x17, 0x10
RESPONSE = 0x8000
OK, EXISTS = 1, 5
FRAME_BYTES = 1 << 20
CHUNKS_AHEAD = 10
# magic, type, entries, records, timestamp, epoch, offset, crc, sizes, reserved
_CHUNK = struct.Struct(">bbHIqQQIIII")


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def frame(key: int, body: bytes) -> bytes:
    return struct.pack(">IHH", 4 + len(body), key, 1) + body


class Client:
    """A connection as the default user of a new server."""

    def __init__(self, address: str) -> None:
        self.line = Line(address)
        self.ask(PROPERTIES, struct.pack(">i", 0))
        self.ask(SASL_HANDSHAKE, b"")
        secret = b"\0guest\0guest"
        self.ask(SASL_AUTHENTICATE, _string("PLAIN") + struct.pack(">i", len(secret)) + secret)
        while (received := self.next())[0] != TUNE:
            pass
        self.line.sock.sendall(frame(TUNE | RESPONSE, received[1]))
        self.ask(OPEN, _string("/"))

    def next(self) -> tuple[int, bytes]:
        """Return key and body of the next frame."""
        (size,) = struct.unpack(">I", self.line.take(4))
        key, _ = struct.unpack(">HH", self.line.take(4))
        return key, self.line.take(size - 4)

    def ask(self, key: int, body: bytes, allowed: tuple[int, ...] = (OK,)) -> None:
        self.line.sock.sendall(frame(key, struct.pack(">I", 1) + body))
        while True:
            received_key, response = self.next()
            if received_key == key | RESPONSE:
                break
        code = struct.unpack_from(">IH", response)[1]
        if code not in allowed:
            raise OSError(f"command {key} failed with code {code}")


def ping(address: str) -> None:
    Client(address).line.sock.close()


def create(address: str, name: str) -> None:
    client = Client(address)
    client.ask(CREATE, _string(name) + struct.pack(">i", 0), (OK, EXISTS))
    client.line.sock.close()


class Writer(BlockWriter):
    def __init__(self, address: str, name: str, message_bytes: int) -> None:
        client = Client(address)
        client.ask(DECLARE_PUBLISHER, b"\0" + _string("") + _string(name))
        self.payload, self._rest, self.name, self.address = (
            text(message_bytes),
            bytearray(),
            name,
            address,
        )
        self.confirmed = 0
        super().__init__(client.line.sock, message_bytes)

    def message(self, payload: bytes) -> bytes:
        return frame(PUBLISH, struct.pack(">bI", 0, 1) + self._entry(payload))

    @staticmethod
    def _entry(payload: bytes) -> bytes:
        """Return a publishing id and the payload as a data section of AMQP 1.0.

        Without a publisher name the id has no effect.
        """
        section = b"\x00\x53\x75\xb0" + struct.pack(">I", len(payload)) + payload
        return struct.pack(">QI", 0, len(section)) + section

    def block(self, count: int) -> bytes:
        return frame(PUBLISH, struct.pack(">bI", 0, count) + self._entry(self.payload) * count)

    def acknowledged(self, data: bytes) -> int:
        self._rest += data
        done, at = 0, 0
        while len(self._rest) - at >= 8:
            size, key, _ = struct.unpack_from(">IHH", self._rest, at)
            if len(self._rest) - at < 4 + size:
                break
            if key == CONFIRM:
                done += struct.unpack_from(">I", self._rest, at + 9)[0]
            elif key not in (HEARTBEAT, METADATA_UPDATE):
                raise RuntimeError(f"rejected with frame {key}")
            at += 4 + size
        del self._rest[:at]
        self.confirmed += done
        return done

    def length(self) -> int:
        """Return the length, from the offset of the last chunk: a stream does not report it."""
        client = Client(self.address)
        client.ask(SUBSCRIBE, b"\0" + _string(self.name) + struct.pack(">HH", 2, 1))
        while (received := client.next())[0] != DELIVER:
            pass
        client.line.sock.close()
        fields = _CHUNK.unpack_from(received[1], 1)
        return int(fields[6] + fields[3])


class Reader:
    def __init__(self, address: str, name: str, message_bytes: int) -> None:
        self.client, self.name, self.message_bytes = Client(address), name, message_bytes

    def _chunks(self) -> Payloads:
        """Yield chunks from the first on; each arrival gives credit for one more."""
        first = 1
        subscription = b"\0" + _string(self.name) + struct.pack(">HH", first, CHUNKS_AHEAD)
        self.client.line.sock.sendall(frame(SUBSCRIBE, struct.pack(">I", 1) + subscription))
        credit = frame(CREDIT, struct.pack(">bH", 0, 1))
        while True:
            key, body = self.client.next()
            if key == DELIVER:
                self.client.line.sock.sendall(credit)
                yield body
            elif key == SUBSCRIBE | RESPONSE and struct.unpack_from(">IH", body)[1] != OK:
                raise RuntimeError("the subscription was rejected")

    def read(self, messages: int) -> int:
        read = 0
        for body in self._chunks():
            read += _CHUNK.unpack_from(body, 1)[3]
            if read >= messages:
                break
        return read

    def payloads(self) -> Payloads:
        for body in self._chunks():
            at = 1 + _CHUNK.size
            for _ in range(_CHUNK.unpack_from(body, 1)[2]):
                (size,) = struct.unpack_from(">I", body, at)
                at += 4 + size
                yield body[at - self.message_bytes : at]
