"""Redis Streams over RESP: XADD for each message, pipelined; XREAD for many at once."""

import re

from bench.streams import Line, LineWriter, Payloads

READ_COUNT = 10_000
BLOCK_MS = 1000
_ENTRY = re.compile(rb"\*2\r\n\$\d+\r\n(\d+-\d+)\r\n\*2\r\n\$1\r\nd\r\n\$\d+\r\n")
_FIELD = b"*2\r\n$1\r\nd\r\n"


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(
        b"$%d\r\n%b\r\n" % (len(word), word) for word in words
    )


def ping(address: str) -> None:
    line = Line(address)
    with line.sock as sock:
        sock.sendall(command(b"PING"))
        if line.until(b"\r\n") != b"+PONG\r\n":  # -LOADING: not yet
            raise OSError("not ready")


def create(_address: str, _name: str) -> None:
    """Do nothing: the first XADD creates the stream."""


class Writer(LineWriter):
    def __init__(self, address: str, name: str, message_bytes: int) -> None:
        self.line, self.name = Line(address), name.encode()
        super().__init__(self.line.sock, message_bytes)

    def message(self, payload: bytes) -> bytes:
        return command(b"XADD", self.name, b"*", b"d", payload)

    def acknowledged(self, data: bytes) -> int:
        """Count the responses: each is an id as a bulk string; errors begin with a minus."""
        data = self.whole_lines(data)
        if data.startswith(b"-") or b"\n-" in data:
            raise RuntimeError(f"rejected: {data[data.find(b'-') :][:100]!r}")
        return data.count(b"$")

    def length(self) -> int:
        self.sock.setblocking(True)
        self.sock.sendall(command(b"XLEN", self.name))
        return int(self.line.until(b"\r\n")[1:-2])


class Reader:
    def __init__(self, address: str, name: str, message_bytes: int) -> None:
        self.line, self.name, self.message_bytes = Line(address), name.encode(), message_bytes
        self.last = b"0-0"

    def _request(self, *words: bytes) -> int:
        """Return the number of entries in the response; the buffer starts with the first."""
        words = (b"XREAD", b"COUNT", b"%d" % READ_COUNT, *words, b"STREAMS", self.name, self.last)
        self.line.sock.sendall(command(*words))
        head = self.line.until(b"\r\n")
        if head == b"*-1\r\n":
            return 0
        if not head.startswith(b"*"):
            raise RuntimeError(f"rejected: {head!r}")
        self.line.until(self.name + b"\r\n*")
        return int(self.line.until(b"\r\n"))

    def read(self, messages: int) -> int:
        """Count entries by their fields, and parse only the id of the last."""
        read = 0
        while read < messages:
            count = self._request()
            if not count:
                break
            seen, at = 0, 0
            while seen < count:
                seen += self.line.buffer.count(_FIELD, at)
                at = max(at, self.line.buffer.rfind(_FIELD) + 1)
                if seen < count:
                    self.line.more()
            self._finish()
            read += count
        return read

    def _finish(self) -> None:
        """Read the last entry, which may be incomplete."""
        at = self.line.buffer.rfind(_FIELD)
        head = self.line.buffer.rfind(b"*2\r\n$", 0, at)
        whole = at + len(_FIELD) + len(b"$%d\r\n" % self.message_bytes) + self.message_bytes + 2
        data = self.line.take(whole)
        match = _ENTRY.match(data, head)
        assert match is not None
        self.last = match[1]

    def payloads(self) -> Payloads:
        while True:
            for _ in range(self._request(b"BLOCK", b"%d" % BLOCK_MS)):
                while (found := _ENTRY.match(self.line.buffer)) is None:
                    self.line.more()
                self.last, whole = found[1], found.end() + self.message_bytes + 2
                yield self.line.take(whole)[-self.message_bytes - 2 : -2]
