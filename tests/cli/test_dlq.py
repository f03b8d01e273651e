"""``millstream dlq`` against a broker."""

from __future__ import annotations

import json
import subprocess

import pytest

from millstream.client import Producer, consume

Ran = subprocess.CompletedProcess[str]
AT_MS = 1_767_225_600_000


@pytest.fixture
def buried(shared_broker, topic: str, millstream) -> str:
    """A topic whose dead-letter topic has three records: of two reasons, the last of them binary,
    without an origin.
    """
    # the records are of long ago, and a broker may apply retention at any time
    for_ever = "retention.ms=-1"
    assert (
        millstream(
            "topics", "create", topic + ".dlq", "--partitions", "1", "--config", for_ever
        ).returncode
        == 0
    )
    assert millstream("topics", "alter", topic, "--config", for_ever).returncode == 0
    with Producer(shared_broker.bootstrap) as producer:
        for offset, (reason, value, refused_by) in enumerate(
            [
                ("not JSON", b"{\x1b[2J", {"dlq.pipeline": "revenue"}),
                (
                    "field 'n' is missing",
                    b'{"m":1}',
                    {"dlq.pipeline": "shop", "dlq.flow": "connect"},
                ),
            ]
        ):
            about = [
                ("dlq.reason", reason),
                ("dlq.topic", topic),
                ("dlq.partition", "1"),
                ("dlq.offset", str(offset)),
                ("dlq.timestamp", str(AT_MS)),
                *refused_by.items(),
                ("trace", "abc"),
            ]
            producer.send(topic + ".dlq", value, key="k", headers=about, timestamp_ms=AT_MS + 1000)
    return topic


def cells(shown: Ran) -> list[list[str]]:
    return [line.split() for line in shown.stdout.splitlines()]


def test_dead_letter_topics_are_listed(millstream, buried: str):
    shown = millstream("dlq", "list")
    (row,) = [row for row in cells(shown) if row[0] == buried + ".dlq"]
    assert (row, shown.returncode) == (
        [
            buried + ".dlq",
            "2",
            "2",
            "2026-01-01T00:00:01Z",
            "revenue,",
            "shop/connect",
            "field",
            "'n'",
            "is",
            "missing",
        ],
        0,
    )
    listed = json.loads(millstream("dlq", "list", "--format", "json").stdout)
    (one,) = [one for one in listed if one["topic"] == buried + ".dlq"]
    assert (one["records"], one["left"], one["newest"]["reason"]) == (2, 2, "field 'n' is missing")
    assert one["refused_by"] == [
        {"pipeline": "revenue", "flow": None, "records": 1},
        {"pipeline": "shop", "flow": "connect", "records": 1},
    ]
    listed = json.loads(millstream("dlq", "list", "--flow", "connect", "--format", "json").stdout)
    (one,) = [one for one in listed if one["topic"] == buried + ".dlq"]
    assert (one["records"], one["newest"]["pipeline"], one["newest"]["flow"]) == (
        1,
        "shop",
        "connect",
    )
    assert (
        millstream("dlq", "list", "--pipeline", "none-such").stderr
        == "no dead letters match --pipeline none-such\n"
    )


def test_dead_letters_are_shown_with_origin_and_reason(millstream, buried: str):
    shown = millstream("dlq", "show", buried)
    head, *rows = shown.stdout.splitlines()
    assert head.split() == [
        "OFFSET",
        "ORIGIN",
        "TIME",
        "REFUSED",
        "BY",
        "REDRIVEN",
        "REASON",
        "VALUE",
    ]
    assert [row.split(maxsplit=5) for row in rows] == [
        [
            "0:0",
            f"{buried}-1:0",
            "2026-01-01T00:00:00Z",
            "revenue",
            "0",
            r"not JSON              {\x1b[2J",
        ],
        [
            "0:1",
            f"{buried}-1:1",
            "2026-01-01T00:00:00Z",
            "shop/connect",
            "0",
            "field 'n' is missing  {\"m\":1}",
        ],
    ]
    for words in (("--pipeline", "shop"), ("--flow", "connect")):
        (found,) = json.loads(millstream("dlq", "show", buried, *words, "--format", "json").stdout)
        assert (found["pipeline"], found["flow"], found["offset"]) == ("shop", "connect", 1)
    other = millstream("dlq", "show", buried, "--pipeline", "shop", "--flow", "other")
    assert other.stderr == f"no dead letters in {buried}.dlq match --pipeline shop --flow other\n"
    last = millstream("dlq", "show", buried, "--limit", "1")
    assert len(last.stdout.splitlines()) == 2
    assert last.stderr == "showing the last 1 of 2; use --limit N to show more\n"
    (found,) = json.loads(
        millstream("dlq", "show", buried + ".dlq", "--reason", "json", "--format", "json").stdout
    )
    assert found == {
        "topic": buried,
        "partition": 1,
        "offset": 0,
        "timestamp": AT_MS,
        "reason": "not JSON",
        "source": None,
        "pipeline": "revenue",
        "flow": None,
        "redriven": 0,
        "key": "k",
        "value": "{\x1b[2J",
        "headers": [["trace", "abc"]],
        "dead_letter": {
            "topic": buried + ".dlq",
            "partition": 0,
            "offset": 0,
            "timestamp": AT_MS + 1000,
        },
    }


def test_a_redrive_is_shown_first_and_then_done(millstream, shared_broker, buried: str):
    shown = millstream("dlq", "redrive", buried)
    assert cells(shown) == [
        ["FROM", "TO", "PARTITION", "RECORDS"],
        [buried + ".dlq", buried, "1", "2"],
    ]
    assert (shown.stderr, shown.returncode) == ("nothing sent yet; add --execute to send\n", 0)
    assert consume(shared_broker.bootstrap, buried) == []
    one = millstream("dlq", "redrive", buried, "--reason", "JSON", "--execute", "--format", "json")
    assert json.loads(one.stdout) == {
        "topic": buried + ".dlq",
        "executed": True,
        "sent": [{"topic": buried, "partition": 1, "records": 1, "expired": 0}],
        "kept": 0,
        "repeated": 0,
        "newer": 0,
        "newer_examples": [],
    }
    assert millstream("dlq", "redrive", buried, "--execute").stderr == ""
    found = consume(shared_broker.bootstrap, buried)
    assert [(row.value, row.partition, row.timestamp_ms) for row in found] == [
        (b"{\x1b[2J", 1, AT_MS),
        (b'{"m":1}', 1, AT_MS),
    ]
    again = millstream("dlq", "redrive", buried, "--execute")
    assert (again.stdout, again.stderr) == ("", f"nothing to send from {buried}.dlq\n")
    assert millstream("dlq", "show", buried).stderr == f"no dead letters in {buried}.dlq\n"
    assert len(millstream("dlq", "show", buried, "--all").stdout.splitlines()) == 3


def test_a_redrive_of_what_retention_would_take_has_to_be_meant(
    millstream, shared_broker, buried: str
):
    assert (
        millstream("configs", "alter", "topic", buried, "--set", "retention.ms=60000").returncode
        == 0
    )
    words = ("dlq", "redrive", buried)
    shown = millstream(*words)
    assert cells(shown)[1] == [buried + ".dlq", buried, "1", "2"]
    told = (
        f"2 of 2 records are older than the retention of {buried} (retention.ms=60000), "
        "which may delete them before they are read"
    )
    choice = "; give them new timestamps with --timestamps now, send them unchanged with --timestamps original"
    assert f"\n--execute will refuse: {told}{choice}" in shown.stderr
    refused = millstream(*words, "--execute")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith(f"error: {told}{choice}")
    assert consume(shared_broker.bootstrap, buried) == []
    meant = millstream(*words, "--timestamps", "original", "--format", "json")
    assert json.loads(meant.stdout)["sent"][0]["expired"] == 2
    assert meant.stderr == f"warning: {told}\n"
    done = millstream(*words, "--timestamps", "now", "--execute")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(one.timestamp_ms > AT_MS for one in consume(shared_broker.bootstrap, buried))


def test_letters_about_one_record_are_told_and_sent_once(millstream, shared_broker, buried: str):
    with Producer(shared_broker.bootstrap) as producer:
        about = {"dlq.topic": buried, "dlq.partition": 1, "dlq.offset": 0, "dlq.timestamp": AT_MS}
        headers = {name: str(value) for name, value in about.items()}
        producer.send(buried + ".dlq", b"{\x1b[2J", key="k", headers=headers)
    shown = millstream("dlq", "redrive", buried, "--reason", "JSON", "--execute")
    assert cells(shown)[1] == [buried + ".dlq", buried, "1", "1"]
    shown = millstream("dlq", "redrive", buried, "--execute")
    assert shown.stderr.startswith(
        "skipped 1 repeated dead letter: the record is sent only once, or was sent back earlier;"
    )
    assert len(consume(shared_broker.bootstrap, buried)) == 2


def test_letter_with_a_newer_record_of_its_key_is_told_and_stays(
    millstream, shared_broker, buried: str
):
    with Producer(shared_broker.bootstrap) as producer:
        for value in ("bad", "bad", "good"):
            producer.send(buried, value, key="k", partition=1)
    shown = millstream("dlq", "redrive", buried, "--execute")
    assert shown.stderr.splitlines() == [
        f"nothing to send from {buried}.dlq",
        "kept 2 records because the topic has a newer record with the same key; "
        "use --overwrite-newer to send them",
        f"  {buried}-1:0, key k: newer record at 1:2",
        f"  {buried}-1:1, key k: newer record at 1:2",
    ]
    told = json.loads(millstream("dlq", "redrive", buried, "--format", "json").stdout)
    assert (told["newer"], told["newer_examples"][1]) == (
        2,
        {
            "topic": buried,
            "partition": 1,
            "offset": 1,
            "key": "k",
            "newer": {"partition": 1, "offset": 2},
            "dead_letter": {"partition": 0, "offset": 1},
        },
    )
    done = millstream(
        "dlq", "redrive", buried, "--pipeline", "shop", "--overwrite-newer", "--execute"
    )
    assert cells(done)[1] == [buried + ".dlq", buried, "1", "1"]
    assert [one.value for one in consume(shared_broker.bootstrap, buried)][3:] == [b'{"m":1}']


def test_misuse_and_unknown_names_are_told(millstream, topic: str):
    both = millstream("dlq", "redrive", topic, "--execute", "--dry-run")
    assert (both.returncode, "not both" in both.stderr) == (2, True)
    unknown = millstream("dlq", "show", "nothing-like-it")
    assert unknown.returncode == 1
    assert unknown.stderr.startswith("error: topic 'nothing-like-it' has no dead letters; ")
