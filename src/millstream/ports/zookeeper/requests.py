"""Additional requests for kazoo.

``ReadMany`` reads many nodes in one request (ZooKeeper 3.6 and later). kazoo lacks it, and needs
half a millisecond for each single read. ``Multi`` is encoded in kazoo's thread and not on the event
loop.

A request has the shape that kazoo expects: a ``type``, ``serialize`` and ``deserialize``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from millstream.ports.coordination import CoordinationError, Node
from millstream.ports.zookeeper.multi import Kind, Operation

CREATE, DELETE, GET_DATA, SET_DATA, GET_CHILDREN, CHECK = 1, 2, 4, 5, 8, 13
_ERROR = -1
_NO_NODE = -101
_HEADER = struct.Struct("!iBi")
_INT = struct.Struct("!i")
_END = _HEADER.pack(-1, 1, -1)
_EPHEMERAL = 1
# The open ACL: one entry, all permissions, world:anyone.
_OPEN_ACL = struct.pack("!iii5si6s", 1, 31, 5, b"world", 6, b"anyone")
# czxid, mzxid, ctime, mtime, version, cversion, aversion, owner, length of the data, children,
# pzxid
_STAT = struct.Struct("!qqqqiiiqiiq")


@dataclass(frozen=True, slots=True)
class ReadMany:
    """A request that reads many paths.

    The response has an entry per path, None if the node does not exist. An entry of GET_DATA is
    (Node, number of its children), an entry of GET_CHILDREN the names of the children.
    """

    type: ClassVar[int] = 22  # OpCode.multiRead

    operation: int
    paths: tuple[str, ...]

    def serialize(self) -> bytearray:
        out = bytearray()
        head = _HEADER.pack(self.operation, 0, -1)
        for path in self.paths:
            # The last byte: no watch.
            out += head + _buffer(path.encode()) + b"\x00"
        return out + _END

    def deserialize(self, buffer: bytes, offset: int) -> list[Any]:
        entries: list[Any] = []
        while True:
            kind, done, error = _HEADER.unpack_from(buffer, offset)
            offset += _HEADER.size
            if done:
                return entries
            if kind == _ERROR:
                (error,) = _INT.unpack_from(buffer, offset)
                offset += _INT.size
                if error != _NO_NODE:
                    raise CoordinationError(f"{self.paths[len(entries)]}: ZooKeeper error {error}")
                entries.append(None)
            else:
                read = _read_node if kind == GET_DATA else _read_names
                entry, offset = read(buffer, offset)
                entries.append(entry)


@dataclass(frozen=True, slots=True)
class Multi:
    """A request of operations below a root, all or none.

    The response has an error code per operation, 0 for success.
    """

    type: ClassVar[int] = 14  # OpCode.multi

    root: str
    operations: Sequence[Operation]

    def serialize(self) -> bytearray:
        out = bytearray()
        for operation in self.operations:
            out += _HEADERS[operation.kind] + _buffer((self.root + operation.path).encode())
            if operation.kind is Kind.CREATE:
                flags = _EPHEMERAL if operation.ephemeral else 0
                out += _buffer(operation.data) + _OPEN_ACL + _INT.pack(flags)
                continue
            if operation.kind is Kind.SET:
                out += _buffer(operation.data)
            out += _INT.pack(operation.version)
        return out + _END

    def deserialize(self, buffer: bytes, offset: int) -> list[int]:
        codes: list[int] = []
        while True:
            kind, done, _ = _HEADER.unpack_from(buffer, offset)
            offset += _HEADER.size
            if done:
                return codes
            code = 0
            if kind == _ERROR:
                (code,) = _INT.unpack_from(buffer, offset)
                offset += _INT.size
            elif kind == CREATE:
                _, offset = _read_buffer(buffer, offset)
            elif kind == SET_DATA:
                offset += _STAT.size
            codes.append(code)


_HEADERS = {
    Kind.CREATE: _HEADER.pack(CREATE, 0, -1),
    Kind.DELETE: _HEADER.pack(DELETE, 0, -1),
    Kind.SET: _HEADER.pack(SET_DATA, 0, -1),
    Kind.CHECK: _HEADER.pack(CHECK, 0, -1),
}


def _buffer(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _read_node(buffer: bytes, offset: int) -> tuple[tuple[Node, int], int]:
    data, offset = _read_buffer(buffer, offset)
    stat = _STAT.unpack_from(buffer, offset)
    return (Node(data, stat[4], stat[0]), stat[9]), offset + _STAT.size


def _read_names(buffer: bytes, offset: int) -> tuple[list[str], int]:
    (count,) = _INT.unpack_from(buffer, offset)
    offset += _INT.size
    names = []
    for _ in range(count):
        name, offset = _read_buffer(buffer, offset)
        names.append(name.decode())
    return names, offset


def _read_buffer(buffer: bytes, offset: int) -> tuple[bytes, int]:
    (length,) = _INT.unpack_from(buffer, offset)
    offset += _INT.size
    end = offset + max(length, 0)
    return bytes(buffer[offset:end]), end
