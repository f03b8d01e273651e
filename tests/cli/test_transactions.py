"""``millstream transactions`` against a broker."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from millstream.client import Admin, Producer

Ran = subprocess.CompletedProcess[str]


@pytest.fixture
def millstream(quick_broker, quick_command) -> Callable[..., Ran]:
    return partial(quick_command, "transactions", bootstrap=quick_broker.bootstrap)


@pytest.fixture
def open_id(quick_broker, topic_name: str) -> Iterator[str]:
    """A transactional id, named as the topic in which its transaction is open."""
    with Admin(quick_broker.bootstrap) as admin:
        admin.topics.create(topic_name, partitions=1)
    producer = Producer(quick_broker.bootstrap, transactional_id=topic_name)
    producer.transaction().__enter__().send(topic_name, "open")
    producer.flush()
    yield topic_name
    producer.abandon()


def cells(shown: Ran) -> list[list[str]]:
    return [line.split() for line in shown.stdout.splitlines()]


def test_transactions_are_listed_and_described(millstream, open_id: str):
    head, *rows = cells(millstream("list", "--state", "ongoing"))
    assert head == ["TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "STATE"]
    (row,) = [row for row in rows if row[0] == open_id]
    assert (row[1], row[3]) == ("0", "Ongoing")
    (described,) = json.loads(millstream("describe", open_id, "--format", "json").stdout)
    assert described.pop("started_ms") > 0
    assert described == {
        "transactional_id": open_id,
        "coordinator": 0,
        "producer_id": int(row[2]),
        "producer_epoch": described["producer_epoch"],
        "state": "Ongoing",
        "timeout_ms": 60_000,
        "partitions": [[open_id, 0]],
    }
    (_, line) = cells(millstream("describe", open_id))
    assert (line[0], line[4], line[5], line[8]) == (open_id, "Ongoing", "1m", f"{open_id}-0")
    found = json.loads(millstream("list", "--producer-id", row[2], "--format", "json").stdout)
    assert found == [
        {
            "transactional_id": open_id,
            "producer_id": int(row[2]),
            "state": "Ongoing",
            "coordinator": 0,
        }
    ]
    none = millstream("list", "--match", open_id, "--longer-than", "1h")
    assert (none.stdout, none.stderr, none.returncode) == (
        "",
        f"no transactions match --longer-than 1h --match {open_id}\n",
        0,
    )


def test_what_a_coordinator_will_end_is_not_ended_past_it(millstream, open_id: str):
    hanging = millstream("hanging", open_id, "--idle", "0s")
    assert (hanging.stdout, hanging.stderr) == ("", "no hanging transactions in 1 partition\n")
    refused = millstream("abort", "--topic", open_id, "--partition", "0")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"is not hanging: it belongs to transactional id '{open_id}'" in refused.stderr
    assert refused.stderr.endswith(f"; wait, or run `millstream transactions abort {open_id}`\n")


def test_a_transaction_is_aborted_by_its_id(millstream, open_id: str):
    done = millstream("abort", open_id)
    assert (done.stdout, done.stderr, done.returncode) == (
        f"aborted the transaction of {open_id} in {open_id}-0\n",
        "",
        0,
    )
    again = millstream("abort", open_id)
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.startswith(
        f"error: transactional id '{open_id}' has no open transaction (it is "
    )


def test_a_transaction_without_its_coordinator_is_found_and_aborted(
    millstream, quick_broker, open_id: str
):
    """--force stands in for a coordinator that has forgotten: the marker is written past it."""
    words = ("abort", "--topic", open_id, "--partition", "0")
    assert millstream(*words, "--force").stdout.endswith(f" in {open_id}-0, open since offset 0\n")
    none = millstream(*words)
    assert (none.returncode, none.stdout) == (1, "")
    assert none.stderr.startswith(f"error: no transaction is open in {open_id}-0; see ")
    other = millstream(*words, "--producer-id", "999999")
    assert other.stderr.startswith(
        f"error: no transaction is open in {open_id}-0 by producer 999999; "
    )


def test_an_unknown_id_is_one_line(millstream, open_id: str):
    for words in (("describe", open_id + "x"), ("abort", open_id + "x")):
        ran = millstream(*words)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert ran.stderr.startswith(
            f"error: transactional id '{open_id}x' does not exist; did you mean "
        )
        assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["list", "--state", "open"], "Invalid value for '--state'"),
        (["list", "--longer-than", "soon"], "'soon' is not a duration"),
        (["describe"], "Missing argument"),
        (["hanging", "--idle", "x"], "'x' is not a duration"),
        (["abort"], "give an ID, or --topic and --partition"),
        (
            ["abort", "id", "--topic", "t", "--partition", "0"],
            "give an ID, or --topic and --partition",
        ),
        (["abort", "--topic", "t"], "give an ID, or --topic and --partition"),
        (["abort", "id", "--producer-id", "3"], "give an ID, or --topic and --partition"),
    ],
    ids=" ".join,
)
def test_misuse_of_transactions_exits_2(quick_command, words: list[str], complaint: str):
    ran = quick_command("transactions", *words)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert complaint in " ".join(ran.stderr.split())
