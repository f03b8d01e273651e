"""ListConfigResources: the names of resources with settings (KIP-1142).

* v0 lists client metrics subscriptions only.
* v1: types of resources; none means all.

Different from Kafka: brokers that are down are listed too, so that their settings can be changed
before they return.
"""

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
    names_by_type: dict[int, Callable[[], Iterable[object]]] = {
        TOPIC: lambda: image.topics,
        BROKER: lambda: sorted(image.known_brokers()),
        LOGGER: lambda: sorted(image.brokers),
        CLIENT_METRICS: lambda: image.client_metrics_configs,
        GROUP: lambda: image.group_configs,
    }
    kinds = (
        {CLIENT_METRICS}
        if context.version == 0
        else set(request.resource_types) or set(names_by_type)
    )
    if not kinds <= set(names_by_type):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=str(name), resource_type=kind)
            for kind in sorted(kinds)
            for name in names_by_type[kind]()
        ]
    )
