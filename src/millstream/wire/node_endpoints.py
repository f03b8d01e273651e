"""Endpoints of current leaders, in Produce and Fetch responses with moved partitions (KIP-951)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from millstream.wire.compiler import write_uvarint

_I32 = struct.Struct(">i").pack
_TAG = 0


class NodeEndpoint(NamedTuple):
    """The address of a broker on the client's listener."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def write_tags(out: bytearray, nodes: Sequence[NodeEndpoint]) -> None:
    """Append the tagged fields of the response: the nodes, if any."""
    if not nodes:
        out.append(0)
        return
    body = bytearray()
    write_uvarint(body, len(nodes) + 1)
    for node in nodes:
        body += _I32(node.node_id)
        _text(body, node.host)
        body += _I32(node.port)
        _text(body, node.rack)
        body.append(0)
    out += bytes((1, _TAG))
    write_uvarint(out, len(body))
    out += body


def _text(out: bytearray, text: str | None) -> None:
    raw = b"" if text is None else text.encode()
    write_uvarint(out, 0 if text is None else len(raw) + 1)
    out += raw
