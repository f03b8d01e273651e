"""What a handler may return, besides a response message or an awaitable of one."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import Any

from millstream.ports.files import FileSlice
from millstream.wire.schema import Struct

Part = bytes | bytearray | memoryview | FileSlice


class NoResponse:
    """Nothing is sent back (Produce with acks=0)."""


class CloseConnection(Exception):
    """The request cannot be answered in its protocol: end the connection. The message goes to the log."""


class Encoded:
    """A response that the handler has encoded itself, header included; file slices are read as the socket drains."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts


class Hold:
    """Later requests of the same connection wait until the coroutine ends: it appends only after an await, and
    order within a connection is a promise."""

    __slots__ = ("coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, Answer]) -> None:
        self.coroutine = coroutine


Response = Struct | Encoded | NoResponse
Answer = Response | Awaitable[Response]
