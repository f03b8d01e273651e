"""AlterConfigs: the settings given replace all that a resource had. Loggers can only be altered incrementally."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from millstream.broker.configs.alteration import MOST_CHANGES, alter
from millstream.broker.configs.changes import LOGGER, SET
from millstream.broker.forwarding import in_two_parts
from millstream.broker.net.context import RequestContext
from millstream.core.errors import ApiError, ErrorCode
from millstream.ports.turns import Pace
from millstream.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from millstream.broker.services import ConfigServices


def is_local(request: AlterConfigsRequest) -> bool:
    """Loggers are the broker's own; what else is asked with them is passed on from here."""
    return LOGGER in {resource.resource_type for resource in request.resources}


def _is_logger(resource: AlterConfigsResource) -> bool:
    return resource.resource_type == LOGGER


async def handle(
    services: ConfigServices, context: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    if {LOGGER} < {resource.resource_type for resource in request.resources}:
        handle_one_kind = partial(handle, services, context)
        responses = await in_two_parts(services, context, request, _is_logger, handle_one_kind)
        return AlterConfigsResponse(responses=responses)
    pace = Pace()
    counts: Counter[tuple[int, str]] = Counter()
    for resource in request.resources:
        counts[resource.resource_type, resource.resource_name] += 1
        await pace.rest()
    responses = []
    for resource in request.resources:
        repeated = counts[resource.resource_type, resource.resource_name] > 1
        responses.append(await _one(services, resource, repeated, request.validate_only))
        await pace.rest()
    return AlterConfigsResponse(responses=responses)


async def _one(
    services: ConfigServices, resource: AlterConfigsResource, repeated: bool, validate_only: bool
) -> AlterConfigsResourceResponse:
    kind, name = resource.resource_type, resource.resource_name
    response = AlterConfigsResourceResponse(error_message=None, resource_type=kind, resource_name=name)
    try:
        if repeated:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
        if _is_logger(resource):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")
        if len(resource.configs) > MOST_CHANGES:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"A resource may have at most {MOST_CHANGES:,} settings altered at once.",
            )
        changes = [(SET, row.name, row.value) for row in resource.configs]
        await alter(services, kind, name, changes, replace=True, validate_only=validate_only)
    except ApiError as error:
        if error.code is ErrorCode.NOT_CONTROLLER:
            raise  # the next one is asked
        response.error_code, response.error_message = error.code, error.message
    return response
