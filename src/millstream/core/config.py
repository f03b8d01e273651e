"""The settings in force: layers of values, which one wins, and where each came from.

For a broker: its own dynamic value, the dynamic cluster-wide one, the file or ``--set``, the built-in default. For a
topic: its override, then the broker's layers through the synonyms. All pure: changes arrive as new dictionaries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from millstream.core.broker_settings import BROKER_SETTINGS
from millstream.core.group_settings import GROUP_BOUNDS, GROUP_SETTINGS, SESSION_AND_HEARTBEAT
from millstream.core.settings import LONG_MAX, Setting, SettingError, Value, parse_all, unknown
from millstream.core.topic_settings import TOPIC_SETTINGS, TOPIC_SYNONYMS


class Source(IntEnum):
    """Where a value came from, as DescribeConfigs numbers it."""

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
    """One value on its way to the effective one; ``given`` is what stands in the layer, before any unit is changed."""

    name: str
    value: Value
    source: Source
    given: Value


@dataclass(slots=True)
class BrokerConfig:
    """A broker's layers. ``static`` never changes; the dynamic ones are replaced when their znode changes."""

    static: dict[str, Value]
    cluster: dict[str, Value] = field(default_factory=dict)
    broker: dict[str, Value] = field(default_factory=dict)

    @classmethod
    def from_texts(cls, texts: Mapping[str, str]) -> BrokerConfig:
        """Checked one by one and together; the SettingError of a wrong one names it."""
        _check_zookeeper(texts)
        values = parse_all(texts, BROKER_SETTINGS, "setting")
        for name in ("log.dirs", "log.dir"):
            if name in values and not values[name]:
                raise SettingError(f"{name} is empty: it names where the data is kept, e.g. ./data", name)
        config = cls(values)
        _check_group_bounds(config)
        if "broker.id" in values and "node.id" not in values:
            values["node.id"] = values["broker.id"]
        _check_request_memory(config)
        return config

    def get(self, name: str) -> Value:
        """The effective value: what ``layers`` names first, found without naming the others."""
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
        """Every layer that has a value, the effective one first."""
        row = BROKER_SETTINGS[name]
        found = [
            Layered(name, values[name], source, values[name])
            for values, source in (
                (self.broker, Source.BROKER),
                (self.cluster, Source.CLUSTER),
                (self.static, Source.STATIC),
            )
            if name in values
        ]
        if row.default is not None or not found:
            found.append(Layered(name, row.default, Source.DEFAULT, row.default))
        return found

    @property
    def node_id(self) -> int:
        return self.integer("node.id")

    @property
    def log_dirs(self) -> tuple[str, ...]:
        dirs = self.get("log.dirs")
        return dirs if isinstance(dirs, tuple) and dirs else (str(self.get("log.dir")),)

    def inert_names(self) -> list[str]:
        """Settings the user gave that Kafka knows and that mean nothing here."""
        return sorted(name for name in self.static if BROKER_SETTINGS[name].inert)


def _check_request_memory(config: BrokerConfig) -> None:
    """Kafka refuses the same: the largest request would never fit."""
    memory, largest = config.get("queued.max.request.bytes"), config.integer("socket.request.max.bytes")
    if isinstance(memory, int) and 0 < memory < largest:
        raise SettingError(
            f"queued.max.request.bytes ({memory}) must be larger than or equal to socket.request.max.bytes ({largest})",
            "queued.max.request.bytes",
        )


def _check_zookeeper(names: Collection[str]) -> None:
    """Whoever gives one of these expects a cluster, with what the setting promises: none is passed over in silence."""
    for name in names:
        if not name.startswith("zookeeper."):
            continue
        if name not in BROKER_SETTINGS:
            known = ", ".join(row for row in BROKER_SETTINGS if row.startswith("zookeeper."))
            raise SettingError(f"{name} is not supported; of ZooKeeper's settings there are {known}", name)
        if "zookeeper.connect" not in names:
            raise SettingError(f"{name} is for a cluster: zookeeper.connect has to be given with it", name)


def _check_group_bounds(config: BrokerConfig) -> None:
    """Refuse defaults of group settings beyond their own minimum and maximum, as Kafka does at startup."""
    for default, least, most in GROUP_BOUNDS.values():
        for lower, upper in ((least, most), (least, default), (default, most)):
            if config.integer(lower) > config.integer(upper):
                name, other, word = (
                    (upper, lower, "greater") if upper != most or lower == least else (lower, upper, "less")
                )
                raise SettingError(
                    f"{name} ({config.integer(name)}) must be {word} than or equal to {other} ({config.integer(other)})",
                    name,
                )
    session, heartbeat = (GROUP_BOUNDS[name].default for name in SESSION_AND_HEARTBEAT)
    if config.integer(heartbeat) >= config.integer(session):
        raise SettingError(
            f"{heartbeat} ({config.integer(heartbeat)}) must be less than {session} ({config.integer(session)})",
            heartbeat,
        )


def topic_layers(broker: BrokerConfig, overrides: Mapping[str, Value], name: str) -> list[Layered]:
    """Every value behind a topic setting, the effective one first."""
    row = TOPIC_SETTINGS[name]
    found = [Layered(name, overrides[name], Source.TOPIC, overrides[name])] if name in overrides else []
    for synonym in TOPIC_SYNONYMS.get(name, ()):
        for layer in broker.layers(synonym.name):
            if layer.value is not None:
                value = _scaled(layer.value, synonym.factor)
                found.append(Layered(synonym.name, value, layer.source, layer.value))
    # A synonym that was set stands before the built-in default of one named earlier (log.retention.hours
    # in the file beats nothing in log.retention.ms).
    found.sort(key=lambda layer: layer.source)
    if not found or (row.default is not None and name not in TOPIC_SYNONYMS):
        found.append(Layered(name, row.default, Source.DEFAULT, row.default))
    return found


def _scaled(value: Value, factor: int) -> Value:
    if factor == 1 or not isinstance(value, int):
        return value
    return -1 if value < 0 else value * factor


def group_layers(broker: BrokerConfig, overrides: Mapping[str, Value], name: str) -> list[Layered]:
    """Every value behind a setting of a group, the effective one first."""
    found = [Layered(name, overrides[name], Source.GROUP, overrides[name])] if name in overrides else []
    return found + broker.layers(GROUP_BOUNDS[name].default)


def group_values(broker: BrokerConfig, texts: Mapping[str, str]) -> dict[str, int]:
    """What holds for a group: its own settings within the bounds that the broker has now, which may be narrower than when they were
    set; else the broker's."""
    values = {}
    for name, bounds in GROUP_BOUNDS.items():
        value = broker.integer(bounds.default)
        own = _stored_group_value(name, texts[name]) if name in texts else None
        if own is not None:
            value = min(max(own, broker.integer(bounds.least)), broker.integer(bounds.most))
        values[name] = value
    return values


def _stored_group_value(name: str, text: str) -> int | None:
    """None for what was not written by a broker."""
    try:
        value = GROUP_SETTINGS[name].parse(text)
    except SettingError:
        return None
    return value if isinstance(value, int) else None


def check_group_overrides(broker: BrokerConfig, texts: Mapping[str, str]) -> None:
    """Raises SettingError for what a group may not be set to."""
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
    """The effective value of every topic setting."""
    return {name: topic_layers(broker, overrides, name)[0].value for name in TOPIC_SETTINGS}


def parse_topic_overrides(texts: Mapping[str, str | None]) -> dict[str, Value]:
    """Overrides as typed values, with the checks that need more than one setting."""
    values: dict[str, Value] = {}
    for name, text in texts.items():
        row = topic_row(name)
        if text is None:
            raise SettingError(f"Null value not supported for topic configs: {name}")
        values[name] = row.parse(text)
    _check_together(values)
    return values


class Stored(NamedTuple):
    """Overrides that were written some time ago, and what of them could not be understood."""

    values: dict[str, Value]
    problems: tuple[str, ...]


# Of a topic whose settings are not all understood: how long its records were meant to stay is not known.
_KEEPS_ALL: Mapping[str, Value] = {
    "retention.ms": -1,
    "retention.bytes": -1,
    "min.compaction.lag.ms": LONG_MAX,
    "max.compaction.lag.ms": LONG_MAX,
}
# Of one that may be compacted: the gaps in its logs are no damage.
_MAY_BE_COMPACTED: Mapping[str, Value] = {"cleanup.policy": ("compact", "delete")}


def stored_topic_overrides(texts: Mapping[str, str]) -> Stored:
    """They were checked before they were written, so what is wrong now was written by hand, and what is unknown by a later version. Nobody ends for it, and
    nothing is deleted because of a value that nobody understands."""
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
        of_broker = [topic for topic, names in TOPIC_SYNONYMS.items() if name in {one.name for one in names}]
        if of_broker:
            raise SettingError(f"Unknown topic config name: {name}; did you mean {of_broker[0]}?", name)
        raise unknown(name, TOPIC_SETTINGS, "topic config name:")
    return row


def _check_together(values: Mapping[str, Value]) -> None:
    if values.get("remote.storage.enable") or {"local.retention.ms", "local.retention.bytes"} & set(values):
        raise SettingError(
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."
        )
    low, high = values.get("min.compaction.lag.ms"), values.get("max.compaction.lag.ms")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        raise SettingError(
            f"conflict topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})"
        )
