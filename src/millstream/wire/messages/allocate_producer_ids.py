"""AllocateProducerIds (key 67): a block of producer ids for one broker."""

from __future__ import annotations

from millstream.wire.schema import Struct, int16, int32, int64


class AllocateProducerIdsRequest(Struct, versions="0", flexible="0+"):
    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)


class AllocateProducerIdsResponse(Struct, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id_start: int = int64("0+")
    producer_id_len: int = int32("0+")
