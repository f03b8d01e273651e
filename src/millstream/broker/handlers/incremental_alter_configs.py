"""IncrementalAlterConfigs: set, delete, append to or subtract from settings (KIP-339).

Resources are topics, brokers, groups, client metrics subscriptions and loggers. The controller
executes it, except for loggers, which belong to the broker that received the request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.configs.changes import Change
from millstream.broker.configs.requests import Form, alter_resources, is_local
from millstream.broker.net.context import RequestContext
from millstream.wire.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from millstream.broker.services import ConfigServices

__all__ = ["handle", "is_local"]


def _changes(resource: AlterConfigsResource) -> list[Change]:
    return [(row.config_operation, row.name, row.value) for row in resource.configs]


_FORM = Form(IncrementalAlterConfigsResponse, AlterConfigsResourceResponse, _changes, replace=False)


async def handle(
    services: ConfigServices, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    response: IncrementalAlterConfigsResponse = await alter_resources(
        _FORM, services, context, request
    )
    return response
