"""Settings of groups and of client metrics subscriptions.

confluent-kafka has no calls for these resources, so this module sends the requests itself. Neither
resource has to exist: a group may have settings before its first member, and a subscription
consists of its settings only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from millstream.client.errors import refusal
from millstream.client.protocol import Protocol
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.wire.messages.list_config_resources import ListConfigResourcesRequest

# The name of a resource here -> its number in the protocol.
RESOURCES = {"topic": 2, "broker": 4, "client-metrics": 16, "group": 32}
_SOURCES = (
    "UNKNOWN_CONFIG",
    "DYNAMIC_TOPIC_CONFIG",
    "DYNAMIC_BROKER_CONFIG",
    "DYNAMIC_DEFAULT_BROKER_CONFIG",
    "STATIC_BROKER_CONFIG",
    "DEFAULT_CONFIG",
    "DYNAMIC_BROKER_LOGGER_CONFIG",
    "CLIENT_METRICS_CONFIG",
    "GROUP_CONFIG",
)


@dataclass(frozen=True, slots=True)
class Synonym:
    """Another source that could decide the value, with its name and value there."""

    name: str
    value: str | None
    source: str


@dataclass(frozen=True, slots=True)
class Config:
    """One setting: ``source`` decided the value; ``synonyms`` are all sources by precedence."""

    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    synonyms: tuple[Synonym, ...]

    @property
    def default(self) -> bool:
        return self.source == "DEFAULT_CONFIG"


def source_name(number: int) -> str:
    return _SOURCES[number] if 0 <= number < len(_SOURCES) else str(number)


def names(protocol: Protocol, kind: str) -> list[str]:
    """Return the sorted names of the resources that have settings (KIP-1142)."""
    number = RESOURCES[kind]
    doing = f"list the resources of type {kind}"

    def list_once() -> Any:
        response = protocol.ask(ListConfigResourcesRequest(resource_types=[number]))
        if response.error_code:
            raise refusal(response.error_code, doing=doing)
        return response

    response = protocol.patiently(list_once, doing=doing)
    # Version 0 of the API lists client metrics only, whatever the request says.
    return sorted(
        resource.resource_name
        for resource in response.config_resources
        if resource.resource_type == number
    )


def describe(protocol: Protocol, kind: str, name: str) -> list[Config]:
    """Return every setting, sorted by name."""
    resource = DescribeConfigsResource(resource_type=RESOURCES[kind], resource_name=name)
    doing = f"describe the settings of {kind} {name}"

    def describe_once() -> Any:
        result = protocol.ask(
            DescribeConfigsRequest(resources=[resource], include_synonyms=True)
        ).results[0]
        _check(result, doing, name)
        return result

    result = protocol.patiently(describe_once, doing=doing)
    return sorted((_config(config) for config in result.configs), key=lambda config: config.name)


def alter(
    protocol: Protocol,
    kind: str,
    name: str,
    operations: Sequence[tuple[str, str | None, int]],
    *,
    validate_only: bool,
) -> None:
    """Apply operations: name, value, and 0 set, 1 delete, 2 append or 3 subtract."""
    rows = [
        AlterableConfig(name=setting, value=value, config_operation=operation)
        for setting, value, operation in operations
    ]
    resource = AlterConfigsResource(resource_type=RESOURCES[kind], resource_name=name, configs=rows)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    doing = f"alter the settings of {kind} {name}"
    protocol.patiently(lambda: _check(protocol.ask(request).responses[0], doing, name), doing=doing)


def _check(result: Any, doing: str, subject: str) -> None:
    if result.error_code:
        raise refusal(result.error_code, doing=doing, subject=subject, reason=result.error_message)


def _config(row: Any) -> Config:
    synonyms = tuple(
        Synonym(synonym.name, synonym.value, source_name(synonym.source))
        for synonym in row.synonyms
    )
    source = source_name(row.config_source)
    return Config(row.name, row.value, source, row.read_only, row.is_sensitive, synonyms)
