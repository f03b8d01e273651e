"""AddOffsetsToTxn (key 25): add the offsets of a group to a transaction."""

from __future__ import annotations

from millstream.wire.schema import Struct, int16, int32, int64, string


class AddOffsetsToTxnRequest(Struct, versions="0-4", flexible="3+"):
    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    group_id: str = string("0+")


class AddOffsetsToTxnResponse(Struct, versions="0-4", flexible="3+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
