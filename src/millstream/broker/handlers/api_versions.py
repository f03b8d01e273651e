"""ApiVersions: the APIs and versions of this broker, and its features.

* v3: the client's name and version, which must be well-formed, and the features (KIP-511, KIP-584).
* v4: features whose lowest level is 0. Older clients cannot read those (KAFKA-17011).
* v5: the cluster and node that the client wants to reach. If they are others, it gets
  REBOOTSTRAP_REQUIRED.
* An unknown version gets UNSUPPORTED_VERSION in a v0 body, with the versions of ApiVersions.

Other brokers (``BROKER_SOFTWARE``) also get the internal APIs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.control.features import FEATURES
from millstream.core.errors import ErrorCode
from millstream.wire.apis import APIS, BROKER_SOFTWARE, BY_KEY
from millstream.wire.frames import API_VERSIONS_KEY
from millstream.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

if TYPE_CHECKING:
    from millstream.broker.services import MetadataServices

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(
    services: MetadataServices, context: RequestContext, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    if context.version >= 3:
        name, version = request.client_software_name, request.client_software_version
        if not _SOFTWARE.fullmatch(name) or not _SOFTWARE.fullmatch(version):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        context.connection.client_software = (name, version)
    if context.version >= 5 and not _is_intended_target(services, request):
        return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
    # Before v4 clients cannot read a feature whose lowest level is 0.
    features = [feature for feature in FEATURES if feature.lowest > 0 or context.version >= 4]
    levels = services.image.feature_levels
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(
                api_key=api.key,
                min_version=api.min_version,
                max_version=api.newest_with(services.config.flag),
            )
            for api in APIS
            if not api.internal or request.client_software_name == BROKER_SOFTWARE
        ],
        supported_features=[
            SupportedFeatureKey(name=f.name, min_version=f.lowest, max_version=f.highest)
            for f in features
        ],
        finalized_features_epoch=services.image.feature_epoch,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in levels.items()
            if level > 0
        ],
    )


def _is_intended_target(services: MetadataServices, request: ApiVersionsRequest) -> bool:
    if request.cluster_id is not None and request.cluster_id != services.image.cluster_id:
        return False
    return request.node_id in (-1, services.node_id)


def unsupported() -> ApiVersionsResponse:
    """Return the response to an unknown version: a v0 body with the versions of ApiVersions."""
    api = BY_KEY[API_VERSIONS_KEY]
    known = ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[known])
