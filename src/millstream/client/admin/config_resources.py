"""Settings of groups and of client metrics subscriptions, for which confluent-kafka has no name: by the protocol itself.

Neither has to exist: settings may be there before the first member, and a subscription is nothing but its settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from millstream.client.errors import refusal
from millstream.client.protocol import Protocol
from millstream.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.wire.messages.list_config_resources import ListConfigResourcesRequest

# What a resource is called here -> its number in the protocol.
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
    """Another place that could decide the value: its name there, its value, and which place."""

    name: str
    value: str | None
    source: str


@dataclass(frozen=True, slots=True)
class Config:
    """One setting: ``source`` says where the value comes from, ``synonyms`` every place in order of precedence."""

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
    """The names of what has settings of its own (KIP-1142), sorted."""
    number = RESOURCES[kind]
    doing = f"list what has settings of {kind}"

    def ask() -> Any:
        answer = protocol.ask(ListConfigResourcesRequest(resource_types=[number]))
        if answer.error_code:
            raise refusal(answer.error_code, doing=doing)
        return answer

    answer = protocol.patiently(ask, doing=doing)
    # A broker of version 0 knows client metrics alone, whatever was asked for.
    return sorted(one.resource_name for one in answer.config_resources if one.resource_type == number)


def describe(protocol: Protocol, kind: str, name: str) -> list[Config]:
    """Every setting, sorted by name."""
    asked = DescribeConfigsResource(resource_type=RESOURCES[kind], resource_name=name)
    doing = f"describe the settings of {kind} {name}"

    def ask() -> Any:
        answer = protocol.ask(DescribeConfigsRequest(resources=[asked], include_synonyms=True)).results[0]
        _check(answer, doing, name)
        return answer

    answer = protocol.patiently(ask, doing=doing)
    return sorted((_config(one) for one in answer.configs), key=lambda one: one.name)


def alter(
    protocol: Protocol,
    kind: str,
    name: str,
    operations: Sequence[tuple[str, str | None, int]],
    *,
    validate_only: bool,
) -> None:
    """Operations: name, value, and 0 set, 1 delete, 2 append or 3 subtract."""
    rows = [
        AlterableConfig(name=one, value=value, config_operation=operation)
        for one, value, operation in operations
    ]
    asked = AlterConfigsResource(resource_type=RESOURCES[kind], resource_name=name, configs=rows)
    request = IncrementalAlterConfigsRequest(resources=[asked], validate_only=validate_only)
    doing = f"alter the settings of {kind} {name}"
    protocol.patiently(lambda: _check(protocol.ask(request).responses[0], doing, name), doing=doing)


def _check(answer: Any, doing: str, subject: str) -> None:
    if answer.error_code:
        raise refusal(answer.error_code, doing=doing, subject=subject, reason=answer.error_message)


def _config(row: Any) -> Config:
    synonyms = tuple(Synonym(one.name, one.value, source_name(one.source)) for one in row.synonyms)
    source = source_name(row.config_source)
    return Config(row.name, row.value, source, row.read_only, row.is_sensitive, synonyms)
