"""RabbitMQ's streams over their own binary protocol: publish frames of many messages, chunks delivered against credit."""

import struct

from bench.streams import BlockWriter, Line, Payloads, text

DECLARE_PUBLISHER, PUBLISH, CONFIRM, SUBSCRIBE, DELIVER, CREDIT = 0x01, 0x02, 0x03, 0x07, 0x08, 0x09
CREATE, PROPERTIES, SASL_HANDSHAKE, SASL_AUTHENTICATE, TUNE, OPEN = 0x0D, 0x11, 0x12, 0x13, 0x14, 0x15
HEARTBEAT, METADATA_UPDATE = 0x17, 0x10
ANSWER = 0x8000
OK, EXISTS = 1, 5
FRAME_BYTES = 1 << 20
CHUNKS_AHEAD = 10
_CHUNK = struct.Struct(
    ">bbHIqQQIIII"
)  # magic, type, entries, records, timestamp, epoch, offset, crc, sizes, reserved


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def frame(key: int, body: bytes) -> bytes:
    return struct.pack(">IHH", 4 + len(body), key, 1) + body


class Client:
    """A connection of the user that a fresh server has."""

    def __init__(self, address: str) -> None:
        self.line = Line(address)
        self.ask(PROPERTIES, struct.pack(">i", 0))
        self.ask(SASL_HANDSHAKE, b"")
        secret = b"\0guest\0guest"
        self.ask(SASL_AUTHENTICATE, _string("PLAIN") + struct.pack(">i", len(secret)) + secret)
        while (told := self.next())[0] != TUNE:
            pass
        self.line.sock.sendall(frame(TUNE | ANSWER, told[1]))
        self.ask(OPEN, _string("/"))

    def next(self) -> tuple[int, bytes]:
        """Key and body of the next frame."""
        (size,) = struct.unpack(">I", self.line.take(4))
        key, _ = struct.unpack(">HH", self.line.take(4))
        return key, self.line.take(size - 4)

    def ask(self, key: int, body: bytes, allowed: tuple[int, ...] = (OK,)) -> None:
        self.line.sock.sendall(frame(key, struct.pack(">I", 1) + body))
        while True:
            answered, told = self.next()
            if answered == key | ANSWER:
                break
        code = struct.unpack_from(">IH", told)[1]
        if code not in allowed:
            raise OSError(f"command {key} was answered with {code}")


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
        self.payload, self._rest, self.name, self.address = text(message_bytes), bytearray(), name, address
        self.confirmed = 0
        super().__init__(client.line.sock, message_bytes)

    def message(self, payload: bytes) -> bytes:
        return frame(PUBLISH, struct.pack(">bI", 0, 1) + self._entry(payload))

    @staticmethod
    def _entry(payload: bytes) -> bytes:
        """An id (without a name of the publisher nothing is made of it), and the payload as a data section of AMQP 1.0."""
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
                raise RuntimeError(f"refused with frame {key}")
            at += 4 + size
        del self._rest[:at]
        self.confirmed += done
        return done

    def length(self) -> int:
        """A stream does not tell its length; the offset of the chunk that a reader of the end is given does."""
        client = Client(self.address)
        client.ask(SUBSCRIBE, b"\0" + _string(self.name) + struct.pack(">HH", 2, 1))
        while (told := client.next())[0] != DELIVER:
            pass
        client.line.sock.close()
        fields = _CHUNK.unpack_from(told[1], 1)
        return int(fields[6] + fields[3])


class Reader:
    def __init__(self, address: str, name: str, message_bytes: int) -> None:
        self.client, self.name, self.message_bytes = Client(address), name, message_bytes

    def _chunks(self) -> Payloads:
        """From the first on; each is asked for when an earlier one has come."""
        first = 1
        subscription = b"\0" + _string(self.name) + struct.pack(">HH", first, CHUNKS_AHEAD)
        self.client.line.sock.sendall(frame(SUBSCRIBE, struct.pack(">I", 1) + subscription))
        credit = frame(CREDIT, struct.pack(">bH", 0, 1))
        while True:
            key, body = self.client.next()
            if key == DELIVER:
                self.client.line.sock.sendall(credit)
                yield body
            elif key == SUBSCRIBE | ANSWER and struct.unpack_from(">IH", body)[1] != OK:
                raise RuntimeError("the subscription was refused")

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
