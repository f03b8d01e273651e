"""Effective settings: layers of values, their precedence, and the source of each value.

For a broker: its dynamic value, the dynamic cluster-wide value, the file or ``--set``, the built-in
default. For a topic: its override, then the broker's layers through the synonyms. All pure: changes
arrive as new dictionaries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from millstream.core.broker_settings import BROKER_SETTINGS
from millstream.core.group_settings import GROUP_BOUNDS, GROUP_SETTINGS, SESSION_AND_HEARTBEAT
from millstream.core.kafka_settings import IGNORED_NAMES, is_known_to_kafka, refusal
from millstream.core.settings import LONG_MAX, Setting, SettingError, Value, parse_all, unknown
from millstream.core.topic_settings import TOPIC_SETTINGS, TOPIC_SYNONYMS


class Source(IntEnum):
    """The source of a value, as DescribeConfigs numbers it."""

    UNKNOWN = 0
    TOPIC = 1
    BROKER = 2
    CLUSTER = 3
    STATIC = 4
    DEFAULT = 5
    LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


@dataclass(frozen=True, slots=True)
class Layered:
    """A value of one layer; ``given`` is the value before a unit conversion."""

    name: str
    value: Value
    source: Source
    given: Value


@dataclass(slots=True)
class BrokerConfig:
    """A broker's layers. ``static`` never changes; dynamic layers follow their znode."""

    static: dict[str, Value]
    cluster: dict[str, Value] = field(default_factory=dict)
    broker: dict[str, Value] = field(default_factory=dict)
    # Names of the user that only Apache Kafka has.
    ignored: frozenset[str] = frozenset()

    @classmethod
    def from_texts(cls, texts: Mapping[str, str]) -> BrokerConfig:
        """Parse and check settings one by one and together; a SettingError names the wrong one."""
        _check_promises(texts)
        _check_zookeeper(texts)
        ignored = [
            name for name in texts if name not in BROKER_SETTINGS and is_known_to_kafka(name)
        ]
        known = {name: text for name, text in texts.items() if name not in ignored}
        for name in known:
            if name not in BROKER_SETTINGS:
                raise unknown(name, [*BROKER_SETTINGS, *IGNORED_NAMES])
        values = parse_all(known, BROKER_SETTINGS, "setting")
        for name in ("log.dirs", "log.dir"):
            if name in values and not values[name]:
                raise SettingError(f"{name} is empty; name the data directory, e.g. ./data", name)
        config = cls(values, ignored=frozenset(ignored))
        _check_roles(config)
        _check_group_bounds(config)
        if "broker.id" in values and "node.id" not in values:
            values["node.id"] = values["broker.id"]
        _check_request_memory(config)
        return config

    def get(self, name: str) -> Value:
        """Return the effective value, without building the list of ``layers``."""
        for values in (self.broker, self.cluster, self.static):
            if name in values:
                return values[name]
        return BROKER_SETTINGS[name].default

    def integer(self, name: str) -> int:
        value = self.get(name)
        assert isinstance(value, int), name
        return value

    def number(self, name: str) -> float:
        value = self.get(name)
        assert isinstance(value, int | float), name
        return value

    def flag(self, name: str) -> bool:
        return bool(self.get(name))

    def layers(self, name: str) -> list[Layered]:
        """Return the layers that have a value, the effective one first."""
        row = BROKER_SETTINGS[name]
        layers = [
            Layered(name, values[name], source, values[name])
            for values, source in (
                (self.broker, Source.BROKER),
                (self.cluster, Source.CLUSTER),
                (self.static, Source.STATIC),
            )
            if name in values
        ]
        if row.default is not None or not layers:
            layers.append(Layered(name, row.default, Source.DEFAULT, row.default))
        return layers

    @property
    def node_id(self) -> int:
        return self.integer("node.id")

    @property
    def log_dirs(self) -> tuple[str, ...]:
        dirs = self.get("log.dirs")
        return dirs if isinstance(dirs, tuple) and dirs else (str(self.get("log.dir")),)

    def inert_names(self) -> list[str]:
        """Return the settings given by the user that have no effect here."""
        inert = {name for name in self.static if BROKER_SETTINGS[name].inert}
        return sorted(inert | self.ignored)


def _check_promises(texts: Mapping[str, str]) -> None:
    """Reject settings of Kafka that promise something which nothing here provides."""
    for name, text in texts.items():
        reason = refusal(name, text)
        if reason is not None:
            raise SettingError(f"{name} is refused: {reason}", name)


def _check_roles(config: BrokerConfig) -> None:
    """Reject a process that would be a KRaft controller only. ``broker,controller`` is a broker."""
    roles = config.get("process.roles")
    if isinstance(roles, tuple) and roles and "broker" not in roles:
        raise SettingError(
            f"process.roles={','.join(roles)} is refused: there is no process for the controller "
            "alone here; the brokers of a cluster elect it in ZooKeeper",
            "process.roles",
        )


def _check_request_memory(config: BrokerConfig) -> None:
    """Reject a limit below the largest request, which would never fit, as Kafka does."""
    memory, largest = (
        config.get("queued.max.request.bytes"),
        config.integer("socket.request.max.bytes"),
    )
    if isinstance(memory, int) and 0 < memory < largest:
        raise SettingError(
            f"queued.max.request.bytes ({memory}) must be larger than or equal to "
            f"socket.request.max.bytes ({largest})",
            "queued.max.request.bytes",
        )


def _check_zookeeper(names: Collection[str]) -> None:
    """Reject ZooKeeper settings that would have no effect: their user expects a cluster."""
    for name in names:
        if not name.startswith("zookeeper."):
            continue
        if is_known_to_kafka(name):
            continue
        if name not in BROKER_SETTINGS:
            known = ", ".join(row for row in BROKER_SETTINGS if row.startswith("zookeeper."))
            raise SettingError(f"{name} is not supported; supported are {known}", name)
        if "zookeeper.connect" not in names:
            raise SettingError(f"{name} is for a cluster; give zookeeper.connect too", name)


def _check_group_bounds(config: BrokerConfig) -> None:
    """Reject defaults of group settings outside their minimum and maximum, as Kafka does."""
    for default, least, most in GROUP_BOUNDS.values():
        for lower, upper in ((least, most), (least, default), (default, most)):
            if config.integer(lower) > config.integer(upper):
                name, other, word = (
                    (upper, lower, "greater")
                    if upper != most or lower == least
                    else (lower, upper, "less")
                )
                raise SettingError(
                    f"{name} ({config.integer(name)}) must be {word} than or equal to "
                    f"{other} ({config.integer(other)})",
                    name,
                )
    session, heartbeat = (GROUP_BOUNDS[name].default for name in SESSION_AND_HEARTBEAT)
    if config.integer(heartbeat) >= config.integer(session):
        raise SettingError(
            f"{heartbeat} ({config.integer(heartbeat)}) must be less than "
            f"{session} ({config.integer(session)})",
            heartbeat,
        )


def topic_layers(broker: BrokerConfig, overrides: Mapping[str, Value], name: str) -> list[Layered]:
    """Return every value of a topic setting, the effective one first."""
    row = TOPIC_SETTINGS[name]
    layers = (
        [Layered(name, overrides[name], Source.TOPIC, overrides[name])] if name in overrides else []
    )
    for synonym in TOPIC_SYNONYMS.get(name, ()):
        for layer in broker.layers(synonym.name):
            if layer.value is not None:
                value = _scaled(layer.value, synonym.factor)
                layers.append(Layered(synonym.name, value, layer.source, layer.value))
    # A synonym that is set precedes the built-in default of an earlier one: log.retention.hours
    # in the file beats an unset log.retention.ms.
    layers.sort(key=lambda layer: layer.source)
    if not layers or (row.default is not None and name not in TOPIC_SYNONYMS):
        layers.append(Layered(name, row.default, Source.DEFAULT, row.default))
    return layers


def _scaled(value: Value, factor: int) -> Value:
    if factor == 1 or not isinstance(value, int):
        return value
    return -1 if value < 0 else value * factor


def group_layers(broker: BrokerConfig, overrides: Mapping[str, Value], name: str) -> list[Layered]:
    """Return every value of a group setting, the effective one first."""
    layers = (
        [Layered(name, overrides[name], Source.GROUP, overrides[name])] if name in overrides else []
    )
    return layers + broker.layers(GROUP_BOUNDS[name].default)


def group_values(broker: BrokerConfig, texts: Mapping[str, str]) -> dict[str, int]:
    """Return the effective settings of a group: its own within the broker's bounds, else the
    broker's.

    The bounds may have become narrower since the group's settings were written.
    """
    values = {}
    for name, bounds in GROUP_BOUNDS.items():
        value = broker.integer(bounds.default)
        own = _stored_group_value(name, texts[name]) if name in texts else None
        if own is not None:
            value = min(max(own, broker.integer(bounds.least)), broker.integer(bounds.most))
        values[name] = value
    return values


def _stored_group_value(name: str, text: str) -> int | None:
    """Return the value, or None if it cannot be parsed and so was not written by a broker."""
    try:
        value = GROUP_SETTINGS[name].parse(text)
    except SettingError:
        return None
    return value if isinstance(value, int) else None


def check_group_overrides(broker: BrokerConfig, texts: Mapping[str, str]) -> None:
    """Raise SettingError for values that a group may not have."""
    for name, text in texts.items():
        row = GROUP_SETTINGS.get(name)
        if row is None:
            raise unknown(name, GROUP_SETTINGS, "group config name:")
        value = row.parse(text)
        low, high = (broker.integer(bound) for bound in GROUP_BOUNDS[name][1:])
        if isinstance(value, int) and not low <= value <= high:
            raise SettingError(f"{name} must be in the range {low} to {high} inclusive.", name)
    session, heartbeat = SESSION_AND_HEARTBEAT
    values = group_values(broker, texts)
    if texts and values[session] <= values[heartbeat]:
        raise SettingError(f"{session} must be greater than {heartbeat}", session)


def topic_values(broker: BrokerConfig, overrides: Mapping[str, Value]) -> dict[str, Value]:
    """Return the effective value of every topic setting."""
    return {name: topic_layers(broker, overrides, name)[0].value for name in TOPIC_SETTINGS}


def parse_topic_overrides(texts: Mapping[str, str | None]) -> dict[str, Value]:
    """Parse overrides, and check settings that depend on each other."""
    values: dict[str, Value] = {}
    for name, text in texts.items():
        row = topic_row(name)
        if text is None:
            raise SettingError(f"Null value not supported for topic configs: {name}")
        values[name] = row.parse(text)
    _check_together(values)
    return values


class Stored(NamedTuple):
    """Stored overrides, and the problems of those that could not be parsed."""

    values: dict[str, Value]
    problems: tuple[str, ...]


# For a topic with settings that cannot be parsed: its intended retention is unknown, so keep all.
_KEEPS_ALL: Mapping[str, Value] = {
    "retention.ms": -1,
    "retention.bytes": -1,
    "min.compaction.lag.ms": LONG_MAX,
    "max.compaction.lag.ms": LONG_MAX,
}
# For a topic that may be compacted: gaps in its logs are not damage.
_MAY_BE_COMPACTED: Mapping[str, Value] = {"cleanup.policy": ("compact", "delete")}


def stored_topic_overrides(texts: Mapping[str, str]) -> Stored:
    """Parse stored overrides without failing.

    They were checked before they were written. So a wrong value was written by hand, and an unknown
    name by a later version. Neither may stop a broker or delete records.
    """
    values: dict[str, Value] = {}
    problems: list[str] = []
    wrong = False
    for name, text in texts.items():
        try:
            values |= parse_topic_overrides({name: text})
        except SettingError as error:
            problems.append(str(error))
            wrong |= name in TOPIC_SETTINGS
            values |= _MAY_BE_COMPACTED if name == "cleanup.policy" else {}
    try:
        _check_together(values)
    except SettingError as error:
        problems.append(str(error))
        wrong = True
    return Stored({**values, **_KEEPS_ALL} if wrong else values, tuple(problems))


def topic_row(name: str) -> Setting:
    row = TOPIC_SETTINGS.get(name)
    if row is None:
        topics = [
            topic
            for topic, synonyms in TOPIC_SYNONYMS.items()
            if name in {synonym.name for synonym in synonyms}
        ]
        if topics:
            raise SettingError(
                f"Unknown topic config name: {name}; did you mean {topics[0]}?", name
            )
        raise unknown(name, TOPIC_SETTINGS, "topic config name:")
    return row


def _check_together(values: Mapping[str, Value]) -> None:
    if values.get("remote.storage.enable") or {"local.retention.ms", "local.retention.bytes"} & set(
        values
    ):
        raise SettingError(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )
    low, high = values.get("min.compaction.lag.ms"), values.get("max.compaction.lag.ms")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        raise SettingError(
            f"conflict topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})"
        )
