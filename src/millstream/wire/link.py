"""The client's side of one connection: frames, correlation ids, versions, pending requests. No I/O.

Its users own the socket or stream: a blocking client (`client/protocol.py`), the brokers among
themselves (`cluster/peers.py`), Spark's producer (`spark/sink/produce_link.py`) and the clients of
the simulation (`sim/clients/channel.py`). They send the bytes that `request` or `header` returns,
receive into `buffer`, report the count to `received`, and give whole frames to `response`.

Each pending request has a waiter, a value of the user such as a future. It is returned with the
response.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from millstream.wire.apis import Api, api_of
from millstream.wire.compiler import skip_tags
from millstream.wire.frames import API_VERSIONS_KEY, REQUEST_HEADER, SIZE
from millstream.wire.messages.api_versions import ApiVersionsResponse
from millstream.wire.schema import DecodeError, Struct

T = TypeVar("T")

_SIZE_BYTES = SIZE.size
_NO_TAGS = b"\x00"


class NoCommonVersion(Exception):
    """The broker and this side have no version of an API in common."""

    def __init__(self, api: Api, ours: tuple[int, int], theirs: tuple[int, int] | None) -> None:
        self.api = api
        self.ours = ours
        self.theirs = theirs
        served = "no version" if theirs is None else f"versions {theirs[0]} to {theirs[1]}"
        super().__init__(f"it has {served} of {api.name}, and this side {ours[0]} to {ours[1]}")


class Link(Generic[T]):
    """State of one connection. With ``in_order``, a response that overtakes another is an error."""

    def __init__(self, client_id: str, *, max_response_bytes: int, in_order: bool = False) -> None:
        self._client_id = client_id.encode()
        self._max_response_bytes = max_response_bytes
        self._in_order = in_order
        self._last_id = 0
        self._pending: dict[int, tuple[Api, int, T]] = {}
        # By API key, the oldest and newest version that the broker serves; see `learn_versions`.
        self.versions: dict[int, tuple[int, int]] = {}
        # Memory for a response of this many bytes; a user may replace it to reuse memory.
        self.allocate: Callable[[int], bytearray | memoryview] = bytearray
        self._size = bytearray(_SIZE_BYTES)
        self._frame: memoryview | None = None
        # The next received bytes go here.
        self.buffer = memoryview(self._size)

    @property
    def idle(self) -> bool:
        """Whether no request is pending."""
        return not self._pending

    # ---- versions ----

    def learn_versions(self, response: ApiVersionsResponse) -> None:
        """Store the versions that the broker serves."""
        for row in response.api_keys:
            self.versions[row.api_key] = row.min_version, row.max_version

    def version(self, api: Api, *, oldest: int | None = None, newest: int | None = None) -> int:
        """Return the newest version that both sides have, within these bounds if given."""
        minimum = api.min_version if oldest is None else oldest
        maximum = api.newest if newest is None else newest
        served = self.versions.get(api.key)
        if served is None or min(maximum, served[1]) < max(minimum, served[0]):
            raise NoCommonVersion(api, (minimum, maximum), served)
        return min(maximum, served[1])

    # ---- requests ----

    def request(self, message: Struct, version: int, waiter: T) -> bytes:
        """Return a whole frame, with its size. `waiter` is returned with the response."""
        body = message.encode(version)
        head = self.header(api_of(message), version, waiter)
        return SIZE.pack(len(head) + len(body)) + head + body

    def header(self, api: Api, version: int, waiter: T) -> bytes:
        """Begin a request whose body the caller encodes. Return its header, without the size."""
        self._last_id = number = self._last_id + 1
        self._pending[number] = (api, version, waiter)
        name = self._client_id
        head = REQUEST_HEADER.pack(api.key, version, number, len(name)) + name
        return head + _NO_TAGS if version >= api.flexible_from else head

    def abandon(self) -> list[T]:
        """Drop all pending requests of a lost connection, and return their waiters."""
        pending, self._pending = self._pending, {}
        return [waiter for _api, _version, waiter in pending.values()]

    # ---- responses ----

    def received(self, count: int) -> memoryview | None:
        """Process bytes received into `buffer`. Return a completed frame, without its size."""
        if not count:
            raise ConnectionResetError("the connection was closed")
        if count < len(self.buffer):
            self.buffer = self.buffer[count:]
            return None
        frame = self._frame
        if frame is None:
            (size,) = SIZE.unpack(self._size)
            if not _SIZE_BYTES <= size <= self._max_response_bytes:
                raise DecodeError(f"a response of {size} bytes")
            self.buffer = self._frame = memoryview(self.allocate(size))
            return None
        self._frame = None
        self.buffer = memoryview(self._size)
        return frame

    def feed(self, data: memoryview) -> Iterator[memoryview]:
        """Process bytes received elsewhere. Yield the frames they complete."""
        while data:
            count = min(len(data), len(self.buffer))
            self.buffer[:count] = data[:count]
            data = data[count:]
            frame = self.received(count)
            if frame is not None:
                yield frame

    def response(self, frame: memoryview) -> tuple[T, Any]:
        """Return the waiter of a request and its response; records in it are views of the frame."""
        (number,) = SIZE.unpack_from(frame)
        if self._in_order and self._pending and number != (due := next(iter(self._pending))):
            raise DecodeError(f"a response to request {number} instead of {due}")
        pending = self._pending.pop(number, None)
        if pending is None:
            raise DecodeError(f"a response to request {number}, which is not pending")
        api, version, waiter = pending
        tagged = version >= api.flexible_from and api.key != API_VERSIONS_KEY
        position = skip_tags(frame, _SIZE_BYTES, len(frame)) if tagged else _SIZE_BYTES
        return waiter, api.response_class().decode(frame, version, position)[0]
