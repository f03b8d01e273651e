"""Request and response headers.

A request header has the size, API key, version, correlation id, client id (always a non-compact
string) and, in flexible versions, tagged fields. A response header has the size, the correlation id
and, in flexible versions, tagged fields. ApiVersions responses never have tagged fields, so that a
client can read them before it knows the versions of the broker.
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
    """Parse the header of a frame without its size prefix.

    Return the key, version, correlation id, client id and the position of the body.
    """
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
    """Return a request without its size prefix, as ``parse_request_header`` parses it."""
    name = (client_id or "").encode()
    head = (
        REQUEST_HEADER.pack(key, version, correlation_id, -1 if client_id is None else len(name))
        + name
    )
    tags = b"\0" if version >= _FLEXIBLE_FROM[key] else b""
    return head + tags + body


def begin_response(key: int, version: int, correlation_id: int) -> bytearray:
    """Return the header of a response; ``finish_response`` fills in the size."""
    out = bytearray(_RESPONSE.pack(0, correlation_id))
    if version >= _FLEXIBLE_FROM.get(key, NEVER_FLEXIBLE) and key != API_VERSIONS_KEY:
        out.append(0)
    return out


def finish_response(out: bytearray, more: int = 0) -> bytearray:
    """Write the size, including ``more`` bytes that follow in other buffers."""
    SIZE.pack_into(out, 0, len(out) - 4 + more)
    return out
