"""Settings of topics, brokers, groups and client metrics in the cluster.

They are read with their sources, and changed one by one (KIP-339).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, get_args

from millstream.client.admin import config_resources
from millstream.client.admin.config_resources import Config, Synonym, source_name
from millstream.client.errors import ClientError, nearest
from millstream.client.library import AlterConfigOpType, ConfigEntry, ConfigResource
from millstream.core.errors import ErrorCode

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin

Kind = Literal["topic", "broker", "group", "client-metrics"]

__all__ = ["Config", "ConfigsAdmin", "Kind", "Synonym"]

# librdkafka has calls for these; for the others this package sends the requests itself.
_LIBRARY_KINDS = ("topic", "broker")
# The sources of dynamic settings of the resource itself.
_DYNAMIC_SOURCES = {
    "topic": {"DYNAMIC_TOPIC_CONFIG"},
    "broker": {"DYNAMIC_BROKER_CONFIG", "DYNAMIC_DEFAULT_BROKER_CONFIG"},
    "group": {"GROUP_CONFIG"},
    "client-metrics": {"CLIENT_METRICS_CONFIG"},
}


class ConfigsAdmin:
    """``admin.configs``."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def describe(self, kind: Kind, name: str | int) -> list[Config]:
        """Return every setting of a resource, sorted by name.

        The resource is a topic, a broker (by its node id), a group or a client metrics
        subscription.
        """
        _check_kind(kind)
        if kind not in _LIBRARY_KINDS:
            return config_resources.describe(self._admin.protocol, kind, str(name))
        resource = self._resource(kind, name)
        return self._describe([resource])[resource.name]

    def names(self, kind: Kind) -> list[str]:
        """Return the names of all topics or brokers, or of groups or subscriptions with settings.

        Brokers that are down are included.
        """
        _check_kind(kind)
        return config_resources.names(self._admin.protocol, kind)

    def describe_topics(self, names: Sequence[str]) -> dict[str, list[Config]]:
        """Return every setting of these topics, which have to exist, in one request."""
        return (
            self._describe([ConfigResource(ConfigResource.Type.TOPIC, name) for name in names])
            if names
            else {}
        )

    def _describe(self, resources: list[ConfigResource]) -> dict[str, list[Config]]:
        return self._admin.retries.run(
            lambda limit_s: self._describe_once(resources, limit_s), doing="describe settings"
        )

    def _describe_once(
        self, resources: list[ConfigResource], limit_s: float
    ) -> dict[str, list[Config]]:
        settings = {}
        for resource, future in self._admin.client.describe_configs(
            resources, request_timeout=limit_s
        ).items():
            doing = f"describe the settings of {resource.restype.name.lower()} {resource.name}"
            entries = self._admin.wait(future, doing=doing, subject=resource.name)
            settings[resource.name] = sorted(
                (_config(entry) for entry in entries.values()), key=lambda config: config.name
            )
        return settings

    def overrides(self, kind: Kind, name: str | int) -> dict[str, str]:
        """Return the dynamic settings of the resource itself, without inherited ones."""
        configs = self.describe(kind, name)
        return {
            config.name: config.value or ""
            for config in configs
            if config.source in _DYNAMIC_SOURCES[kind]
        }

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
        """Change the named settings and leave the others.

        ``delete`` restores the default; ``append`` and ``subtract`` change a list.
        """
        _check_kind(kind)
        operations = _operations(set or {}, delete, append or {}, subtract or {})
        if not operations:
            raise ClientError("nothing to alter", hint="name at least one setting")
        with _hint_for(kind, name):
            if kind in _LIBRARY_KINDS and not (kind == "broker" and self._is_down(str(name))):
                self._alter(kind, name, operations, validate_only)
            else:  # for a broker that is down too: librdkafka would wait for that broker
                rows = [
                    (setting, value, operation.value) for setting, value, operation in operations
                ]
                config_resources.alter(
                    self._admin.protocol, kind, str(name), rows, validate_only=validate_only
                )

    def _alter(
        self, kind: Kind, name: str | int, operations: Sequence[_Operation], validate_only: bool
    ) -> None:
        resource = self._resource(kind, name)
        resource.incremental_configs = [
            ConfigEntry(setting, value, incremental_operation=operation)
            for setting, value, operation in operations
        ]
        doing = f"alter the settings of {kind} {name}"

        def alter_once(limit_s: float) -> None:
            """Alter the settings. This can be repeated: every operation is idempotent."""
            futures = self._admin.client.incremental_alter_configs(
                [resource],
                request_timeout=self._admin.connection.request_timeout_s,
                validate_only=validate_only,
            )
            self._admin.wait(futures[resource], doing=doing, subject=str(name))

        self._admin.retries.run(alter_once, doing=doing)

    def _resource(self, kind: Kind, name: str | int) -> ConfigResource:
        if kind == "topic":
            self._admin.topics.get(str(name))  # raises with the nearest names if it does not exist
        else:
            self._check_broker(str(name))
        return ConfigResource(ConfigResource.Type[kind.upper()], str(name))

    def brokers_down(self) -> list[str]:
        """Return the brokers that are not up but have settings or replicas.

        Any other broker can change their settings; they read them when they start again.
        """
        try:
            known = self.names("broker")
        except ClientError as error:
            if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                raise
            return []  # an older Kafka lists live brokers only
        live = self._live()
        return [name for name in known if name not in live]

    def _is_down(self, name: str) -> bool:
        return name not in self._live() and name in self.brokers_down()

    def _live(self) -> list[str]:
        return [str(broker.id) for broker in self._admin.cluster.describe().brokers]

    def _check_broker(self, name: str) -> None:
        nodes = self._live()
        if name in nodes:
            return
        if name in self.brokers_down():
            raise ClientError(
                f"broker {name} is down, and only that broker can return its settings",
                hint="they can be altered",
            )
        raise ClientError(
            f"broker {name!r} does not exist", hint=f"the brokers are {', '.join(nodes)}"
        )


_Operation = tuple[str, str, Any]


def _operations(
    set: Mapping[str, str],
    delete: Iterable[str],
    append: Mapping[str, str],
    subtract: Mapping[str, str],
) -> list[_Operation]:
    operations = [(name, value, AlterConfigOpType.SET) for name, value in set.items()]
    # librdkafka rejects a null value even if the operation ignores it.
    operations += [(name, "", AlterConfigOpType.DELETE) for name in delete]
    operations += [(name, value, AlterConfigOpType.APPEND) for name, value in append.items()]
    operations += [(name, value, AlterConfigOpType.SUBTRACT) for name, value in subtract.items()]
    return operations


def _check_kind(kind: str) -> None:
    kinds = get_args(Kind)
    if kind not in kinds:
        close = nearest(kind, kinds) or [*kinds]
        raise ClientError(f"a {kind!r} has no settings", hint=f"use {' or '.join(close)}")


@contextmanager
def _hint_for(kind: str, name: str | int) -> Iterator[None]:
    """Add a hint to errors about wrong settings: where to see those of this resource."""
    try:
        yield
    except ClientError as error:
        wrong = error.code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST)
        if wrong and not error.hint.startswith("did you mean"):
            error.hint = (
                f"see the names and values with `millstream configs describe {kind} {name} --all`"
            )
        raise


def _config(entry: Any) -> Config:
    source = source_name(entry.source)
    synonyms = tuple(
        Synonym(synonym.name, synonym.value, source_name(synonym.source))
        for synonym in entry.synonyms.values()
    )
    # confluent-kafka keeps only the last synonym of each name. If that hides the deciding source,
    # put it back in front.
    if source not in {synonym.source for synonym in synonyms}:
        synonyms = (Synonym(entry.name, entry.value, source), *synonyms)
    return Config(entry.name, entry.value, source, entry.is_read_only, entry.is_sensitive, synonyms)
