"""Settings as answers show them: value, source, synonyms, documentation."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from millstream.core.broker_settings import BROKER_SETTINGS
from millstream.core.config import BrokerConfig, Layered, Source, topic_layers
from millstream.core.settings import Setting, Type, Update, Value
from millstream.core.topic_settings import TOPIC_SETTINGS

LOGGER_SOURCE = 6


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
            LOGGER_SOURCE,
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
