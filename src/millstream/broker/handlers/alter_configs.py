"""AlterConfigs: replace all settings of a resource.

The controller executes it. Loggers belong to the broker that received the request, and can only be
altered incrementally, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.configs.changes import SET, Change
from millstream.broker.configs.requests import Form, alter_resources, is_local
from millstream.broker.net.context import RequestContext
from millstream.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from millstream.broker.services import ConfigServices

__all__ = ["handle", "is_local"]


def _changes(resource: AlterConfigsResource) -> list[Change]:
    return [(SET, row.name, row.value) for row in resource.configs]


_FORM = Form(AlterConfigsResponse, AlterConfigsResourceResponse, _changes, replace=True)


async def handle(
    services: ConfigServices, context: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    response: AlterConfigsResponse = await alter_resources(_FORM, services, context, request)
    return response
