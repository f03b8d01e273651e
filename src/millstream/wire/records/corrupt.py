"""What can be wrong with the bytes of a batch, as exceptions; `wire/records/convert` turns them into error codes."""

from __future__ import annotations


class CorruptBatch(Exception):
    """Bytes that are no valid batch: says what is wrong, and at which position of the buffer or body."""

    def __init__(self, reason: str, position: int = 0) -> None:
        super().__init__(reason, position)
        self.reason = reason
        self.position = position

    def __str__(self) -> str:
        return f"{self.reason} (at byte {self.position})"


class CorruptMessage(CorruptBatch):
    """The framing (size, magic) or a checksum is wrong: damage on the way, rather than a producer's mistake."""


class UnreadableCompression(CorruptBatch):
    """The checksum may be right, but the compressed bytes cannot be decompressed."""


class UnknownCodec(CorruptBatch):
    """A codec number that Kafka does not define."""


class DecompressedTooLarge(CorruptBatch):
    """The bytes would decompress to more than is allowed; nothing of that size has been allocated."""
