"""Record batches with changed bytes and a checksum that fits them."""

from __future__ import annotations

import struct

from millstream.wire.records.checksum import crc32c
from millstream.wire.records.layout import ATTRIBUTES_AT, CRC_AT


def reseal(batch: bytearray | memoryview) -> bytes:
    """Write the checksum of the current bytes into the header; return the whole batch."""
    struct.pack_into(">I", batch, CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
    return bytes(batch)
