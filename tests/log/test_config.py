"""The settings of a log: every default is that of the topic setting, also without any broker
setting.
"""

from __future__ import annotations

from dataclasses import fields

import pytest

from millstream.core.config import BrokerConfig, topic_values
from millstream.core.topic_settings import TOPIC_SETTINGS
from millstream.log.config import DEFAULT, LogConfig

SETTINGS = {field.name.replace("_", "."): field.name for field in fields(LogConfig) if field.init}


@pytest.mark.parametrize("setting", SETTINGS)
def test_default_is_that_of_the_topic_setting(setting: str) -> None:
    default = TOPIC_SETTINGS[setting].default
    expected = frozenset(default) if isinstance(default, tuple) else default
    assert getattr(LogConfig(), SETTINGS[setting]) == expected


def test_broker_without_settings_gives_logs_the_defaults() -> None:
    values = topic_values(BrokerConfig.from_texts({}), {})
    assert {name: values[name] for name in TOPIC_SETTINGS} == {
        name: row.default for name, row in TOPIC_SETTINGS.items()
    }
    assert LogConfig.from_topic_settings(values) == DEFAULT == LogConfig()


def test_cleanup_policy_is_a_set_of_words() -> None:
    config = LogConfig.from_topic_settings({"cleanup.policy": "compact, delete"})
    assert config.cleanup_policy == {"compact", "delete"} and config.compact and config.delete


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"compression.type": "lz4"}, False),
        ({"cleanup.policy": "compact"}, False),
        ({"message.validation.deep": True}, False),
        ({"message.timestamp.before.max.ms": 5}, False),
        ({"message.timestamp.before.max.ms": 5, "message.timestamp.type": "LogAppendTime"}, True),
        ({"retention.ms": 5, "min.insync.replicas": 2}, True),
    ],
)
def test_batches_are_taken_as_sent_unless_records_matter(
    changes: dict[str, object], expected: bool
) -> None:
    assert LogConfig.from_topic_settings(changes).takes_as_sent is expected
