"""AlterConfigs: the settings given replace all that a resource had. Loggers can only be altered incrementally."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from millstream.broker.config_alteration import alter
from millstream.broker.config_changes import LOGGER, SET
from millstream.broker.context import RequestContext
from millstream.core.errors import ApiError, ErrorCode
from millstream.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from millstream.broker.app import Broker


def is_local(request: AlterConfigsRequest) -> bool:
    """Loggers are the broker's own."""
    return any(one.resource_type == LOGGER for one in request.resources)


async def handle(
    broker: Broker, context: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    counts = Counter((one.resource_type, one.resource_name) for one in request.resources)
    responses = []
    for resource in request.resources:
        repeated = counts[resource.resource_type, resource.resource_name] > 1
        responses.append(await _one(broker, resource, repeated, request.validate_only))
    return AlterConfigsResponse(responses=responses)


async def _one(
    broker: Broker, resource: AlterConfigsResource, repeated: bool, validate_only: bool
) -> AlterConfigsResourceResponse:
    kind, name = resource.resource_type, resource.resource_name
    response = AlterConfigsResourceResponse(error_message=None, resource_type=kind, resource_name=name)
    try:
        if repeated:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
        if kind == LOGGER:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")
        changes = [(SET, row.name, row.value) for row in resource.configs]
        await alter(broker, kind, name, changes, replace=True, validate_only=validate_only)
    except ApiError as error:
        if error.code is ErrorCode.NOT_CONTROLLER:
            raise  # the next one is asked
        response.error_code, response.error_message = error.code, error.message
    return response
