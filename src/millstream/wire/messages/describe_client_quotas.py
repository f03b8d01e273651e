"""DescribeClientQuotas (key 48): the quotas of users, client ids and addresses (KIP-546)."""

from __future__ import annotations

from millstream.wire.schema import Struct, array, boolean, float64, int8, int16, int32, string


class ComponentData(Struct):
    entity_type: str = string("0+")
    match_type: int = int8("0+")
    match: str | None = string("0+", nullable="0+")


class DescribeClientQuotasRequest(Struct, versions="0-1", flexible="1+"):
    components: list[ComponentData] = array(ComponentData, "0+")
    strict: bool = boolean("0+")


class QuotaEntityData(Struct):
    entity_type: str = string("0+")
    entity_name: str | None = string("0+", nullable="0+")


class QuotaValueData(Struct):
    key: str = string("0+")
    value: float = float64("0+")


class QuotaEntryData(Struct):
    entity: list[QuotaEntityData] = array(QuotaEntityData, "0+")
    values: list[QuotaValueData] = array(QuotaValueData, "0+")


class DescribeClientQuotasResponse(Struct, versions="0-1", flexible="1+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    entries: list[QuotaEntryData] | None = array(QuotaEntryData, "0+", nullable="0+")
