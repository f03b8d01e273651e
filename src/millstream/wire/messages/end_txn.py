"""EndTxn (key 26): commit or abort; from v5 the response has the bumped epoch (KIP-890)."""

from __future__ import annotations

from millstream.wire.schema import Struct, boolean, int16, int32, int64, string


class EndTxnRequest(Struct, versions="0-5", flexible="3+"):
    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    committed: bool = boolean("0+")


class EndTxnResponse(Struct, versions="0-5", flexible="3+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id: int = int64("5+", default=-1)
    producer_epoch: int = int16("5+", default=-1)
