"""Responses on their way to the socket: in order, and file data only as the socket drains.

Of a file, at most one chunk is in memory for each connection. Data that is not in the page cache is
read in a thread, so that the event loop never waits for the disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from millstream.broker.net.connection_control import ConnectionControl
from millstream.broker.net.responses import CloseConnection, ResponsePart
from millstream.ports.files import FileSlice
from millstream.ports.network import Stream

logger = logging.getLogger("millstream.connection")

_CHUNK = 512 * 1024
_MAX_BUFFERS = 64

_Bytes = bytes | bytearray | memoryview


class SendQueue:
    """The unsent parts of responses. It waits for the socket, and for a thread that reads files."""

    __slots__ = (
        "_closed",
        "_connection",
        "_file_read",
        "_loop",
        "_stream",
        "_writing",
        "parts",
        "unsent",
    )

    def __init__(
        self, stream: Stream, connection: ConnectionControl, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._stream = stream
        self._connection = connection
        self._loop = loop
        self.parts: deque[ResponsePart] = deque()
        # The bytes in ``parts``, file slices included.
        self.unsent = 0
        self._writing = False
        self._file_read: asyncio.Future[bytes] | None = None
        self._closed = False

    def add(self, parts: list[ResponsePart]) -> None:
        for part in parts:
            self.parts.append(part)
            self.unsent += part.length if isinstance(part, FileSlice) else len(part)

    def send_alone(self, parts: list[ResponsePart]) -> bool:
        """Send a response past the empty queue; return whether all of it was sent.

        This is the fast path of a response in one piece. The rest that the socket did not take
        stays in ``parts``, to be queued.
        """
        if self._closed or self.parts or len(parts) != 1:
            return False
        part = parts[0]
        if isinstance(part, FileSlice):
            return False
        sent = self._stream.send((part,))
        if sent < len(part):
            parts[0] = memoryview(part)[sent:]
        return sent == len(part)

    def flush(self) -> None:
        """Send until the socket is full, or file data must be read in a thread."""
        if self._writing or self._file_read is not None:
            return
        while self.parts:
            buffers = self._gather()
            if buffers is None:
                return
            sent = self._stream.send(buffers)
            self._consume(sent, buffers)
            if sent < sum(map(len, buffers)):
                self._writing = True
                self._stream.watch_writable(self._on_writable)
                return

    def _gather(self) -> list[_Bytes] | None:
        """Return the buffers of one send, or None while a thread reads file data."""
        buffers: list[_Bytes] = []
        index, size, limit = 0, 0, min(len(self.parts), _MAX_BUFFERS)
        while index < limit and size < _CHUNK:
            part = self.parts[index]
            if isinstance(part, FileSlice):
                data = part.read_nowait(0, min(part.length, _CHUNK))
                if data is None:
                    break
                self._replace_slice(index, part, data)
                part = data
            buffers.append(part)
            index += 1
            size += len(part)
        if buffers:
            return buffers
        cold = self.parts[0]
        assert isinstance(cold, FileSlice)
        self._read_in_thread(cold)
        return None

    def _replace_slice(self, index: int, part: FileSlice, data: bytes | bytearray) -> None:
        """Put the data read in the place of the beginning of its slice."""
        if len(data) == 0:
            raise CloseConnection("a log file ended before the data that was promised")
        self.parts[index] = data
        if len(data) < part.length:
            rest = FileSlice(part.file, part.position + len(data), part.length - len(data))
            self.parts.insert(index + 1, rest)

    def _consume(self, sent: int, buffers: list[_Bytes]) -> None:
        self.unsent -= sent
        for buffer in buffers:
            if sent < len(buffer):
                if sent:
                    self.parts[0] = memoryview(buffer)[sent:]
                return
            sent -= len(buffer)
            self.parts.popleft()

    def _on_writable(self) -> None:
        self._writing = False
        self._stream.watch_writable(None)
        self._connection.active_at = self._loop.time()
        self._connection.advance()

    def _read_in_thread(self, part: FileSlice) -> None:
        size = min(part.length, _CHUNK)
        self._file_read = self._loop.run_in_executor(None, part.read, 0, size)
        self._file_read.add_done_callback(lambda read: self._on_file_read(part, read))

    def _on_file_read(self, part: FileSlice, read: asyncio.Future[bytes]) -> None:
        self._file_read = None
        if self._closed or read.cancelled():
            return
        if read.exception() is not None:
            logger.warning("closing connection: cannot read a log file: %s", read.exception())
            self._connection.close()
            return
        try:
            self._replace_slice(0, part, read.result())
        except CloseConnection as error:
            self._connection.fail(error)
        else:
            self._connection.advance()

    def close(self) -> None:
        self._closed = True
        self.parts.clear()
        if self._file_read is not None:
            self._file_read.cancel()
