"""Dead letters and their way back: each once, whatever happens to whoever sends them."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from millstream.client import Admin, ClientError, Producer, UnknownPartition, UnknownTopic, consume
from millstream.client.dead_letters import dead_letter, find, read, redrive_group, summary
from millstream.client.record import Record
from millstream.client.redrive import Redriven, Target, Wish, execute, plan
from millstream.core.types import TopicPartition

Bury = Callable[..., None]
# The records here have times of long ago.
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
    """Write dead letters of the origin: values, and the partition of the dead-letter topic and of the origin by turns."""

    def write(
        count: int, *, reason: str = "not JSON", first: int = 0, origin_topic: str | None = origin
    ) -> None:
        with Producer(shared_broker.bootstrap) as producer:
            for number in range(first, first + count):
                about = [
                    ("dlq.reason", reason),
                    *([("dlq.topic", origin_topic)] if origin_topic else []),
                    ("dlq.partition", str(number % 3)),
                    ("dlq.offset", str(number)),
                    ("dlq.timestamp", str(1_700_000_000_000 + number)),
                    ("dlq.pipeline", "p"),
                    ("trace", b"\x00\xff"),
                ]
                producer.send(
                    origin + ".dlq", str(number), key=f"k{number}", headers=about, partition=number % 2
                )

    return write


def test_the_headers_say_what_happened():
    about = [
        ("a", b"1"),
        ("dlq.reason", b"why"),
        ("dlq.topic", b"t"),
        ("dlq.partition", b"2"),
        ("dlq.offset", b"x"),
    ]
    record = Record("t.dlq", 0, 5, 7, "create", None, b"v", (*about, ("dlq.redriven", b"3"), ("a", None)))
    found = dead_letter(record)
    assert found == (record, "why", "t", 2, None, None, None, 3, None)
    assert found.headers == (("a", b"1"), ("a", None))
    assert dead_letter(record._replace(headers=()))[1:] == (None, None, None, None, None, None, 0, None)


def test_dead_letters_go_back_to_topic_and_partition_as_they_were(shared_broker, admin, origin, bury):
    bury(6)
    wish = Wish(origin + ".dlq")
    expected = Redriven({Target(origin, number): 2 for number in range(3)}, 0)
    assert plan(admin, wish) == expected
    assert consume(shared_broker.bootstrap, origin) == []
    assert execute(admin, wish) == expected
    found = sorted(consume(shared_broker.bootstrap, origin), key=lambda one: int(one.value or b""))
    assert [(one.partition, one.timestamp_ms, one.key, one.value, one.headers) for one in found] == [
        (
            number % 3,
            1_700_000_000_000 + number,
            f"k{number}".encode(),
            str(number).encode(),
            (("trace", b"\x00\xff"), ("dlq.redriven", b"1")),
        )
        for number in range(6)
    ]
    assert plan(admin, wish) == execute(admin, wish) == Redriven({}, 0)
    assert summary(admin, wish.topic)[1:3] == (6, 0)


def test_only_what_came_since_is_sent_the_next_time(shared_broker, admin, origin, bury):
    wish = Wish(origin + ".dlq")
    bury(4)
    assert execute(admin, wish).count == 4
    bury(2, first=4)
    assert execute(admin, wish).count == 2
    values = [one.value for one in consume(shared_broker.bootstrap, origin)]
    assert sorted(values) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_what_a_filter_does_not_choose_stays(shared_broker, admin, origin, bury):
    bury(3, reason="field 'a' is missing")
    bury(3, reason="not JSON", first=3)
    bury(2, reason="field 'a' is missing", first=6)
    done = execute(admin, Wish(origin + ".dlq", reason="NOT json"))
    assert done.count == 3
    assert sorted(one.value or b"" for one in consume(shared_broker.bootstrap, origin)) == [b"3", b"4", b"5"]
    committed = admin.groups.committed(redrive_group(origin + ".dlq"))
    left = list(read(shared_broker.bootstrap, origin + ".dlq", committed, timeout_s=10))
    assert sorted((one.record.value, one.reason, one.offset) for one in left) == [
        (str(number).encode(), "field 'a' is missing", number) for number in (0, 1, 2, 6, 7)
    ]
    assert execute(admin, Wish(origin + ".dlq", reason="no such")) == Redriven({}, 5)
    assert execute(admin, Wish(origin + ".dlq")).count == 5
    values = Counter(one.value for one in consume(shared_broker.bootstrap, origin))
    assert values == Counter(str(number).encode() for number in range(8))


def test_a_limit_leaves_the_rest_for_later(shared_broker, admin, origin, bury):
    bury(10)
    wish = Wish(origin + ".dlq", limit=3)
    assert [execute(admin, wish, batch_records=2).count for _ in range(4)] == [3, 3, 3, 1]
    values = Counter(one.value for one in consume(shared_broker.bootstrap, origin))
    assert values == Counter(str(number).encode() for number in range(10))


def test_another_topic_may_take_them_and_the_key_decides(shared_broker, admin, origin, bury):
    bury(4)
    admin.topics.create(origin + "-other", partitions=2, configs=FOR_EVER)
    other = origin + "-other"
    assert execute(admin, Wish(origin + ".dlq", to=other)) == Redriven({Target(other, None): 4}, 0)
    assert len(consume(shared_broker.bootstrap, other)) == 4
    assert consume(shared_broker.bootstrap, origin) == []


def test_how_often_a_record_came_back_is_counted(shared_broker, admin, origin):
    about = {"dlq.topic": origin, "dlq.partition": "0", "dlq.redriven": "4", "dlq.reason": "still bad"}
    with Producer(shared_broker.bootstrap) as producer:
        producer.send(origin + ".dlq", "v", headers=about)
    execute(admin, Wish(origin + ".dlq"))
    (found,) = consume(shared_broker.bootstrap, origin)
    assert found.headers == (("dlq.redriven", b"5"),)


def test_what_cannot_be_sent_is_said_before_anything_is(shared_broker, admin, origin, bury):
    bury(2)
    bury(1, origin_topic=None, first=2)
    for words, kind, to in (
        (
            r"does not say which topic it came from; say where such records go, with --to TOPIC",
            ClientError,
            None,
        ),
        ("does not exist", UnknownTopic, "nowhere"),
    ):
        with pytest.raises(kind, match=words):
            execute(admin, Wish(origin + ".dlq", to=to))
    with Producer(shared_broker.bootstrap) as producer:
        about = {"dlq.topic": origin, "dlq.partition": "7", "dlq.reason": "gone"}
        producer.send(origin + ".dlq", "v", headers=about, partition=0)
    with pytest.raises(UnknownPartition, match="has no partition 7 any more"):
        plan(admin, Wish(origin + ".dlq", reason="gone"))
    assert consume(shared_broker.bootstrap, origin) == []
    assert admin.groups.committed(redrive_group(origin + ".dlq")) == {}


def test_what_retention_would_take_is_not_sent_before_a_time_is_chosen(shared_broker, admin, origin, bury):
    admin.configs.alter("topic", origin, {"retention.ms": "3600000"})
    bury(2)
    with Producer(shared_broker.bootstrap) as producer:
        about = {"dlq.topic": origin, "dlq.partition": "0", "dlq.reason": "new"}
        producer.send(origin + ".dlq", "young", headers=about, partition=0)
    wish = Wish(origin + ".dlq")
    first, second = Target(origin, 0), Target(origin, 1)
    planned = Redriven({first: 2, second: 1}, 0, {first: 1, second: 1})
    assert plan(admin, wish) == planned
    refused = r"2 of 3 records carry times older than what is kept in \S+ \(retention.ms=3600000\): .*--timestamps now"
    with pytest.raises(ClientError, match=refused):
        execute(admin, wish)
    assert consume(shared_broker.bootstrap, origin) == []
    renewed = replace(wish, timestamps="now", limit=1)
    assert plan(admin, renewed).expired_count == 0
    before_ms = int(time.time() * 1000)
    assert execute(admin, renewed).count == 1
    (found,) = consume(shared_broker.bootstrap, origin)
    assert found.timestamp_ms >= before_ms
    # Partitions are read in any order: the first one sent is the old one of either.
    left, sent = {b"0": (b"1", {first: 1, second: 1}), b"1": (b"0", {first: 2})}[found.value or b""]
    expired = {Target(origin, int(left)): 1}
    assert execute(admin, replace(wish, timestamps="original")) == Redriven(sent, 0, expired)
    times = {one.value: one.timestamp_ms for one in consume(shared_broker.bootstrap, origin)}
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
def test_times_do_not_matter_where_retention_does_not_go_by_them(admin, origin, bury, configs):
    other = origin + "-kept"
    admin.topics.create(other, partitions=1, configs=configs)
    bury(2)
    wish = Wish(origin + ".dlq", to=other)
    assert plan(admin, wish) == execute(admin, wish) == Redriven({Target(other, None): 2}, 0)


def test_a_name_means_its_dead_letter_topic_or_itself(admin, origin):
    assert find(admin, origin) == find(admin, origin + ".dlq") == origin + ".dlq"
    with pytest.raises(UnknownTopic, match="there are no dead letters of 'nothing-like-it'"):
        find(admin, "nothing-like-it")


# Ends by kill -9 when it has sent so many records, all of which the broker has.
KILLED = """
import os, signal, sys
from millstream.client import Admin, Producer
from millstream.client.redrive import Wish, execute
left, send = int(sys.argv[3]), Producer.send
def send_or_die(producer, *words, **more):
    global left
    send(producer, *words, **more)
    left -= 1
    if not left:
        producer.flush()
        os.kill(os.getpid(), signal.SIGKILL)
Producer.send = send_or_die
with Admin(sys.argv[1]) as admin:
    execute(admin, Wish(sys.argv[2]), batch_records=700)
"""


def test_killed_in_the_middle_of_transactions_it_sends_everything_once(shared_broker, admin, origin, bury):
    total = 6_000
    bury(total)
    ends = dict.fromkeys((TopicPartition(origin, number) for number in range(3)), "latest")

    def end(isolation: str) -> int:
        return sum(one.offset for one in admin.offsets.list(ends, isolation=isolation).values())

    chance = random.Random(origin)
    for _ in range(3):
        words = [sys.executable, "-c", KILLED, shared_broker.bootstrap, origin + ".dlq"]
        done = subprocess.run([*words, str(chance.randrange(1, 1_500))], check=False, timeout=120)
        assert done.returncode == -signal.SIGKILL
        # What a reader of committed records may not see yet belongs to the transaction that was open.
        assert end("read_committed") < end("read_uncommitted")
    execute(admin, Wish(origin + ".dlq"))
    values = Counter(one.value for one in consume(shared_broker.bootstrap, origin))
    assert values == Counter(str(number).encode() for number in range(total))
    assert summary(admin, origin + ".dlq").left == 0
