"""Exceptions for corrupt batches; `wire/records/convert.py` translates them into error codes."""

from __future__ import annotations


class CorruptBatch(Exception):
    """Bytes that are not a valid batch, with the reason and the position in the buffer or body."""

    def __init__(self, reason: str, position: int = 0) -> None:
        super().__init__(reason, position)
        self.reason = reason
        self.position = position

    def __str__(self) -> str:
        return f"{self.reason} (at byte {self.position})"


class CorruptMessage(CorruptBatch):
    """Wrong framing (size, magic) or checksum: damage in transit, not a producer's mistake."""


class UnreadableCompression(CorruptBatch):
    """The data cannot be decompressed, although the checksum may be correct."""


class UnknownCodec(CorruptBatch):
    """A codec number that Kafka does not define."""


class DecompressedTooLarge(CorruptBatch):
    """The data would decompress to more than the limit. That much memory was never allocated."""
