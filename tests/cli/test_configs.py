"""``millstream configs`` for groups and client metrics, which need not exist to have settings."""

from __future__ import annotations

import json

import pytest


def test_a_group_has_settings(millstream, topic_name: str):
    bare = millstream("configs", "describe", "group", topic_name)
    assert (bare.stdout, bare.returncode) == ("", 0)
    assert bare.stderr == f"group {topic_name} has only default settings; show them with --all\n"
    words = ("configs", "alter", "group", topic_name)
    setting = "consumer.session.timeout.ms"
    tried = millstream(*words, "--set", f"{setting}=50000", "--dry-run")
    assert tried.stdout == f"would alter settings of group {topic_name}: {setting}\n"
    assert millstream("configs", "describe", "group", topic_name).stdout == ""
    done = millstream(*words, "--set", f"{setting}=50000")
    assert (done.stdout, done.stderr) == (
        f"altered settings of group {topic_name}: {setting}\n",
        "",
    )
    shown = millstream("configs", "describe", "group", topic_name)
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["NAME", "VALUE", "SOURCE"],
        [setting, "50000", "GROUP_CONFIG"],
    ]
    assert topic_name in millstream("configs", "list", "group").stdout.split()
    assert millstream(*words, "--delete", setting).returncode == 0
    (row,) = [
        row
        for row in json.loads(
            millstream(
                "configs", "describe", "group", topic_name, "--all", "--format", "json"
            ).stdout
        )
        if row["name"] == setting
    ]
    assert (row["value"], row["default"]) == ("45000", True)
    assert topic_name not in millstream("configs", "list", "group").stdout.split()


def test_a_client_metrics_subscription_is_its_settings(millstream, topic_name: str):
    words = ("configs", "alter", "client-metrics", topic_name)
    done = millstream(
        *words, "--set", "interval.ms=5000", "--set", "metrics=org.apache.kafka.producer."
    )
    assert done.stdout == f"altered settings of client-metrics {topic_name}: interval.ms, metrics\n"
    rows = json.loads(
        millstream("configs", "describe", "client-metrics", topic_name, "--format", "json").stdout
    )
    assert {row["name"]: (row["value"], row["source"]) for row in rows} == {
        "interval.ms": ("5000", "CLIENT_METRICS_CONFIG"),
        "metrics": ("org.apache.kafka.producer.", "CLIENT_METRICS_CONFIG"),
    }
    listed = json.loads(millstream("configs", "list", "client-metrics", "--format", "json").stdout)
    assert topic_name in listed
    assert millstream(*words, "--delete", "interval.ms", "--delete", "metrics").returncode == 0
    assert topic_name not in millstream("configs", "list", "client-metrics").stdout.split()


@pytest.mark.parametrize(
    ("kind", "pair"),
    [
        ("group", "consumer.session.timeout.ms=soon"),
        ("group", "consumer.session.timeout.ms=1"),
        ("group", "no.such.setting=1"),
        ("client-metrics", "interval.ms=1"),
        ("client-metrics", "match=who=me"),
    ],
)
def test_a_wrong_setting_is_told_with_where_to_look(
    millstream, topic_name: str, kind: str, pair: str
):
    name = topic_name
    ran = millstream("configs", "alter", kind, name, "--set", pair)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith(f"error: cannot alter the settings of {kind} {name}: ")
    assert ran.stderr.endswith(
        f"; see the names and values with `millstream configs describe {kind} {name} --all`\n"
    )


def test_unknown_broker_setting_is_stored_and_noted(millstream):
    ran = millstream("configs", "alter", "broker", "0", "--set", "log.retention.hour=1")
    assert (ran.returncode, ran.stdout) == (0, "altered settings of broker 0: log.retention.hour\n")
    assert (
        "Unknown broker setting log.retention.hour; did you mean log.retention.hours?" in ran.stderr
    )
    assert "log.retention.hour" in millstream("configs", "describe", "broker", "0").stdout
    assert (
        millstream("configs", "alter", "broker", "0", "--delete", "log.retention.hour").returncode
        == 0
    )
    assert "log.retention.hour " not in millstream("configs", "describe", "broker", "0").stdout


def test_topics_and_brokers_are_listed(millstream, topic: str):
    assert topic in millstream("configs", "list", "topic").stdout.split()
    assert millstream("configs", "list", "broker").stdout == "0\n"
    misuse = millstream("configs", "list", "groups")
    assert (misuse.returncode, "'topic', 'broker', 'group', 'client-metrics'" in misuse.stderr) == (
        2,
        True,
    )
