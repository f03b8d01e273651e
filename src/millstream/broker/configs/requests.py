"""AlterConfigs and IncrementalAlterConfigs: one module behind two handlers.

The requests differ in the content of a row (a value, or an operation with a value), and in whether
the rows replace all settings of the resource. Everything else is here: duplicate resources, too
many settings, the loggers of this broker beside resources of the controller, one response for each
resource.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.broker.configs.alteration import MAX_CHANGES, alter
from millstream.broker.configs.changes import LOGGER, Change
from millstream.broker.net.context import RequestContext
from millstream.broker.requests.forwarding import in_two_parts
from millstream.core.errors import ApiError, ErrorCode
from millstream.ports.turns import Pace

if TYPE_CHECKING:
    from millstream.broker.services import ConfigServices


class Form(NamedTuple):
    """The differences between the two APIs. The classes are from ``wire/messages``."""

    response: type[Any]
    row: type[Any]
    changes: Callable[[Any], Sequence[Change]]
    replace: bool


def is_local(request: Any) -> bool:
    """Return whether this broker handles a request: it has loggers, which are the broker's own.

    The broker then forwards the other resources itself.
    """
    return any(map(_is_logger, request.resources))


def _is_logger(resource: Any) -> bool:
    return bool(resource.resource_type == LOGGER)


async def alter_resources(
    form: Form, services: ConfigServices, context: RequestContext, request: Any
) -> Any:
    """Handle a request of either API."""
    if is_local(request) and not all(map(_is_logger, request.resources)):
        handle = partial(alter_resources, form, services, context)
        responses = await in_two_parts(services, context, request, _is_logger, handle)
        return form.response(responses=responses)
    pace = Pace()
    counts: Counter[tuple[int, str]] = Counter()
    for resource in request.resources:
        counts[resource.resource_type, resource.resource_name] += 1
        await pace.rest()
    responses = []
    for resource in request.resources:
        repeated = counts[resource.resource_type, resource.resource_name] > 1
        responses.append(
            await _alter_resource(form, services, resource, repeated, request.validate_only)
        )
        await pace.rest()
    return form.response(responses=responses)


async def _alter_resource(
    form: Form, services: ConfigServices, resource: Any, repeated: bool, validate_only: bool
) -> Any:
    kind, name = resource.resource_type, resource.resource_name
    response = form.row(error_message=None, resource_type=kind, resource_name=name)
    try:
        _check(form, resource, repeated)
        changes = form.changes(resource)
        await alter(
            services, kind, name, changes, replace=form.replace, validate_only=validate_only
        )
    except ApiError as error:
        if error.code is ErrorCode.NOT_CONTROLLER:
            raise  # the request goes to the next controller
        response.error_code, response.error_message = error.code, error.message
    return response


def _check(form: Form, resource: Any, repeated: bool) -> None:
    if repeated:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    if form.replace and _is_logger(resource):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")
    if len(resource.configs) > MAX_CHANGES:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"A resource may have at most {MAX_CHANGES:,} settings altered at once.",
        )
