"""DescribeConfigs: the settings of a resource, with the source of each value.

Types of resources are topic (2), broker (4), logger (8), client metrics subscription (16) and group
(32).

* v1: sources and synonyms.
* v3: types and documentation (KIP-569).

A resource that is named several times is described as often, as in Kafka, but worked out once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.configs.changes import BROKER, CLIENT_METRICS, GROUP, LOGGER, TOPIC
from millstream.broker.configs.entries import (
    ConfigEntry,
    broker_entries,
    client_metrics_entries,
    cluster_entries,
    group_entries,
    logger_entries,
    topic_entries,
)
from millstream.broker.net.context import RequestContext
from millstream.control.topics import name_problem
from millstream.core.config import stored_topic_overrides
from millstream.core.errors import ApiError, ErrorCode
from millstream.ports.turns import Steps
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

if TYPE_CHECKING:
    from millstream.broker.services import ConfigServices


# A requested resource: type, name, and the names of its settings (None: all).
_Resource = tuple[int, str, frozenset[str] | None]


def handle(
    services: ConfigServices, context: RequestContext, request: DescribeConfigsRequest
) -> Steps[DescribeConfigsResponse]:
    results: dict[_Resource, DescribeConfigsResult] = {}
    rows: dict[tuple[object, ...], list[DescribeConfigsResourceResult]] = {}
    response = DescribeConfigsResponse()
    for resource in request.resources:
        names = resource.configuration_keys
        key = resource.resource_type, resource.resource_name, frozenset(names) if names else None
        if key not in results:
            results[key] = _describe(services, request, key, rows)
        response.results.append(results[key])
        yield
    return response


def _describe(
    services: ConfigServices,
    request: DescribeConfigsRequest,
    resource: _Resource,
    rows: dict[tuple[object, ...], list[DescribeConfigsResourceResult]],
) -> DescribeConfigsResult:
    kind, name, setting_names = resource
    result = DescribeConfigsResult(error_message=None, resource_type=kind, resource_name=name)
    own = {
        GROUP: services.image.group_configs,
        CLIENT_METRICS: services.image.client_metrics_configs,
    }.get(kind)
    # Groups and subscriptions have settings even if they do not exist. All without overrides share
    # the same rows.
    shared = (kind, setting_names) if own is not None and name and name not in own else None
    if shared is not None and shared in rows:
        result.configs = rows[shared]
        return result
    try:
        entries = _entries(services, kind, name)
    except ApiError as error:
        result.error_code, result.error_message = error.code, error.message
        return result
    result.configs = [
        _row(request, entry)
        for entry in entries
        if setting_names is None or entry.name in setting_names
    ]
    if shared is not None:
        rows[shared] = result.configs
    return result


def _entries(services: ConfigServices, kind: int, name: str) -> list[ConfigEntry]:
    if kind == TOPIC:
        problem = name_problem(name)
        if problem is not None:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")
        if name not in services.image.topics:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        stored = stored_topic_overrides(services.image.topic_configs.get(name, {}))
        return topic_entries(services.config, stored.values)
    if kind == BROKER and not name:
        return cluster_entries(services.config, services.image.broker_configs)
    if kind in (BROKER, LOGGER):
        _check_node(services, kind, name)
        if kind == LOGGER:
            return logger_entries()
        return broker_entries(services.config, services.image.broker_configs)
    if kind == GROUP:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return group_entries(services.config, services.image.group_configs.get(name, {}))
    if kind == CLIENT_METRICS:
        if not name:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty"
            )
        return client_metrics_entries(services.image.client_metrics_configs.get(name, {}))
    raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")


def _check_node(services: ConfigServices, kind: int, name: str) -> None:
    try:
        if int(name) == services.node_id:
            return
    except ValueError:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}"
        ) from None
    other = " or empty string," if kind == BROKER else ""
    raise ApiError(
        ErrorCode.INVALID_REQUEST,
        f"Unexpected broker id, expected {services.node_id}{other} but received {name}",
    )


def _row(request: DescribeConfigsRequest, entry: ConfigEntry) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.text,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=name, value=text, source=source)
            for name, text, source in synonyms
        ],
        config_type=entry.type,
        documentation=entry.doc if request.include_documentation else None,
    )
