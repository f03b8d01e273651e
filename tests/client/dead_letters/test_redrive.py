"""Dead letters and their redrive: each record once, whatever happens to the process."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from millstream.client import Admin, ClientError, Producer, UnknownPartition, UnknownTopic, consume
from millstream.client.admin.offsets import Isolation, Spec
from millstream.client.dead_letters.letters import (
    DeadLetter,
    Identity,
    dead_letter,
    find,
    read,
    redrive_group,
    summary,
)
from millstream.client.dead_letters.newer_records import NewestRecords
from millstream.client.dead_letters.redrive import (
    Redriven,
    RedriveRequest,
    Target,
    WithheldLetter,
    execute,
    plan,
)
from millstream.client.record import Record
from millstream.core.types import TopicPartition

Bury = Callable[..., None]
# The records here have old timestamps.
FOR_EVER = {"retention.ms": "-1"}


@pytest.fixture
def admin(shared_broker):
    with Admin(shared_broker.bootstrap) as made:
        yield made


@pytest.fixture
def origin(admin: Admin, topic_name: str) -> str:
    """A topic with three partitions, and its dead-letter topic with two."""
    admin.topics.create(topic_name, partitions=3, configs=FOR_EVER)
    admin.topics.create(topic_name + ".dlq", partitions=2, configs=FOR_EVER)
    return topic_name


@pytest.fixture
def bury(shared_broker, origin: str) -> Bury:
    """Write dead letters of the origin.

    Their partitions in the dead-letter topic and in the origin alternate.
    """

    def write(
        count: int,
        *,
        reason: str = "not JSON",
        first: int = 0,
        origin_topic: str | None = origin,
        pipeline: str = "p",
    ) -> None:
        with Producer(shared_broker.bootstrap) as producer:
            for number in range(first, first + count):
                about = [
                    ("dlq.reason", reason),
                    *([("dlq.topic", origin_topic)] if origin_topic else []),
                    ("dlq.partition", str(number % 3)),
                    ("dlq.offset", str(number)),
                    ("dlq.timestamp", str(1_700_000_000_000 + number)),
                    ("dlq.pipeline", pipeline),
                    ("trace", b"\x00\xff"),
                ]
                producer.send(
                    origin + ".dlq",
                    str(number),
                    key=f"k{number}",
                    headers=about,
                    partition=number % 2,
                )

    return write


def test_headers_of_a_letter_are_parsed():
    about = [
        ("a", b"1"),
        ("dlq.reason", b"why"),
        ("dlq.topic", b"t"),
        ("dlq.partition", b"2"),
        ("dlq.offset", b"x"),
    ]
    record = Record(
        "t.dlq", 0, 5, 7, "create", None, b"v", (*about, ("dlq.redriven", b"3"), ("a", None))
    )
    letter = dead_letter(record)
    assert letter == (record, "why", "t", 2, None, None, None, 3, None, None, None)
    assert letter.headers == (("a", b"1"), ("a", None))
    assert dead_letter(record._replace(headers=()))[1:] == (None,) * 6 + (0,) + (None,) * 3


def test_dead_letters_go_back_unchanged_to_topic_and_partition(shared_broker, admin, origin, bury):
    bury(6)
    request = RedriveRequest(origin + ".dlq")
    expected = Redriven({Target(origin, number): 2 for number in range(3)}, 0)
    assert plan(admin, request) == expected
    assert consume(shared_broker.bootstrap, origin) == []
    assert execute(admin, request) == expected
    records = sorted(
        consume(shared_broker.bootstrap, origin), key=lambda record: int(record.value or b"")
    )
    assert [
        (record.partition, record.timestamp_ms, record.key, record.value, record.headers)
        for record in records
    ] == [
        (
            number % 3,
            1_700_000_000_000 + number,
            f"k{number}".encode(),
            str(number).encode(),
            (
                ("trace", b"\x00\xff"),
                ("dlq.redriven", b"1"),
                (
                    "dlq.first",
                    f"{origin}-{number % 3}:{number}@{1_700_000_000_000 + number}".encode(),
                ),
            ),
        )
        for number in range(6)
    ]
    assert plan(admin, request) == execute(admin, request) == Redriven({}, 0)
    assert summary(admin, request.topic)[1:3] == (6, 0)


def test_next_redrive_sends_only_new_letters(shared_broker, admin, origin, bury):
    request = RedriveRequest(origin + ".dlq")
    bury(4)
    assert execute(admin, request).count == 4
    bury(2, first=4)
    assert execute(admin, request).count == 2
    values = [record.value for record in consume(shared_broker.bootstrap, origin)]
    assert sorted(values) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_letters_that_do_not_match_the_filter_stay(shared_broker, admin, origin, bury):
    bury(3, reason="field 'a' is missing")
    bury(3, reason="not JSON", first=3)
    bury(2, reason="field 'a' is missing", first=6)
    done = execute(admin, RedriveRequest(origin + ".dlq", reason="NOT json"))
    assert done.count == 3
    assert sorted(record.value or b"" for record in consume(shared_broker.bootstrap, origin)) == [
        b"3",
        b"4",
        b"5",
    ]
    committed = admin.groups.committed(redrive_group(origin + ".dlq"))
    left = list(read(shared_broker.bootstrap, origin + ".dlq", committed, timeout_s=120))
    assert sorted((letter.record.value, letter.reason, letter.offset) for letter in left) == [
        (str(number).encode(), "field 'a' is missing", number) for number in (0, 1, 2, 6, 7)
    ]
    assert execute(admin, RedriveRequest(origin + ".dlq", reason="no such")) == Redriven({}, 5)
    assert execute(admin, RedriveRequest(origin + ".dlq")).count == 5
    values = Counter(record.value for record in consume(shared_broker.bootstrap, origin))
    assert values == Counter(str(number).encode() for number in range(8))


def test_limit_leaves_the_rest_for_later(shared_broker, admin, origin, bury):
    bury(10)
    request = RedriveRequest(origin + ".dlq", limit=3)
    assert [execute(admin, request, batch_records=2).count for _ in range(4)] == [3, 3, 3, 1]
    values = Counter(record.value for record in consume(shared_broker.bootstrap, origin))
    assert values == Counter(str(number).encode() for number in range(10))


def test_redrive_to_another_topic_partitions_by_key(shared_broker, admin, origin, bury):
    bury(4)
    admin.topics.create(origin + "-other", partitions=2, configs=FOR_EVER)
    other = origin + "-other"
    assert execute(admin, RedriveRequest(origin + ".dlq", to=other)) == Redriven(
        {Target(other, None): 4}, 0
    )
    assert len(consume(shared_broker.bootstrap, other)) == 4
    assert consume(shared_broker.bootstrap, origin) == []


def test_number_of_redrives_is_counted(shared_broker, admin, origin):
    about = {
        "dlq.topic": origin,
        "dlq.partition": "0",
        "dlq.redriven": "4",
        "dlq.reason": "still bad",
    }
    with Producer(shared_broker.bootstrap) as producer:
        producer.send(origin + ".dlq", "v", headers=about)
    execute(admin, RedriveRequest(origin + ".dlq"))
    (record,) = consume(shared_broker.bootstrap, origin)
    assert dict(record.headers)["dlq.redriven"] == b"5"


def test_unsendable_letters_are_rejected_before_any_is_sent(shared_broker, admin, origin, bury):
    bury(2)
    bury(1, origin_topic=None, first=2)
    for words, kind, to in (
        (
            r"has no header with its original topic; choose a topic for such records with --to TOPIC",
            ClientError,
            None,
        ),
        ("does not exist", UnknownTopic, "nowhere"),
    ):
        with pytest.raises(kind, match=words):
            execute(admin, RedriveRequest(origin + ".dlq", to=to))
    with Producer(shared_broker.bootstrap) as producer:
        about = {"dlq.topic": origin, "dlq.partition": "7", "dlq.reason": "gone"}
        producer.send(origin + ".dlq", "v", headers=about, partition=0)
    with pytest.raises(UnknownPartition, match="has no partition 7 any more"):
        plan(admin, RedriveRequest(origin + ".dlq", reason="gone"))
    assert consume(shared_broker.bootstrap, origin) == []
    assert admin.groups.committed(redrive_group(origin + ".dlq")) == {}


def test_expired_records_are_not_sent_without_a_choice_of_timestamps(
    shared_broker, admin, origin, bury
):
    admin.configs.alter("topic", origin, {"retention.ms": "3600000"})
    bury(2)
    with Producer(shared_broker.bootstrap) as producer:
        about = {"dlq.topic": origin, "dlq.partition": "0", "dlq.reason": "new"}
        producer.send(origin + ".dlq", "young", headers=about, partition=0)
    request = RedriveRequest(origin + ".dlq")
    first, second = Target(origin, 0), Target(origin, 1)
    planned = Redriven({first: 2, second: 1}, 0, {first: 1, second: 1})
    assert plan(admin, request) == planned
    reason = r"2 of 3 records are older than the retention of \S+ \(retention.ms=3600000\), .*--timestamps now"
    with pytest.raises(ClientError, match=reason):
        execute(admin, request)
    assert consume(shared_broker.bootstrap, origin) == []
    renewed = replace(request, timestamps="now", limit=1)
    assert plan(admin, renewed).expired_count == 0
    before_ms = int(time.time() * 1000)
    assert execute(admin, renewed).count == 1
    (record,) = consume(shared_broker.bootstrap, origin)
    assert record.timestamp_ms >= before_ms
    # Partitions are read in any order: the first record sent is the old one of either.
    left, sent = {b"0": (b"1", {first: 1, second: 1}), b"1": (b"0", {first: 2})}[
        record.value or b""
    ]
    expired = {Target(origin, int(left)): 1}
    assert execute(admin, replace(request, timestamps="original")) == Redriven(sent, 0, expired)
    times = {
        record.value: record.timestamp_ms for record in consume(shared_broker.bootstrap, origin)
    }
    assert times[left] == 1_700_000_000_000 + int(left)


@pytest.mark.parametrize(
    "configs",
    [
        {"cleanup.policy": "compact", "retention.ms": "1000"},
        {"message.timestamp.type": "LogAppendTime", "retention.ms": "1000"},
        {"retention.ms": "-1"},
    ],
    ids=["compacted", "stamped", "for-ever"],
)
def test_timestamps_do_not_matter_without_time_based_retention(admin, origin, bury, configs):
    other = origin + "-kept"
    admin.topics.create(other, partitions=1, configs=configs)
    bury(2)
    request = RedriveRequest(origin + ".dlq", to=other)
    assert plan(admin, request) == execute(admin, request) == Redriven({Target(other, None): 2}, 0)


def test_name_means_its_dead_letter_topic_or_itself(admin, origin):
    assert find(admin, origin) == find(admin, origin + ".dlq") == origin + ".dlq"
    with pytest.raises(UnknownTopic, match="topic 'nothing-like-it' has no dead letters"):
        find(admin, "nothing-like-it")


# ---- several letters about one record ----


def write_letter(
    bootstrap: str, origin: str, *, partition: int = 0, key: str | None = "k", **about: object
) -> None:
    """Write a letter about a record of the origin, with defaults for the rest."""
    value = about.pop("value", b"bad")
    said = {"topic": origin, "partition": 0, "offset": 0, "timestamp": 1_700_000_000_000} | about
    headers = {f"dlq.{name}": str(content) for name, content in said.items() if content is not None}
    with Producer(bootstrap) as producer:
        producer.send(origin + ".dlq", value, key=key, headers=headers, partition=partition)


def write(
    bootstrap: str, topic: str, key: str | None, value: str | None, partition: int = 0
) -> None:
    with Producer(bootstrap) as producer:
        producer.send(topic, value, key=key, partition=partition)


def values(bootstrap: str, topic: str) -> list[bytes | None]:
    return [record.value for record in consume(bootstrap, topic)]


def test_record_with_three_letters_goes_back_once(shared_broker, admin, origin):
    for number in range(3):
        write_letter(shared_broker.bootstrap, origin, pipeline=f"p{number}", partition=number % 2)
    request = RedriveRequest(origin + ".dlq")
    expected = Redriven({Target(origin, 0): 1}, 0, repeated=2)
    assert plan(admin, request) == execute(admin, request) == expected
    assert values(shared_broker.bootstrap, origin) == [b"bad"]
    assert summary(admin, request.topic).left == 0
    assert plan(admin, request) == Redriven({}, 0)


def test_later_letter_about_a_redriven_record_sends_nothing(shared_broker, admin, origin):
    request = RedriveRequest(origin + ".dlq")
    write_letter(shared_broker.bootstrap, origin, pipeline="early")
    assert execute(admin, request).count == 1
    write_letter(shared_broker.bootstrap, origin, pipeline="late", partition=1)
    assert execute(admin, request) == Redriven({}, 0, repeated=1)
    assert values(shared_broker.bootstrap, origin) == [b"bad"]
    assert summary(admin, request.topic).left == 0
    # Another record has another offset, or, in a recreated topic, another timestamp.
    write_letter(shared_broker.bootstrap, origin, offset=1, key="j")
    write_letter(shared_broker.bootstrap, origin, timestamp=1_700_000_000_001, key="i")
    assert execute(admin, request).count == 2
    # Another topic has not received it.
    admin.topics.create(origin + "-other", partitions=1, configs=FOR_EVER)
    write_letter(shared_broker.bootstrap, origin, pipeline="later")
    assert execute(admin, replace(request, to=origin + "-other")).count == 1


def test_record_is_sent_again_only_on_request(shared_broker, admin, origin):
    request = RedriveRequest(origin + ".dlq")
    for pipeline in ("one", "two"):
        write_letter(shared_broker.bootstrap, origin, pipeline=pipeline, key=None)
    assert execute(admin, request).count == 1
    admin.groups.alter(redrive_group(request.topic), {TopicPartition(request.topic, 0): 0})
    assert plan(admin, request) == Redriven({}, 0, repeated=2)
    assert execute(admin, replace(request, again=True)) == Redriven(
        {Target(origin, 0): 1}, 0, repeated=1
    )
    assert values(shared_broker.bootstrap, origin) == [b"bad", b"bad"]


def test_pipeline_and_flow_choose_letters(shared_broker, admin, origin):
    for number, (pipeline, flow) in enumerate([("p", "a"), ("p", "b"), ("q", None)]):
        write_letter(
            shared_broker.bootstrap, origin, offset=number, key=None, pipeline=pipeline, flow=flow
        )
    request = RedriveRequest(origin + ".dlq")
    counts = [
        plan(admin, replace(request, pipeline=pipeline, flow=flow)).count
        for pipeline, flow in (
            (None, None),
            ("p", None),
            ("p", "b"),
            ("q", None),
            ("q", "b"),
            (None, "a"),
        )
    ]
    assert counts == [3, 2, 1, 1, 0, 1]
    counts = summary(admin, request.topic)
    assert {str(who): count for who, count in counts.refused_by.items()} == {
        "p/a": 1,
        "p/b": 1,
        "q": 1,
    }
    assert summary(admin, request.topic, pipeline="p").records == 2
    assert execute(admin, replace(request, pipeline="q")) == Redriven({Target(origin, 0): 1}, 2)
    assert [letter.flow for letter in left(admin, request.topic)] == ["a", "b"]


def left(admin: Admin, topic: str) -> list[DeadLetter]:
    committed = admin.groups.committed(redrive_group(topic))
    return list(read(admin.connection.bootstrap, topic, committed, timeout_s=120))


# ---- newer records of a key ----


def test_tombstone_does_not_delete_a_key_that_was_written_again(shared_broker, admin, origin):
    bootstrap = shared_broker.bootstrap
    write(bootstrap, origin, "gone", None)
    write(bootstrap, origin, "live", None)
    write(bootstrap, origin, "live", "again")
    for offset, key in enumerate(("gone", "live")):
        write_letter(
            bootstrap, origin, offset=offset, key=key, value=None, reason="the value is null"
        )
    request = RedriveRequest(origin + ".dlq")
    planned = plan(admin, request)
    at = TopicPartition(request.topic, 0)
    stays = WithheldLetter(at, 1, Identity(origin, 0, 1, 1_700_000_000_000), b"live", 0, 2)
    assert planned == Redriven({Target(origin, 0): 1}, 0, newer=1, examples=(stays,))
    assert execute(admin, request) == planned
    assert [(record.key, record.value) for record in consume(bootstrap, origin)][3:] == [
        (b"gone", None)
    ]
    assert [letter.record.key for letter in left(admin, request.topic)] == [b"live"]
    assert execute(admin, request).count == 0
    assert execute(admin, replace(request, overwrite_newer=True)).count == 1
    assert [(record.key, record.value) for record in consume(bootstrap, origin)][4:] == [
        (b"live", None)
    ]
    assert left(admin, request.topic) == []


def test_newer_records_count_by_partition_key_and_offset(shared_broker, admin, origin):
    bootstrap = shared_broker.bootstrap
    write(bootstrap, origin, "k", "before")
    write(bootstrap, origin, "k", "bad")
    write(bootstrap, origin, "j", "another key")
    write(bootstrap, origin, "k", "another partition", partition=1)
    write(bootstrap, origin, None, "no key")
    write_letter(bootstrap, origin, offset=1)
    write_letter(bootstrap, origin, offset=0, key=None, partition=1)
    assert plan(admin, RedriveRequest(origin + ".dlq")) == Redriven({Target(origin, 0): 2}, 0)
    with (
        Producer(bootstrap, transactional_id=origin) as producer,
        suppress(ValueError),
        producer.transaction(),
    ):
        producer.send(origin, "aborted", key="k", partition=0)
        raise ValueError
    assert plan(admin, RedriveRequest(origin + ".dlq")).newer == 0
    write(bootstrap, origin, "k", "good")
    assert plan(admin, RedriveRequest(origin + ".dlq")).newer == 1


def test_several_bad_records_of_a_key_go_back_in_order(shared_broker, admin, origin):
    bootstrap = shared_broker.bootstrap
    for offset in range(3):
        write(bootstrap, origin, "k", f"bad {offset}")
        write_letter(bootstrap, origin, offset=offset, value=f"bad {offset}")
    request = RedriveRequest(origin + ".dlq")
    # One batch for each, and the rest in another run, as after a kill. Records that were sent back
    # count by their originals.
    assert (
        execute(admin, replace(request, limit=2, overwrite_newer=True), batch_records=1).count == 2
    )
    assert execute(admin, request) == Redriven({Target(origin, 0): 1}, 0)
    assert values(bootstrap, origin)[3:] == [b"bad 0", b"bad 1", b"bad 2"]
    # They fail again: their next letters know the originals too, in any order.
    for offset, first in ((5, 2), (4, 1)):
        about = {
            "offset": offset,
            "first": f"{origin}-0:{first}@1",
            "redriven": 1,
            "value": f"bad {first}",
        }
        write_letter(bootstrap, origin, **about)
    done = execute(admin, request)
    assert (done.count, done.newer) == (1, 1)
    assert values(bootstrap, origin)[6:] == [b"bad 2"]


def test_newer_record_that_arrives_during_a_redrive_is_seen(
    shared_broker, admin, origin, bury, monkeypatch: pytest.MonkeyPatch
):
    bury(4)  # partitions 0 and 1 of the dead letters in turn: 0, 2, 1, 3
    write_letter(
        shared_broker.bootstrap,
        origin,
        partition=1,
        key="k3",
        offset=3,
        timestamp=1_700_000_000_003,
    )
    scans = 0
    scan = NewestRecords.scan

    def write_and_scan(self: NewestRecords) -> None:
        nonlocal scans
        scans += 1
        if scans == 2:  # after the survey, before the second transaction
            for number in range(
                5
            ):  # so far that the record has a greater offset than the letter says
                write(shared_broker.bootstrap, origin, "other" if number < 4 else "k3", "new")
        scan(self)

    monkeypatch.setattr(NewestRecords, "scan", write_and_scan)
    done = execute(admin, RedriveRequest(origin + ".dlq"), batch_records=2)
    assert (done.count, done.newer, done.repeated) == (3, 2, 0)
    keys = [letter.record.key for letter in left(admin, origin + ".dlq")]
    assert keys == [b"k3", b"k3"] and scans == 4


def test_another_topic_is_compared_by_time(shared_broker, admin, origin):
    bootstrap, other = shared_broker.bootstrap, origin + "-other"
    admin.topics.create(other, partitions=2, configs=FOR_EVER)
    with Producer(bootstrap) as producer:
        for key, timestamp_ms in (
            ("older", 1_700_000_000_000 - 1),
            ("newer", 1_700_000_000_000 + 1),
        ):
            producer.send(other, "there", key=key, timestamp_ms=timestamp_ms)
    for offset, key in enumerate(("older", "newer", "absent")):
        write_letter(bootstrap, origin, offset=offset, key=key)
    request = RedriveRequest(origin + ".dlq", to=other, timestamps="now")
    done = execute(admin, request)
    assert (done.sent, done.newer, done.examples[0].key) == ({Target(other, None): 2}, 1, b"newer")
    # Records that were sent there have a new timestamp, but keep their place in the order.
    write_letter(bootstrap, origin, offset=5, key="absent", timestamp=1_700_000_000_009)
    assert execute(admin, request).count == 1


def test_letter_of_a_deleted_topic_is_compared_by_time(shared_broker, admin, origin):
    """Offsets of a recreated topic begin at 0, so a newer record may have a lower offset."""
    bootstrap, now_ms = shared_broker.bootstrap, int(time.time() * 1000)
    write(bootstrap, origin, "k", "newer")
    write_letter(bootstrap, origin, offset=500, timestamp=now_ms - 60_000, value=None)
    write_letter(bootstrap, origin, offset=501, timestamp=now_ms - 60_000, value=None, key="absent")
    done = execute(admin, RedriveRequest(origin + ".dlq"))
    assert (done.count, done.newer, done.examples[0].key) == (1, 1, b"k")
    assert values(bootstrap, origin) == [b"newer", None]


def test_letters_without_origin_do_not_block_one_another(shared_broker, admin, origin):
    """A row sent with a new timestamp must not count as newer than the next row of its key."""
    bootstrap, other = shared_broker.bootstrap, origin + "-other"
    admin.topics.create(other, configs=FOR_EVER)
    for number in range(3):
        write_letter(bootstrap, origin, topic=None, offset=None, timestamp=None, value=str(number))
    request = RedriveRequest(origin + ".dlq", to=other, timestamps="now")

    def interrupt(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(admin, request, batch_records=1, each=interrupt)
    done = execute(admin, request, batch_records=1)
    assert (done.count, done.newer) == (2, 0)
    assert values(bootstrap, other) == [b"0", b"1", b"2"]


# ---- kills ----

# Ends with kill -9 at a step of a transaction: before the n-th call of a function, after it, or
# some seconds after its start.
KILLED = """
import os, signal, sys, threading
from millstream.client import Admin, Producer
from millstream.client.producing.transaction import ProducerTransaction, TransactionCoordination
from millstream.client.dead_letters.redrive import RedriveRequest, execute
bootstrap, topic, name, when, left = sys.argv[1:6]
left = int(left)
kinds = {"commit_positions": ProducerTransaction} | dict.fromkeys(
    ("begin", "commit"), TransactionCoordination
)
kind = kinds.get(name, Producer)
call = getattr(kind, name)
def call_or_die(self, *words, **more):
    global left
    left -= 1
    die = not left
    if die and when == "before":
        end(self)
    if die and when != "after":
        threading.Timer(float(when), end, (None,)).start()
    call(self, *words, **more)
    if die:
        end(self)
def end(self):
    if isinstance(self, Producer | TransactionCoordination):
        self._client.flush()  # the broker has all that was sent
    os.kill(os.getpid(), signal.SIGKILL)
setattr(kind, name, call_or_die)
with Admin(bootstrap) as admin:
    execute(admin, RedriveRequest(topic), batch_records=700)
"""


def run_killed(bootstrap: str, topic: str, name: str, when: str, count: int) -> None:
    words = [sys.executable, "-c", KILLED, bootstrap, topic, name, when, str(count)]
    assert subprocess.run(words, check=False, timeout=120).returncode == -signal.SIGKILL


def end(admin: Admin, origin: str, isolation: Isolation) -> int:
    ends: dict[TopicPartition, Spec] = {
        TopicPartition(origin, number): "latest" for number in range(3)
    }
    return sum(
        partition.offset for partition in admin.offsets.list(ends, isolation=isolation).values()
    )


def test_redrive_killed_within_transactions_sends_everything_once(
    shared_broker, admin, origin, bury
):
    total = 6_000
    bury(total)
    chance = random.Random(origin)
    for _ in range(3):
        run_killed(
            shared_broker.bootstrap, origin + ".dlq", "send", "after", chance.randrange(1, 1_500)
        )
        # Records that a read_committed reader does not see belong to the open transaction.
        assert end(admin, origin, "read_committed") < end(admin, origin, "read_uncommitted")
    execute(admin, RedriveRequest(origin + ".dlq"))
    assert Counter(values(shared_broker.bootstrap, origin)) == Counter(
        str(number).encode() for number in range(total)
    )
    assert summary(admin, origin + ".dlq").left == 0


STEPS = [
    ("prepare_transactions", "before"),
    ("prepare_transactions", "after"),
    ("begin", "after"),
    ("send", "after"),
    ("commit_positions", "before"),
    ("commit_positions", "after"),
    ("commit", "before"),
    ("commit", "0.001"),
    ("commit", "0.01"),
    ("commit", "after"),
    ("abandon", "before"),
]


def test_redrive_killed_at_every_step_sends_each_record_once(shared_broker, admin, origin, bury):
    """Each record has two letters by two pipelines, so a duplicate could come from either."""
    bootstrap, total, known = shared_broker.bootstrap, 300, 0
    for name, when in STEPS:
        bury(total, first=known)
        bury(total, first=known, pipeline="q")
        known += total
        run_killed(bootstrap, origin + ".dlq", name, when, 1)
    execute(admin, RedriveRequest(origin + ".dlq"))
    expected = Counter(str(number).encode() for number in range(known))
    assert Counter(values(bootstrap, origin)) == expected
    assert summary(admin, origin + ".dlq").left == 0
    # A third pipeline rejects the same records, and they are not sent again.
    bury(total, pipeline="r")
    assert execute(admin, RedriveRequest(origin + ".dlq")) == Redriven({}, 0, repeated=total)
    assert Counter(values(bootstrap, origin)) == expected
