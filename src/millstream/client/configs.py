"""Settings of topics and brokers as the cluster holds them: read with their sources, change one by one (KIP-339)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from millstream.client.errors import ClientError, nearest
from millstream.client.library import AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource

if TYPE_CHECKING:
    from millstream.client.admin import Admin

Kind = Literal["topic", "broker"]


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


class ConfigsAdmin:
    """``admin.configs``."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def describe(self, kind: Kind, name: str | int) -> list[Config]:
        """Every setting of a topic or of a broker (by its node id), sorted by name."""
        resource = self._resource(kind, name)
        return self._ask([resource])[resource.name]

    def describe_topics(self, names: Sequence[str]) -> dict[str, list[Config]]:
        """Every setting of these topics, which have to exist, in one request."""
        return self._ask([ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]) if names else {}

    def _ask(self, resources: list[ConfigResource]) -> dict[str, list[Config]]:
        timeout_s = self._admin.connection.timeout_s
        answers = {}
        for resource, future in self._admin.client.describe_configs(
            resources, request_timeout=timeout_s
        ).items():
            doing = f"describe the settings of {resource.restype.name.lower()} {resource.name}"
            entries = self._admin.wait(future, doing=doing, subject=resource.name)
            answers[resource.name] = sorted(
                (_config(entry) for entry in entries.values()), key=lambda one: one.name
            )
        return answers

    def overrides(self, kind: Kind, name: str | int) -> dict[str, str]:
        """Only what was set on this very topic or broker while it runs."""
        own = (
            {"DYNAMIC_TOPIC_CONFIG"}
            if kind == "topic"
            else {"DYNAMIC_BROKER_CONFIG", "DYNAMIC_DEFAULT_BROKER_CONFIG"}
        )
        return {one.name: one.value or "" for one in self.describe(kind, name) if one.source in own}

    def alter(
        self,
        kind: Kind,
        name: str | int,
        set: Mapping[str, str] | None = None,
        *,
        delete: Iterable[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Change the named settings and leave the others: set, delete (back to the default), append to or subtract from a list."""
        resource = self._resource(kind, name)
        resource.incremental_configs = _operations(set or {}, delete, append or {}, subtract or {})
        if not resource.incremental_configs:
            raise ClientError("nothing to alter", hint="name at least one setting")
        timeout_s = self._admin.connection.timeout_s
        futures = self._admin.client.incremental_alter_configs(
            [resource], request_timeout=timeout_s, validate_only=validate_only
        )
        self._admin.wait(futures[resource], doing=f"alter the settings of {kind} {name}", subject=str(name))

    def _resource(self, kind: Kind, name: str | int) -> ConfigResource:
        if kind == "topic":
            self._admin.topics.get(str(name))  # an unknown topic is told with the nearest names
        elif kind == "broker":
            self._check_broker(str(name))
        else:
            close = nearest(kind, ("topic", "broker"))
            raise ClientError(
                f"there are no settings of a {kind!r}",
                hint=f"use {' or '.join(close or ['topic', 'broker'])}",
            )
        return ConfigResource(ConfigResource.Type[kind.upper()], str(name))

    def _check_broker(self, name: str) -> None:
        nodes = [str(broker.id) for broker in self._admin.cluster.describe().brokers]
        if name not in nodes:
            raise ClientError(f"there is no broker {name!r}", hint=f"the brokers are {', '.join(nodes)}")


def _operations(
    set: Mapping[str, str], delete: Iterable[str], append: Mapping[str, str], subtract: Mapping[str, str]
) -> list[Any]:
    wanted = [(name, value, AlterConfigOpType.SET) for name, value in set.items()]
    # librdkafka refuses a null value even where the operation ignores it.
    wanted += [(name, "", AlterConfigOpType.DELETE) for name in delete]
    wanted += [(name, value, AlterConfigOpType.APPEND) for name, value in append.items()]
    wanted += [(name, value, AlterConfigOpType.SUBTRACT) for name, value in subtract.items()]
    return [ConfigEntry(name, value, incremental_operation=operation) for name, value, operation in wanted]


def _config(entry: Any) -> Config:
    source = _source(entry.source)
    synonyms = tuple(Synonym(one.name, one.value, _source(one.source)) for one in entry.synonyms.values())
    # confluent-kafka keeps one synonym per name, the last: where that hides the place that decides, put it back in front.
    if source not in {one.source for one in synonyms}:
        synonyms = (Synonym(entry.name, entry.value, source), *synonyms)
    return Config(entry.name, entry.value, source, entry.is_read_only, entry.is_sensitive, synonyms)


def _source(source: Any) -> str:
    try:
        return ConfigSource(source).name
    except ValueError:
        return str(source)
