"""ListConfigResources: the names of what has settings. v0 knew client metrics only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.config_changes import BROKER, CLIENT_METRICS, GROUP, LOGGER, TOPIC
from millstream.broker.context import RequestContext
from millstream.core.errors import ErrorCode
from millstream.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from millstream.broker.app import Broker


def handle(
    broker: Broker, context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    nodes = [str(node_id) for node_id in sorted(broker.image.brokers)]
    known: dict[int, list[str]] = {
        TOPIC: list(broker.image.topics),
        BROKER: nodes,
        LOGGER: nodes,
        CLIENT_METRICS: list(broker.image.client_metrics_configs),
        GROUP: list(broker.image.group_configs),
    }
    kinds = {CLIENT_METRICS} if context.version == 0 else set(request.resource_types) or set(known)
    if not kinds <= set(known):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in sorted(kinds)
            for name in known[kind]
        ]
    )
