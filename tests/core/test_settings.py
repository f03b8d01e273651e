"""Texts of settings become values, and mistakes are explained."""

from __future__ import annotations

import pytest

from millstream.core.broker_settings import BROKER_SETTINGS
from millstream.core.config import (
    BrokerConfig,
)
from millstream.core.settings import SettingError, parse_properties
from millstream.core.topic_settings import TOPIC_SETTINGS


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        (
            "log.retention.hour",
            "1",
            "Unknown setting log.retention.hour; did you mean log.retention.hours?",
        ),
        ("quite.something.else", "1", "Unknown setting quite.something.else$"),
        (
            "num.partitions",
            "many",
            "Invalid value many for configuration num.partitions: expected a whole number",
        ),
        ("num.partitions", "1.5", "expected a whole number"),
        ("num.partitions", "1_000", "expected a whole number"),
        ("num.partitions", "٣", "expected a whole number"),
        ("num.partitions", "0", "Value must be at least 1"),
        ("num.partitions", str(2**31), "out of range for this type"),
        ("log.cleaner.min.cleanable.ratio", "2", "Value must be no more than 1"),
        ("log.cleaner.min.cleanable.ratio", "nan", "expected a number"),
        ("auto.create.topics.enable", "yes", "expected true or false"),
        (
            "log.cleanup.policy",
            "compact,shred",
            "Invalid value shred .* must be one of: compact, delete",
        ),
        ("compression.type", "brotli", "Invalid value brotli"),
    ],
)
def test_a_wrong_setting_says_what_and_why(name: str, text: str, complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        BrokerConfig.from_texts({name: text})


def test_values_are_typed_and_blanks_do_not_matter() -> None:
    found = BrokerConfig.from_texts(
        {
            "num.partitions": " 3 ",
            "log.dirs": " /a , /b,",
            "auto.create.topics.enable": "FALSE",
            "log.cleaner.io.buffer.load.factor": "0.5",
        }
    )
    assert found.integer("num.partitions") == 3
    assert found.log_dirs == ("/a", "/b")
    assert found.flag("auto.create.topics.enable") is False
    assert found.number("log.cleaner.io.buffer.load.factor") == 0.5


def test_every_default_passes_its_own_check() -> None:
    for row in [*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values()]:
        if row.default is not None:
            text = row.text(row.default)
            assert text is not None and row.parse(text) == row.default, row.name


def test_a_properties_file_is_read_as_java_does() -> None:
    text = "# comment\n! another\n\nnode.id = 7\nlog.dirs: /a,\\\n   /b\nbroker.rack east\nlisteners=PLAINTEXT://h:1\n"
    given = parse_properties(text, "f")
    assert {name: one.text for name, one in given.items()} == {
        "node.id": "7",
        "log.dirs": "/a,/b",
        "broker.rack": "east",
        "listeners": "PLAINTEXT://h:1",
    }
    assert [one.where for one in given.values()] == [
        "f, line 4",
        "f, line 5",
        "f, line 7",
        "f, line 8",
    ]
    assert parse_properties("log.dirs=/a,\\", "f")["log.dirs"].text == "/a,"
    with pytest.raises(SettingError, match=r"server\.properties, line 2: no name"):
        parse_properties("a=1\n=2\n", "server.properties")
