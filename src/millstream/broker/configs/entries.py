"""Settings as responses describe them: value, source, synonyms, documentation."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile

from millstream.control.znodes import DEFAULT_BROKER
from millstream.core.broker_settings import BROKER_SETTINGS
from millstream.core.config import BrokerConfig, Layered, Source, group_layers, topic_layers
from millstream.core.group_settings import CLIENT_METRICS_SETTINGS, GROUP_SETTINGS
from millstream.core.settings import Setting, Type, Update, Value
from millstream.core.topic_settings import TOPIC_SETTINGS, TOPIC_SYNONYMS

# Broker settings that replace each other, the finest unit first.
_GROUPS = tuple(
    tuple(synonym.name for synonym in synonyms)
    for synonyms in TOPIC_SYNONYMS.values()
    if len(synonyms) > 1
)
_FLUSH_SCHEDULER = "log.flush.scheduler.interval.ms"
_BROKER_SYNONYMS = {name: group for group in _GROUPS for name in group if name != _FLUSH_SCHEDULER}


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting of a resource.

    ``synonyms`` are (name, text, source), the effective one first. ``doc`` is None if the setting
    is unknown here.
    """

    name: str
    text: str | None
    source: int
    read_only: bool
    sensitive: bool
    type: int
    doc: str | None
    synonyms: Sequence[tuple[str, str | None, int]]


def topic_entries(broker: BrokerConfig, overrides: Mapping[str, Value]) -> list[ConfigEntry]:
    """Return every setting of a topic; internal ones only if they are set."""
    return [
        _topic_entry(broker, overrides, row)
        for name, row in TOPIC_SETTINGS.items()
        if not row.internal or name in overrides
    ]


def _topic_entry(broker: BrokerConfig, overrides: Mapping[str, Value], row: Setting) -> ConfigEntry:
    layers = topic_layers(broker, overrides, row.name)
    own = [layer for layer in layers if layer.source is Source.TOPIC]
    behind = [layer for layer in layers if layer.source is not Source.TOPIC]
    synonyms = TOPIC_SYNONYMS.get(row.name)
    shown = own + (_from_name(synonyms[0].name, behind) if synonyms else [])
    return _entry(row, layers[0].value, shown, read_only=False)


def _from_name(name: str, layers: Sequence[Layered]) -> list[Layered]:
    """Return the layers from the first one with this name on, as Kafka shows them.

    A setting that only has a value in another unit (log.retention.hours for log.retention.ms) is
    shown without synonyms, as a default.
    """
    return list(dropwhile(lambda layer: layer.name != name, layers))


def broker_entries(
    config: BrokerConfig, stored: Mapping[str, Mapping[str, str]]
) -> list[ConfigEntry]:
    """Return every setting of this broker. Some of the ``stored`` dynamic ones may be unknown."""
    own, cluster = stored.get(str(config.node_id), {}), stored.get(DEFAULT_BROKER, {})
    entries = [_broker_entry(config, row) for row in BROKER_SETTINGS.values()]
    for name in dict.fromkeys(name for name in (*own, *cluster) if name not in BROKER_SETTINGS):
        layers = ((own, Source.BROKER), (cluster, Source.CLUSTER))
        entries.append(_unknown_entry(name, [source for texts, source in layers if name in texts]))
    return entries


def _broker_entry(config: BrokerConfig, row: Setting) -> ConfigEntry:
    names = _BROKER_SYNONYMS.get(row.name, (row.name,))
    layers = [layer for name in names for layer in config.layers(name) if layer.value is not None]
    layers.sort(key=lambda layer: layer.source)
    shown = _from_name(row.name, layers)
    return _entry(row, config.get(row.name), shown, read_only=row.update is Update.READ_ONLY)


def cluster_entries(
    config: BrokerConfig, stored: Mapping[str, Mapping[str, str]]
) -> list[ConfigEntry]:
    """Return the cluster-wide dynamic settings only."""
    entries = [
        _entry(
            BROKER_SETTINGS[name],
            value,
            [Layered(name, value, Source.CLUSTER, value)],
            read_only=False,
        )
        for name, value in config.cluster.items()
    ]
    unknown = [name for name in stored.get(DEFAULT_BROKER, {}) if name not in BROKER_SETTINGS]
    return entries + [_unknown_entry(name, [Source.CLUSTER]) for name in unknown]


def _unknown_entry(name: str, sources: Sequence[Source]) -> ConfigEntry:
    """Return a stored setting that is unknown here, as Kafka shows it.

    It may be a secret, so its value is hidden.
    """
    synonyms = [(name, None, int(source)) for source in sources]
    return ConfigEntry(name, None, int(sources[0]), True, True, int(Type.UNKNOWN), None, synonyms)


def group_entries(config: BrokerConfig, texts: Mapping[str, str]) -> list[ConfigEntry]:
    """Return every setting of a group, even if the group does not exist."""
    known = {name: text for name, text in texts.items() if name in GROUP_SETTINGS}
    overrides = {name: GROUP_SETTINGS[name].parse(text) for name, text in known.items()}
    entries = []
    for name, row in GROUP_SETTINGS.items():
        layers = group_layers(config, overrides, name)
        entries.append(_entry(row, layers[0].value, layers, read_only=False))
    return entries


def client_metrics_entries(texts: Mapping[str, str]) -> list[ConfigEntry]:
    """Return every setting of a subscription. Kafka shows no synonym for a default."""
    entries = []
    for name, row in CLIENT_METRICS_SETTINGS.items():
        value = row.parse(texts[name]) if name in texts else row.default
        shown = [Layered(name, value, Source.CLIENT_METRICS, value)] if name in texts else []
        entries.append(_entry(row, value, shown, read_only=False))
    return entries


def _entry(row: Setting, value: Value, shown: Sequence[Layered], *, read_only: bool) -> ConfigEntry:
    """Return the entry of a setting. ``shown`` are its synonyms; without any it is a default."""
    synonyms = [(layer.name, _shown(row, layer.given), int(layer.source)) for layer in shown]
    return ConfigEntry(
        row.name,
        _shown(row, value),
        int(shown[0].source if shown else Source.DEFAULT),
        read_only,
        row.sensitive,
        int(row.type),
        row.doc,
        synonyms,
    )


def _shown(row: Setting, value: Value) -> str | None:
    return None if row.sensitive else row.text(value)


def logger_entries() -> list[ConfigEntry]:
    """Return the levels of the loggers, which can be changed while the broker runs."""
    return [
        ConfigEntry(
            name,
            logging.getLevelName(logging.getLogger(name).getEffectiveLevel()),
            int(Source.LOGGER),
            False,
            False,
            int(Type.STRING),
            "The level of this logger.",
            (),
        )
        for name in logger_names()
    ]


def logger_names() -> Iterable[str]:
    return [
        "millstream",
        *sorted(n for n in logging.root.manager.loggerDict if n.startswith("millstream.")),
    ]
