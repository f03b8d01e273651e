"""Settings of topics, brokers, groups and client metrics as the cluster holds them: read with their sources, change one by one (KIP-339)."""

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

# What librdkafka has a call for; the others are asked for by the protocol itself.
_OF_THE_LIBRARY = ("topic", "broker")
# The sources of what was set on this very resource while the cluster runs.
_OWN = {
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
        """Every setting of a topic, a broker (by its node id), a group or a client metrics subscription, sorted by name."""
        _check_kind(kind)
        if kind not in _OF_THE_LIBRARY:
            return config_resources.describe(self._admin.protocol, kind, str(name))
        resource = self._resource(kind, name)
        return self._ask([resource])[resource.name]

    def names(self, kind: Kind) -> list[str]:
        """The topics and brokers there are, also brokers that are away; the groups and client metrics subscriptions that have settings of their own."""
        _check_kind(kind)
        return config_resources.names(self._admin.protocol, kind)

    def describe_topics(self, names: Sequence[str]) -> dict[str, list[Config]]:
        """Every setting of these topics, which have to exist, in one request."""
        return self._ask([ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]) if names else {}

    def _ask(self, resources: list[ConfigResource]) -> dict[str, list[Config]]:
        return self._admin.patience.persist(
            lambda limit_s: self._ask_once(resources, limit_s), doing="describe settings"
        )

    def _ask_once(self, resources: list[ConfigResource], limit_s: float) -> dict[str, list[Config]]:
        answers = {}
        for resource, future in self._admin.client.describe_configs(
            resources, request_timeout=limit_s
        ).items():
            doing = f"describe the settings of {resource.restype.name.lower()} {resource.name}"
            entries = self._admin.wait(future, doing=doing, subject=resource.name)
            answers[resource.name] = sorted(
                (_config(entry) for entry in entries.values()), key=lambda one: one.name
            )
        return answers

    def overrides(self, kind: Kind, name: str | int) -> dict[str, str]:
        """Only what was set on this very topic, broker, group or subscription while the cluster runs."""
        found = self.describe(kind, name)
        return {one.name: one.value or "" for one in found if one.source in _OWN[kind]}

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
        _check_kind(kind)
        operations = _operations(set or {}, delete, append or {}, subtract or {})
        if not operations:
            raise ClientError("nothing to alter", hint="name at least one setting")
        with _hint_for(kind, name):
            if kind in _OF_THE_LIBRARY and not (kind == "broker" and self._is_away(str(name))):
                self._alter(kind, name, operations, validate_only)
            else:  # of a broker that is away, too: the library would wait for that very one
                rows = [(one, value, operation.value) for one, value, operation in operations]
                config_resources.alter(
                    self._admin.protocol, kind, str(name), rows, validate_only=validate_only
                )

    def _alter(
        self, kind: Kind, name: str | int, operations: Sequence[_Operation], validate_only: bool
    ) -> None:
        resource = self._resource(kind, name)
        resource.incremental_configs = [
            ConfigEntry(one, value, incremental_operation=operation) for one, value, operation in operations
        ]
        doing = f"alter the settings of {kind} {name}"

        def ask(limit_s: float) -> None:
            """Again after a try without an answer: setting, deleting, appending and subtracting twice is the same as once."""
            futures = self._admin.client.incremental_alter_configs(
                [resource],
                request_timeout=self._admin.connection.request_timeout_s,
                validate_only=validate_only,
            )
            self._admin.wait(futures[resource], doing=doing, subject=str(name))

        self._admin.patience.persist(ask, doing=doing)

    def _resource(self, kind: Kind, name: str | int) -> ConfigResource:
        if kind == "topic":
            self._admin.topics.get(str(name))  # an unknown topic is told with the nearest names
        else:
            self._check_broker(str(name))
        return ConfigResource(ConfigResource.Type[kind.upper()], str(name))

    def brokers_away(self) -> list[str]:
        """Those that are not up, but have settings or replicas: any other broker changes their settings, which they take when they come back."""
        try:
            known = self.names("broker")
        except ClientError as error:
            if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                raise
            return []  # an older Kafka, which knows of live ones only
        live = self._live()
        return [name for name in known if name not in live]

    def _is_away(self, name: str) -> bool:
        return name not in self._live() and name in self.brokers_away()

    def _live(self) -> list[str]:
        return [str(broker.id) for broker in self._admin.cluster.describe().brokers]

    def _check_broker(self, name: str) -> None:
        nodes = self._live()
        if name in nodes:
            return
        if name in self.brokers_away():
            raise ClientError(
                f"broker {name} is away, and only it can tell its settings", hint="they can be altered"
            )
        raise ClientError(f"there is no broker {name!r}", hint=f"the brokers are {', '.join(nodes)}")


_Operation = tuple[str, str, Any]


def _operations(
    set: Mapping[str, str], delete: Iterable[str], append: Mapping[str, str], subtract: Mapping[str, str]
) -> list[_Operation]:
    wanted = [(name, value, AlterConfigOpType.SET) for name, value in set.items()]
    # librdkafka refuses a null value even where the operation ignores it.
    wanted += [(name, "", AlterConfigOpType.DELETE) for name in delete]
    wanted += [(name, value, AlterConfigOpType.APPEND) for name, value in append.items()]
    wanted += [(name, value, AlterConfigOpType.SUBTRACT) for name, value in subtract.items()]
    return wanted


def _check_kind(kind: str) -> None:
    kinds = get_args(Kind)
    if kind not in kinds:
        close = nearest(kind, kinds) or [*kinds]
        raise ClientError(f"there are no settings of a {kind!r}", hint=f"use {' or '.join(close)}")


@contextmanager
def _hint_for(kind: str, name: str | int) -> Iterator[None]:
    """Whoever gives a wrong setting is shown those of the very thing that was meant."""
    try:
        yield
    except ClientError as error:
        wrong = error.code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST)
        if wrong and not error.hint.startswith("did you mean"):
            error.hint = f"see the names and values with `millstream configs describe {kind} {name} --all`"
        raise


def _config(entry: Any) -> Config:
    source = source_name(entry.source)
    synonyms = tuple(Synonym(one.name, one.value, source_name(one.source)) for one in entry.synonyms.values())
    # confluent-kafka keeps one synonym per name, the last: where that hides the place that decides, put it back in front.
    if source not in {one.source for one in synonyms}:
        synonyms = (Synonym(entry.name, entry.value, source), *synonyms)
    return Config(entry.name, entry.value, source, entry.is_read_only, entry.is_sensitive, synonyms)
