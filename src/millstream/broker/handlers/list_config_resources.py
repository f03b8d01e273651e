"""ListConfigResources: the names of what has settings. v0 knew client metrics only.

Brokers that are away are among them, unlike in Kafka: what they would come back with can be changed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from millstream.broker.configs.changes import BROKER, CLIENT_METRICS, GROUP, LOGGER, TOPIC
from millstream.broker.net.context import RequestContext
from millstream.core.errors import ErrorCode
from millstream.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from millstream.broker.services import ConfigServices


def handle(
    services: ConfigServices, context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    image = services.image
    known: dict[int, Callable[[], Iterable[object]]] = {
        TOPIC: lambda: image.topics,
        BROKER: lambda: sorted(image.known_brokers()),
        LOGGER: lambda: sorted(image.brokers),
        CLIENT_METRICS: lambda: image.client_metrics_configs,
        GROUP: lambda: image.group_configs,
    }
    kinds = {CLIENT_METRICS} if context.version == 0 else set(request.resource_types) or set(known)
    if not kinds <= set(known):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=str(name), resource_type=kind)
            for kind in sorted(kinds)
            for name in known[kind]()
        ]
    )
