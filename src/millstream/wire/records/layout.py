"""Layout of a version 2 record batch: the position of each header field, and the attribute bits.

The header is 61 bytes, followed by the records. Offsets and the leader epoch lie before the CRC-32C
and are not covered by it, so a broker fills them in place. The checksum covers everything from the
attributes to the end of the batch.

Attributes are two bytes. All bits in use are in the second byte, so code that reads a single byte
reads `FLAGS_AT`; code that reads or writes the field, or computes the checksum, uses
`ATTRIBUTES_AT`. Message sets of magic 0 and 1 share the base offset, the length and the position of
the magic byte.
"""

from __future__ import annotations

import struct
from typing import Final

MAGIC: Final = 2

LENGTH_AT: Final = 8
LEADER_EPOCH_AT: Final = 12
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
FLAGS_AT: Final = ATTRIBUTES_AT + 1
LAST_OFFSET_DELTA_AT: Final = 23
BASE_TIMESTAMP_AT: Final = 27
MAX_TIMESTAMP_AT: Final = 35
PRODUCER_ID_AT: Final = 43
PRODUCER_EPOCH_AT: Final = 51
BASE_SEQUENCE_AT: Final = 53
COUNT_AT: Final = 57
HEADER_SIZE: Final = 61

LOG_OVERHEAD: Final = 12  # base offset and length, which the length does not count

# All fields, in the order above; the base offset is at 0.
HEADER: Final = struct.Struct(">qiibIhiqqqhii")
# Producer id, producer epoch and base sequence, from PRODUCER_ID_AT.
PRODUCER: Final = struct.Struct(">qhi")

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40  # KIP-534: the base timestamp then holds the delete horizon
KNOWN_BITS: Final = 0x7F
