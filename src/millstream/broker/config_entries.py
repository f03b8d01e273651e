"""Settings as answers show them: value, source, synonyms, documentation."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from millstream.core.broker_settings import BROKER_SETTINGS
from millstream.core.config import BrokerConfig, Layered, Source, group_layers, topic_layers
from millstream.core.group_settings import CLIENT_METRICS_SETTINGS, GROUP_SETTINGS
from millstream.core.settings import Setting, Type, Update, Value
from millstream.core.topic_settings import TOPIC_SETTINGS


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting of a resource. ``synonyms``: (name, text, source), the effective one first."""

    name: str
    text: str | None
    source: int
    read_only: bool
    sensitive: bool
    type: int
    doc: str
    synonyms: Sequence[tuple[str, str | None, int]]


def topic_entries(broker: BrokerConfig, overrides: Mapping[str, Value]) -> list[ConfigEntry]:
    """Every setting of a topic; internal ones only where they were set."""
    return [
        _entry(row, topic_layers(broker, overrides, name), read_only=False)
        for name, row in TOPIC_SETTINGS.items()
        if not row.internal or name in overrides
    ]


def broker_entries(config: BrokerConfig) -> list[ConfigEntry]:
    """Every setting of this broker."""
    return [
        _entry(row, config.layers(name), read_only=row.update is Update.READ_ONLY)
        for name, row in BROKER_SETTINGS.items()
    ]


def cluster_entries(config: BrokerConfig) -> list[ConfigEntry]:
    """The cluster-wide dynamic settings alone."""
    return [
        _entry(BROKER_SETTINGS[name], [Layered(name, value, Source.CLUSTER, value)], read_only=False)
        for name, value in config.cluster.items()
    ]


def group_entries(config: BrokerConfig, texts: Mapping[str, str]) -> list[ConfigEntry]:
    """Every setting of a group, also of one that does not exist."""
    known = {name: text for name, text in texts.items() if name in GROUP_SETTINGS}
    overrides = {name: GROUP_SETTINGS[name].parse(text) for name, text in known.items()}
    return [
        _entry(row, group_layers(config, overrides, name), read_only=False)
        for name, row in GROUP_SETTINGS.items()
    ]


def client_metrics_entries(texts: Mapping[str, str]) -> list[ConfigEntry]:
    """Every setting of a subscription; Kafka shows no synonym for a default."""
    entries = []
    for name, row in CLIENT_METRICS_SETTINGS.items():
        value = row.parse(texts[name]) if name in texts else row.default
        source = Source.CLIENT_METRICS if name in texts else Source.DEFAULT
        entry = _entry(row, [Layered(name, value, source, value)], read_only=False)
        entries.append(entry if name in texts else replace(entry, synonyms=()))
    return entries


def _entry(row: Setting, layers: Sequence[Layered], *, read_only: bool) -> ConfigEntry:
    synonyms = [(layer.name, _shown(row, layer.given), int(layer.source)) for layer in layers]
    first = layers[0]
    # Kafka shows no synonym for a broker setting that has never been given a value.
    if first.value is None:
        synonyms = []
    return ConfigEntry(
        row.name,
        _shown(row, first.value),
        int(first.source),
        read_only,
        row.sensitive,
        int(row.type),
        row.doc,
        synonyms,
    )


def _shown(row: Setting, value: Value) -> str | None:
    return None if row.sensitive else row.text(value)


def logger_entries() -> list[ConfigEntry]:
    """The levels of this program's loggers, which can be changed while it runs."""
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
    return ["millstream", *sorted(n for n in logging.root.manager.loggerDict if n.startswith("millstream."))]
