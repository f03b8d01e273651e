"""Layers of settings: which value wins, and where it came from."""

from __future__ import annotations

import pytest

from millstream.core.broker_settings import BROKER_SETTINGS
from millstream.core.config import (
    BrokerConfig,
    Layered,
    Source,
    parse_topic_overrides,
    topic_layers,
    topic_values,
)
from millstream.core.settings import LONG_MAX, SettingError
from millstream.core.topic_settings import TOPIC_SETTINGS, TOPIC_SYNONYMS


def broker(**layers: dict[str, object]) -> BrokerConfig:
    return BrokerConfig(**{"static": {}, **layers})  # type: ignore[arg-type]


@pytest.mark.parametrize("selector", ["LeaderSelector", "RackAwareReplicaSelector"])
def test_both_of_kafkas_selectors_of_replicas_are_known(selector: str) -> None:
    name = f"org.apache.kafka.common.replica.{selector}"
    assert (
        BrokerConfig.from_texts({"replica.selector.class": name}).get("replica.selector.class")
        == name
    )


def test_the_older_name_of_the_node_id_counts_unless_the_newer_is_given() -> None:
    assert BrokerConfig.from_texts({"broker.id": "4"}).node_id == 4
    assert BrokerConfig.from_texts({"broker.id": "4", "node.id": "5"}).node_id == 5


def test_names_without_a_meaning_here_are_known() -> None:
    assert BrokerConfig.from_texts({"num.io.threads": "8", "node.id": "1"}).inert_names() == [
        "num.io.threads"
    ]


def test_the_nearest_layer_wins_and_all_of_them_are_told() -> None:
    found = broker(
        static={"message.max.bytes": 3},
        cluster={"message.max.bytes": 2},
        broker={"message.max.bytes": 1},
    )
    name = "message.max.bytes"
    assert found.get(name) == 1
    assert found.layers(name) == [
        Layered(name, 1, Source.BROKER, given=1),
        Layered(name, 2, Source.CLUSTER, given=2),
        Layered(name, 3, Source.STATIC, given=3),
        Layered(name, 1048588, Source.DEFAULT, given=1048588),
    ]


def test_a_topic_takes_its_override_then_what_stands_behind_it() -> None:
    found = broker(static={"log.segment.bytes": 2_000_000})
    assert [
        layer.value for layer in topic_layers(found, {"segment.bytes": 5_000_000}, "segment.bytes")
    ] == [
        5_000_000,
        2_000_000,
        1 << 30,
    ]


def test_hours_in_the_file_beat_the_default_of_milliseconds() -> None:
    assert (
        topic_values(broker(static={"log.retention.hours": 2}), {})["retention.ms"] == 2 * 3_600_000
    )
    both = broker(static={"log.retention.hours": 2, "log.retention.minutes": 3})
    assert topic_values(both, {})["retention.ms"] == 180_000
    dynamic = broker(static={"log.retention.minutes": 3}, cluster={"log.retention.ms": 7})
    assert topic_values(dynamic, {})["retention.ms"] == 7
    forever = broker(static={"log.retention.hours": -1})
    assert topic_values(forever, {})["retention.ms"] == -1


def test_a_topic_without_anything_set_has_kafkas_defaults() -> None:
    values = topic_values(broker(), {})
    assert values["retention.ms"] == 7 * 24 * 3_600_000
    assert values["cleanup.policy"] == ("delete",)
    assert values["max.message.bytes"] == 1048588
    assert values["flush.messages"] == values["flush.ms"] == LONG_MAX
    assert values["segment.ms"] == 168 * 3_600_000


def test_every_synonym_is_a_setting_of_the_broker() -> None:
    for name, synonyms in TOPIC_SYNONYMS.items():
        assert name in TOPIC_SETTINGS
        assert all(synonym.name in BROKER_SETTINGS for synonym in synonyms)


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        ({"cleanup.polcy": "compact"}, "did you mean cleanup.policy?"),
        ({"retention.ms": None}, "Null value"),
        (
            {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "5"},
            "min.compaction.lag.ms .9. >",
        ),
        ({"remote.storage.enable": "true"}, "Tiered Storage"),
        ({"min.cleanable.dirty.ratio": "inf"}, "expected a number"),
    ],
)
def test_wrong_overrides_of_a_topic_are_told(texts: dict[str, str | None], complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        parse_topic_overrides(texts)
