"""AlterClientQuotas (key 49): set or remove quotas of users, client ids and addresses (KIP-546)."""

from __future__ import annotations

from millstream.wire.schema import Struct, array, boolean, float64, int16, int32, string


class AlteredEntity(Struct):
    entity_type: str = string("0+")
    entity_name: str | None = string("0+", nullable="0+")


class QuotaOperation(Struct):
    key: str = string("0+")
    value: float = float64("0+")
    remove: bool = boolean("0+")


class QuotaAlteration(Struct):
    entity: list[AlteredEntity] = array(AlteredEntity, "0+")
    ops: list[QuotaOperation] = array(QuotaOperation, "0+")


class AlterClientQuotasRequest(Struct, versions="0-1", flexible="1+"):
    entries: list[QuotaAlteration] = array(QuotaAlteration, "0+")
    validate_only: bool = boolean("0+")


class QuotaAlterationResult(Struct):
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    entity: list[AlteredEntity] = array(AlteredEntity, "0+")


class AlterClientQuotasResponse(Struct, versions="0-1", flexible="1+"):
    throttle_time_ms: int = int32("0+")
    entries: list[QuotaAlterationResult] = array(QuotaAlterationResult, "0+")
