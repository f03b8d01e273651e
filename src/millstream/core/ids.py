"""Topic, directory and cluster ids: 16 bytes, as text in URL-safe base64 without padding."""

from __future__ import annotations

import base64

NULL_ID = bytes(16)


def id_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def id_bytes(text: str) -> bytes:
    """Return the id, or raise ValueError if the text is not an id."""
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(raw) != 16:
        raise ValueError(f"{text} is not an id of 16 bytes")
    return raw
