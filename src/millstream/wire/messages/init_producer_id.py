"""InitProducerId (key 22): a producer id and epoch for idempotent or transactional producing.

v3 lets a producer request a bumped epoch (KIP-360); v6 supports two-phase commit (KIP-939).
"""

from __future__ import annotations

from millstream.wire.schema import Struct, boolean, int16, int32, int64, string


class InitProducerIdRequest(Struct, versions="0-6", flexible="2+"):
    transactional_id: str | None = string("0+", nullable="0+")
    transaction_timeout_ms: int = int32("0+")
    producer_id: int = int64("3+", default=-1)
    producer_epoch: int = int16("3+", default=-1)
    enable_two_phase_commit: bool = boolean("6+")
    keep_prepared_txn: bool = boolean("6+")


class InitProducerIdResponse(Struct, versions="0-6", flexible="2+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id: int = int64("0+", default=-1)
    producer_epoch: int = int16("0+")
    ongoing_txn_producer_id: int = int64("6+", default=-1)
    ongoing_txn_producer_epoch: int = int16("6+", default=-1)
