"""``millstream groups`` and ``millstream consume --group`` against a broker."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import partial

import pytest

from millstream.client import Admin, Consumer, Producer, produce
from millstream.core.types import TopicPartition

Ran = subprocess.CompletedProcess[str]


@pytest.fixture
def millstream(quick_broker, quick_command) -> Callable[..., Ran]:
    """Run a command against the broker whose groups begin at once."""
    return partial(quick_command, bootstrap=quick_broker.bootstrap)


@pytest.fixture
def group(quick_broker, topic_name: str) -> str:
    """A group named as its topic, which has 10 and 4 records and keeps 3 to 9 and 0 to 3; committed
    at 5 and 4.
    """
    first, second = TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)
    with Admin(quick_broker.bootstrap) as admin, Producer(quick_broker.bootstrap) as producer:
        admin.topics.create(topic_name, partitions=2)
        for partition, count in ((0, 10), (1, 4)):
            for number in range(count):
                producer.send(topic_name, str(number), partition=partition)
        producer.flush()
        admin.offsets.delete_records({first: 3})
        admin.groups.alter(topic_name, {first: 5, second: 4})
    return topic_name


def cells(shown: Ran) -> list[list[str]]:
    return [line.split() for line in shown.stdout.splitlines()]


def test_groups_are_listed(millstream, group: str):
    rows = cells(millstream("groups", "list"))
    assert rows[0] == ["GROUP", "TYPE", "PROTOCOL", "STATE"]
    assert [group, "classic", "-", "Empty"] in rows
    assert group in millstream("groups", "list", "--names", "--state", "empty").stdout.split()
    assert group not in millstream("groups", "list", "--names", "--state", "Stable").stdout.split()
    assert group not in millstream("groups", "list", "--names", "--type", "consumer").stdout.split()
    listed = json.loads(millstream("groups", "list", "--format", "json").stdout)
    assert {"group": group, "type": "classic", "protocol": "", "state": "Empty"} in listed


def test_a_group_is_described_with_lag_and_lead(millstream, group: str):
    shown = millstream("groups", "describe", group)
    head = "GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG LEAD CONSUMER-ID HOST CLIENT-ID"
    assert cells(shown) == [
        head.split(),
        [group, group, "0", "5", "10", "5", "2", "-", "-", "-"],
        [group, group, "1", "4", "4", "0", "4", "-", "-", "-"],
    ]
    assert (shown.stderr, shown.returncode) == (f"group {group} has no members\n", 0)
    rows = json.loads(millstream("groups", "describe", group, "--format", "json").stdout)
    assert rows[0] == {
        "group": group,
        "topic": group,
        "partition": 0,
        "current_offset": 5,
        "log_start_offset": 3,
        "log_end_offset": 10,
        "lag": 5,
        "lead": 2,
        "consumer_id": None,
        "host": None,
        "client_id": None,
    }


def test_an_active_group_shows_its_members_and_is_not_touched(millstream, quick_broker, group: str):
    named = {"client.id": "reader"}
    with Consumer(
        quick_broker.bootstrap, group, group=group, options=named, until_end=True
    ) as consumer:
        assert len(list(consumer)) == 5
        assert consumer.membership is not None
        consumer_id = consumer.membership.client.memberid()
        rows = cells(millstream("groups", "describe", group))
        assert [row[5:8] for row in rows[1:]] == [["0", "7", consumer_id], ["0", "4", consumer_id]]
        assert {row[9] for row in rows[1:]} == {"reader"}
        (_, row) = cells(millstream("groups", "describe", group, "--members"))
        assert (row[1], row[3:]) == (consumer_id, ["reader", "2", f"{group}(0,1)"])
        (_, row) = cells(millstream("groups", "describe", group, "--state"))
        assert row[3:] == ["cooperative-sticky", "classic", "Stable", "1"]
        for words in (
            ("reset-offsets", group, "--all-topics", "--to-earliest"),
            ("reset-offsets", group, "--all-topics", "--to-earliest", "--execute"),
            ("delete", group),
            ("delete-offsets", group, "--topic", group),
        ):
            ran = millstream("groups", *words)
            assert (ran.returncode, ran.stdout) == (1, "")
            assert ran.stderr.startswith("error: cannot ") and "; stop " in ran.stderr
            assert ran.stderr.count("\n") == 1


def test_a_reset_is_shown_first_and_done_when_told(millstream, quick_broker, group: str):
    shown = millstream("groups", "reset-offsets", group, "--all-topics", "--shift-by", "-3")
    assert [row[:5] for row in cells(shown)] == [
        ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET"],
        [group, group, "0", "5", "3"],
        [group, group, "1", "4", "1"],
    ]
    assert "nearest existing offset" in shown.stdout.splitlines()[1]
    assert (shown.stderr, shown.returncode) == ("nothing changed yet; add --execute to apply\n", 0)
    with Admin(quick_broker.bootstrap) as admin:
        first, second = TopicPartition(group, 0), TopicPartition(group, 1)
        assert admin.groups.committed(group) == {first: 5, second: 4}
        words = ("groups", "reset-offsets", group, "--topic", f"{group}:1", "--execute")
        done = millstream(*words, "--to-offset", "2", "--format", "json")
        assert json.loads(done.stdout) == [
            {
                "group": group,
                "topic": group,
                "partition": 1,
                "current_offset": 4,
                "new_offset": 2,
                "limited": False,
                "changed": True,
            }
        ]
        assert done.stderr == f"set 1 offset of group {group}\n"
        assert (done.returncode, admin.groups.committed(group)) == (0, {first: 5, second: 2})
        for option, expected in (
            (("--to-earliest",), 0),
            (("--to-latest",), 4),
            (("--by-duration", "PT1H"), 0),
            (("--by-duration", "0s"), 4),
            (("--to-datetime", "2001-01-01T00:00:00Z"), 0),
        ):
            assert millstream(*words, *option).returncode == 0
            assert admin.groups.committed(group) == {first: 5, second: expected}, option


def test_a_reset_tells_what_it_did_also_when_that_is_nothing(millstream, group: str):
    words = ("groups", "reset-offsets", group, "--all-topics", "--to-latest", "--execute")
    done = millstream(*words)
    assert [row[3:] for row in cells(done)[1:]] == [["5", "10"], ["4", "4", "no", "change"]]
    assert done.stderr == f"set 1 offset of group {group}; 1 unchanged\n"
    again = millstream(*words)
    assert [row[3:] for row in cells(again)[1:]] == [
        ["10", "10", "no", "change"],
        ["4", "4", "no", "change"],
    ]
    assert (again.stderr, again.returncode) == (
        f"nothing to change: group {group} already has these offsets\n",
        0,
    )
    rows = json.loads(millstream(*words, "--format", "json").stdout)
    assert [(row["new_offset"], row["changed"]) for row in rows] == [(10, False), (4, False)]


def test_a_reset_that_begins_a_group_says_so(millstream, group: str):
    words = ("groups", "reset-offsets", group + "-new", "--topic", f"{group}:0", "--to-latest")
    shown = millstream(*words)
    assert shown.stderr.splitlines()[-1] == f"group {group}-new does not exist yet"
    done = millstream(*words, "--execute")
    assert done.stderr.splitlines() == [
        f"set 1 offset of group {group}-new",
        f"group {group}-new did not exist before",
    ]
    assert "exist" not in millstream(*words).stderr


def test_a_name_cannot_move_the_cursor(millstream, quick_broker, group: str):
    name = group + "\x1b[2J\n"
    with Admin(quick_broker.bootstrap) as admin:
        admin.groups.alter(name, {TopicPartition(group, 0): 5})
    shown = millstream("groups", "list").stdout
    assert "\x1b" not in shown
    assert group + r"\x1b[2J\n" in shown
    assert millstream("groups", "delete", name).returncode == 0


def test_each_group_to_delete_is_told_of(millstream, group: str):
    both = millstream("groups", "delete", "nothing-like-it", group)
    assert (both.returncode, both.stdout) == (1, f"deleted group {group}\n")
    assert both.stderr.startswith("error: group 'nothing-like-it' does not exist; ")
    rows = json.loads(millstream("groups", "delete", group, "--format", "json").stdout)
    assert [(row["group"], row["deleted"]) for row in rows] == [(group, False)]
    assert "does not exist" in rows[0]["error"]


def test_offsets_and_groups_are_deleted(millstream, group: str):
    words = ("groups", "delete-offsets", group, "--topic", f"{group}:0")
    assert (
        millstream(*words).stdout == f"deleted the offset of group {group} for {group}-0 (was 5)\n"
    )
    assert millstream(*words).stderr == f"group {group} has no committed offsets for {group}:0\n"
    assert millstream("groups", "delete", group).stdout == f"deleted group {group}\n"
    gone = millstream("groups", "describe", group)
    assert (gone.returncode, gone.stdout) == (1, "")
    assert gone.stderr.startswith(f"error: group '{group}' does not exist; ")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["list", "--state", "Stabel"], "Invalid value for '--state'"),
        (["describe"], "Missing argument"),
        (["describe", "g", "--members", "--state"], "give --members or --state, not both"),
        (
            ["reset-offsets", "g", "--to-latest"],
            "give --topic TOPIC[:PARTITION,...] or --all-topics",
        ),
        (["reset-offsets", "g", "--topic", "t", "--all-topics", "--to-latest"], "or --all-topics"),
        (["reset-offsets", "g", "--all-topics"], "give exactly one of --to-earliest"),
        (
            ["reset-offsets", "g", "--all-topics", "--to-latest", "--shift-by", "1"],
            "give exactly one of --to-earliest",
        ),
        (
            ["reset-offsets", "g", "--all-topics", "--by-duration", "soon"],
            "'soon' is not a duration",
        ),
        (
            ["reset-offsets", "g", "--all-topics", "--to-datetime", "5"],
            "'5' is not a point in time",
        ),
        (
            ["reset-offsets", "g", "--all-topics", "--to-datetime", "yesterday"],
            "'yesterday' is not a point in time; give a date and a time, as in 2026-03-01T12:00:00",
        ),
        (
            ["reset-offsets", "g", "--all-topics", "--to-latest", "--execute", "--dry-run"],
            "not both",
        ),
        (["delete-offsets", "g"], "give --topic"),
    ],
    ids=" ".join,
)
def test_misuse_of_groups_exits_2(quick_command, words: list[str], complaint: str):
    ran = quick_command("groups", *words)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert complaint in " ".join(ran.stderr.split())


def test_topics_of_a_reset_have_to_exist(millstream, group: str):
    words = ("groups", "reset-offsets", group, "--to-latest", "--topic")
    for topic, complaint in (
        (group + "x", f"error: topic '{group}x' does not exist"),
        (group + ":7", f"error: topic '{group}' has no partition 7"),
    ):
        ran = millstream(*words, topic)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert ran.stderr.startswith(complaint)
    assert millstream(*words, group + ":x").returncode == 2


def test_consuming_in_a_group_commits_what_was_printed(millstream, quick_broker, group: str):
    words = ("consume", group, "--group", group + "-2", "--exit")
    assert sorted(millstream(*words).stdout.split()) == sorted("3456789" + "0123")
    assert millstream(*words).stdout == ""
    produce(quick_broker.bootstrap, group, ["new", "newer"])
    assert millstream(*words, "-n", "1").stdout.count("\n") == 1
    assert millstream(*words).stdout.count("\n") == 1
    assert millstream(*words).stdout == ""
    misuse = millstream(*words, "-p", "0")
    assert (misuse.returncode, misuse.stdout) == (2, "")
