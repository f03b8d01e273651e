"""Request and response headers: what stands around every message.

A request: size, api key, version, correlation id, client id (always a classic string), and tagged fields when the version is
flexible. A response: size, correlation id, and tagged fields when flexible; ApiVersions answers never have those, so
that a client can read them before it knows anything.
"""

from __future__ import annotations

import struct

from millstream.wire.apis import BY_KEY, NEVER_FLEXIBLE
from millstream.wire.compiler import skip_tags
from millstream.wire.schema import DecodeError

API_VERSIONS_KEY = 18

# Key, version, correlation id, length of the client id.
REQUEST_HEADER = struct.Struct(">hhih")
SIZE = struct.Struct(">i")
_RESPONSE = struct.Struct(">ii")

_FLEXIBLE_FROM = {key: api.flexible_from for key, api in BY_KEY.items()}
_NEWEST = {key: api.max_version for key, api in BY_KEY.items()}


def parse_request_header(frame: memoryview) -> tuple[int, int, int, str | None, int]:
    """Key, version, correlation id, client id, and where the body begins, of a frame without its size prefix."""
    try:
        key, version, correlation_id, length = REQUEST_HEADER.unpack_from(frame)
        body = 10 + (length if length > 0 else 0)
        if length < -1 or body > len(frame):
            raise DecodeError("client id reaches beyond the end of the frame")
        client_id = None if length < 0 else str(frame[10:body], "utf-8")
        if version >= _FLEXIBLE_FROM.get(key, NEVER_FLEXIBLE) and version <= _NEWEST.get(key, -1):
            body = body + 1 if frame[body] == 0 else skip_tags(frame, body, len(frame))
        return key, version, correlation_id, client_id, body
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise DecodeError(f"request header: {error}") from None


def request_frame(
    key: int, version: int, correlation_id: int, client_id: str | None, body: bytes | bytearray
) -> bytes:
    """A request without its size prefix, as ``parse_request_header`` takes it apart."""
    name = (client_id or "").encode()
    head = REQUEST_HEADER.pack(key, version, correlation_id, -1 if client_id is None else len(name)) + name
    tags = b"\0" if version >= _FLEXIBLE_FROM[key] else b""
    return head + tags + body


def begin_response(key: int, version: int, correlation_id: int) -> bytearray:
    """A response up to its body; ``finish_response`` fills in the size."""
    out = bytearray(_RESPONSE.pack(0, correlation_id))
    if version >= _FLEXIBLE_FROM.get(key, NEVER_FLEXIBLE) and key != API_VERSIONS_KEY:
        out.append(0)
    return out


def finish_response(out: bytearray, more: int = 0) -> bytearray:
    """Writes the size, counting ``more`` bytes that follow in other buffers."""
    SIZE.pack_into(out, 0, len(out) - 4 + more)
    return out
