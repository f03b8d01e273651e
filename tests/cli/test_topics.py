"""``millstream topics`` and ``millstream configs`` against a broker."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys

import pytest


def test_a_topic_is_described_for_people(millstream, topic: str):
    altered = millstream(
        "topics",
        "alter",
        topic,
        "-p",
        "4",
        "-c",
        "retention.ms=60000",
        "-c",
        "segment.bytes=2000000",
    )
    assert (
        altered.stdout
        == f"topic {topic} now has 4 partitions\naltered settings of topic {topic}: retention.ms, segment.bytes\n"
    )
    shown = millstream("topics", "describe", topic).stdout
    head, *partitions = shown.splitlines()
    assert re.fullmatch(
        rf"Topic: {topic}  TopicId: [\w-]{{22}}  PartitionCount: 4  ReplicationFactor: 1  "
        r"Configs: retention\.ms=60000,segment\.bytes=2000000",
        head,
    )
    assert partitions == [
        f"  Partition: {number}  Leader: 0  Replicas: 0  Isr: 0" for number in range(4)
    ]


def test_a_topic_is_described_for_programs(millstream, topic: str):
    (described,) = json.loads(millstream("topics", "describe", topic, "--format", "json").stdout)
    identity = described.pop("id")
    assert len(identity) == 22
    assert described == {
        "name": topic,
        "internal": False,
        "partition_count": 3,
        "replication_factor": 1,
        "configs": {},
        "partitions": [
            {"partition": number, "leader": 0, "replicas": [0], "isr": [0]} for number in range(3)
        ],
    }
    listed = json.loads(millstream("topics", "list", "--format", "json").stdout)
    assert {
        "name": topic,
        "id": identity,
        "internal": False,
        "partition_count": 3,
        "replication_factor": 1,
    } in listed


def test_topics_are_listed(millstream, topic: str):
    head, *rows = millstream("topics", "list").stdout.splitlines()
    assert head.split() == ["TOPIC", "PARTITIONS", "REPLICAS", "TOPIC-ID"]
    assert [row.split()[1:3] for row in rows if row.split()[0] == topic] == [["3", "1"]]
    assert topic in millstream("topics", "list", "--names").stdout.splitlines()


def test_healthy_partitions_pass_the_filters(millstream, topic: str):
    for option in ("--under-replicated", "--unavailable", "--under-min-isr"):
        ran = millstream("topics", "describe", topic, option)
        assert (ran.stdout, ran.stderr, ran.returncode) == (
            "",
            f"no partitions are {option[2:]}\n",
            0,
        )
    assert (
        millstream("topics", "describe", topic, "--unavailable", "--format", "json").stdout
        == "[]\n"
    )


def test_too_few_in_sync_shows_under_min_isr(millstream, topic: str):
    assert (
        millstream("configs", "alter", "topic", topic, "--set", "min.insync.replicas=2").returncode
        == 0
    )
    shown = millstream("topics", "describe", topic, "--under-min-isr").stdout
    assert len(shown.splitlines()) == 4


def test_errors_of_topics_are_one_line_with_the_next_step(millstream, topic: str):
    for words, complaint in (
        (("create", topic), f"error: cannot create topic '{topic}': "),
        (
            ("describe", topic + "x"),
            f"error: topic '{topic}x' does not exist; did you mean '{topic}'",
        ),
        (("alter", topic, "-p", "2"), f"error: cannot set topic '{topic}' to 2 partitions: "),
        (("describe", "orders-*"), "error: cannot describe topic 'orders-*': "),
        (("delete", topic + "x"), f"error: topic '{topic}x' does not exist; "),
        (("create", topic + "-2", "-r", "3"), f"error: cannot create topic '{topic}-2': "),
    ):
        ran = millstream("topics", *words)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert ran.stderr.startswith(complaint)
        assert ran.stderr.count("\n") == 1 and "; " in ran.stderr


def test_existing_and_missing_topics_can_be_tolerated(millstream, topic: str):
    assert (
        millstream("topics", "create", topic, "--if-not-exists").stdout
        == f"topic {topic} already exists\n"
    )
    assert (
        millstream("topics", "create", topic + "-2", "--dry-run").stdout
        == f"topic {topic}-2 can be created\n"
    )
    deleted = millstream("topics", "delete", topic, topic + "-2", "--if-exists")
    assert (deleted.stdout, deleted.returncode) == (f"deleted topic {topic}\n", 0)


def test_missing_topic_is_reported_without_advice_to_create_it(millstream):
    for words in (
        ("delete", "xyzzy"),
        ("describe", "xyzzy"),
        ("alter", "xyzzy", "--partitions", "2"),
    ):
        ran = millstream("topics", *words)
        assert (ran.stdout, ran.returncode) == ("", 1)
        assert ran.stderr == "error: topic 'xyzzy' does not exist; see `millstream topics list`\n"


def test_deleting_asks_a_person_first(millstream, topic: str, shared_broker):
    """A person is at the terminal when stdin is one; the answer no keeps the topic."""
    for answer, code in (("n", 1), ("y", 0)):
        keyboard, terminal = pty.openpty()
        try:
            os.write(keyboard, f"{answer}\n".encode())
            ran = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "millstream",
                    "topics",
                    "delete",
                    topic,
                    "-b",
                    shared_broker.bootstrap,
                ],
                stdin=terminal,
                capture_output=True,
                text=True,
                timeout=60,
            )
        finally:
            os.close(keyboard)
            os.close(terminal)
        assert f"Delete {topic} and all records?" in ran.stdout + ran.stderr
        assert ran.returncode == code
        left = millstream("topics", "list", "--names").stdout.splitlines()
        assert (topic in left) is (answer == "n")


def test_settings_are_altered_and_described(millstream, topic: str):
    altered = millstream(
        "configs",
        "alter",
        "topic",
        topic,
        "-s",
        "retention.ms=60000",
        "--append",
        "cleanup.policy=compact",
    )
    assert altered.stdout == f"altered settings of topic {topic}: retention.ms, cleanup.policy\n"
    rows = [
        row.split() for row in millstream("configs", "describe", "topic", topic).stdout.splitlines()
    ]
    assert rows[0] == ["NAME", "VALUE", "SOURCE"]
    assert ["cleanup.policy", "delete,compact", "DYNAMIC_TOPIC_CONFIG"] in rows
    assert ["retention.ms", "60000", "DYNAMIC_TOPIC_CONFIG"] in rows
    assert millstream(
        "configs", "alter", "topic", topic, "-d", "retention.ms", "--dry-run"
    ).stdout.startswith("would alter")
    millstream("configs", "alter", "topic", topic, "-d", "retention.ms")
    assert "retention.ms" not in millstream("configs", "describe", "topic", topic).stdout.split()


def test_all_settings_show_sources_and_synonyms(millstream, topic: str):
    head, *rows = millstream("configs", "describe", "topic", topic, "--all").stdout.splitlines()
    assert head.split() == ["NAME", "VALUE", "SOURCE", "SYNONYMS", "READ-ONLY"]
    (policy,) = [row.split() for row in rows if row.startswith("cleanup.policy ")]
    assert policy == [
        "cleanup.policy",
        "delete",
        "DEFAULT_CONFIG",
        "DEFAULT_CONFIG:log.cleanup.policy=delete",
        "no",
    ]
    found = json.loads(
        millstream("configs", "describe", "topic", topic, "--all", "--format", "json").stdout
    )
    assert {
        "name": "cleanup.policy",
        "value": "delete",
        "source": "DEFAULT_CONFIG",
        "default": True,
        "read_only": False,
        "sensitive": False,
        "synonyms": [{"name": "log.cleanup.policy", "value": "delete", "source": "DEFAULT_CONFIG"}],
    } in found


def test_settings_of_a_broker_are_described(millstream):
    rows = [
        row.split() for row in millstream("configs", "describe", "broker", "0").stdout.splitlines()
    ]
    assert "log.dirs" in [row[0] for row in rows]
    assert {row[2] for row in rows if row[0] in ("log.dirs", "listeners")} == {
        "STATIC_BROKER_CONFIG"
    }
    missing = millstream("configs", "describe", "broker", "99")
    assert (missing.returncode, missing.stderr) == (
        1,
        "error: broker '99' does not exist; the brokers are 0\n",
    )


def test_a_bad_setting_is_refused(millstream, topic: str):
    ran = millstream("configs", "alter", "topic", topic, "-s", "retention.mss=1")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith(f"error: cannot alter the settings of topic {topic}: ")
    assert "retention.mss" in ran.stderr and ran.stderr.count("\n") == 1


def test_mistyped_setting_names_the_right_one_once(millstream, topic_name: str):
    ran = millstream("topics", "create", topic_name, "-c", "cleanup.polici=compact")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        f"error: cannot create topic '{topic_name}': Unknown topic config name: cleanup.polici; "
        "did you mean cleanup.policy?\n"
    )
    millstream("topics", "create", topic_name)
    ran = millstream("topics", "alter", topic_name, "-c", "retentoin.ms=1")
    assert ran.stderr.endswith(
        ": Unknown topic config name: retentoin.ms; did you mean retention.ms?\n"
    )


@pytest.mark.parametrize(
    ("name", "of_topics"),
    [
        ("log.retention.ms", "retention.ms"),
        ("log.retention.hours", "retention.ms"),
        ("log.cleanup.policy", "cleanup.policy"),
        ("message.max.bytes", "max.message.bytes"),
        ("log.roll.hours", "segment.ms"),
    ],
)
def test_broker_setting_names_that_of_topics(
    millstream, topic_name: str, name: str, of_topics: str
):
    """log.retention.ms is nearest to local.retention.ms, which has another meaning."""
    ran = millstream("topics", "create", topic_name, "-c", f"{name}=1")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.endswith(f": Unknown topic config name: {name}; did you mean {of_topics}?\n")


def test_deleting_an_unknown_setting_is_noted(millstream, topic: str):
    for words in (
        ("topics", "alter", topic, "--delete-config", "retentoin.ms"),
        ("configs", "alter", "topic", topic, "--delete", "retentoin.ms"),
    ):
        ran = millstream(*words)
        assert ran.returncode == 0
        assert "Unknown topic config name: retentoin.ms; did you mean retention.ms?" in ran.stderr
    assert millstream("topics", "alter", topic, "--delete-config", "retention.ms").stderr == ""


@pytest.mark.parametrize("count", ["100001", "2147483648", "999999999999"])
@pytest.mark.parametrize(
    "words",
    [
        ("create", "new", "--partitions"),
        ("create", "new", "--replication-factor"),
        ("alter", "", "-p"),
    ],
    ids=["partitions", "replicas", "alter"],
)
def test_count_beyond_the_library_is_an_error_without_a_traceback(
    millstream, topic: str, words: tuple[str, ...], count: str
):
    """librdkafka answers with a ValueError, or an OverflowError above 2^31."""
    verb, name, option = words
    ran = millstream("topics", verb, name or topic, option, count)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("error: cannot ") and f"not {count}" in ran.stderr
    assert ran.stderr.count("\n") == 1
