"""ListConfigResources (key 74): the resources with settings (KIP-1142).

v0 lists client metrics resources only.
"""

from __future__ import annotations

from millstream.wire.schema import Struct, array, int8, int16, int32, string


class ListConfigResourcesRequest(Struct, versions="0-1", flexible="0+"):
    resource_types: list[int] = array("int8", "1+")


class ConfigResource(Struct):
    resource_name: str = string("0+")
    resource_type: int = int8("1+", default=16)


class ListConfigResourcesResponse(Struct, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    config_resources: list[ConfigResource] = array(ConfigResource, "0+")
