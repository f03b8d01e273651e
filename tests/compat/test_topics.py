"""Topics that clients make by asking, ids, in-sync replicas, metadata as clients see it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from compat.client_kcat import KCAT
from compat.clients import Client
from compat.crafted import batch
from compat.every_client import every_client
from compat.raw_client import RawConnection, ask
from compat.raw_requests import (
    MAX_TIMESTAMP,
    all_topics,
    create_topics,
    delete_topics,
    errors,
    fetch,
    list_offsets,
    metadata,
    produce,
    values,
)
from compat.raw_requests import new_topic as topic_row
from compat.sample_records import Row
from compat.topics import create_topic, topic_id
from compat.waiting import wait_until
from millstream.core.errors import ErrorCode as E
from millstream.local.broker import LocalBroker


@dataclass(frozen=True)
class Asked:
    """A row of a Metadata answer."""

    code: int
    partitions: int
    internal: bool
    has_id: bool


def ask_for(
    connection: RawConnection, *names: str, version: int = 12, auto_create: bool = True
) -> list[Asked]:
    answer = connection.call("Metadata", version, metadata(*names, auto_create=auto_create))
    return [
        Asked(t.error_code, len(t.partitions), t.is_internal, any(t.topic_id))
        for t in answer.topics
    ]


# ---- automatic creation ----


@every_client
def test_a_topic_is_made_when_a_client_writes_to_it(
    shared_broker: LocalBroker, topic_name: str, client: Client
):
    rows = [Row(b"k", b"first")]
    client.produce(shared_broker.bootstrap, topic_name, rows)
    client.check(client.consume(shared_broker.bootstrap, topic_name, {0: 1}), rows)


@pytest.mark.parametrize("version", [0, 3, 4, 9, 13])
def test_a_topic_is_made_when_metadata_asks_for_it(
    connection: RawConnection, topic_name: str, version: int
):
    """The first answer does not have it: brokers create it in the background."""
    unknown = Asked(E.UNKNOWN_TOPIC_OR_PARTITION, 0, False, False)
    assert ask_for(connection, topic_name, version=version) == [unknown]
    wait_until(
        lambda: ask_for(connection, topic_name, auto_create=False) == [Asked(0, 1, False, True)],
        "the topic",
    )


def test_internal_topics_are_made_when_metadata_asks_for_them(broker: Callable[..., LocalBroker]):
    names = ["__consumer_offsets", "__transaction_state"]
    with RawConnection(broker().bootstrap) as connection:
        unknown = Asked(E.UNKNOWN_TOPIC_OR_PARTITION, 0, True, False)
        assert ask_for(connection, *names) == [unknown] * 2
        wait_until(lambda: not any(row.code for row in ask_for(connection, *names)), "both topics")
        assert all(row.internal and row.has_id for row in ask_for(connection, *names))


def test_metadata_by_id_makes_nothing(connection: RawConnection, topic_name: str):
    """The id counts, also where there is a name as well."""
    named = {"name": topic_name, "topic_id": bytes(15) + b"x"}
    answer = connection.call("Metadata", 12, metadata(named, topic_name + "-2", auto_create=True))
    assert E.UNKNOWN_TOPIC_ID in errors(answer)
    # A creation of the topics would be done before this one.
    made = connection.call(
        "CreateTopics", 7, create_topics(topic_row(topic_name), topic_row(topic_name + "-2"))
    )
    assert errors(made) == [0, 0]


def test_requests_behind_metadata_find_the_topic_it_makes(
    connection: RawConnection, topic_name: str
):
    """Creations and administrative requests of a connection reach the controller
    in the order sent.
    """
    ask_for(connection, topic_name)
    made = connection.call("CreateTopics", 7, create_topics(topic_row(topic_name)))
    assert errors(made) == [E.TOPIC_ALREADY_EXISTS]
    ask_for(connection, topic_name + "-2")
    assert errors(connection.call("DeleteTopics", 6, delete_topics(topic_name + "-2"))) == [0]


def test_a_client_may_forbid_it(connection: RawConnection, topic_name: str):
    [found] = ask_for(connection, topic_name, auto_create=False)
    assert found == Asked(E.UNKNOWN_TOPIC_OR_PARTITION, 0, False, False)
    assert topic_name not in values(connection.call("Metadata", 12, all_topics()), "name")


def test_wrong_names_are_not_made(connection: RawConnection):
    wrong = ["a b", "", "x" * 250, ".", ".."]
    assert ask_for(connection, *wrong) == [Asked(E.INVALID_TOPIC_EXCEPTION, 0, False, False)] * len(
        wrong
    )


def test_writing_by_itself_makes_nothing(connection: RawConnection, topic_name: str):
    answer = connection.call("Produce", 9, produce(topic_name, batch()))
    assert errors(answer) == [E.UNKNOWN_TOPIC_OR_PARTITION]
    assert (
        ask_for(connection, topic_name, auto_create=False)[0].code == E.UNKNOWN_TOPIC_OR_PARTITION
    )


def test_a_broker_may_forbid_it(broker: Callable[..., LocalBroker]):
    made = broker({"auto.create.topics.enable": "false", "num.partitions": 3})
    with RawConnection(made.bootstrap) as connection:
        assert ask_for(connection, "wanted") == [
            Asked(E.UNKNOWN_TOPIC_OR_PARTITION, 0, False, False)
        ]
    create_topic(made.bootstrap, "wanted", -1)
    with RawConnection(made.bootstrap) as connection:
        assert ask_for(connection, "wanted") == [Asked(0, 3, False, True)]


# ---- ids ----


def test_a_topic_made_again_has_another_id(
    connection: RawConnection, shared_broker: LocalBroker, topic_name: str
):
    create_topic(shared_broker.bootstrap, topic_name)
    first = topic_id(shared_broker.bootstrap, topic_name)
    assert errors(connection.call("Produce", 13, produce(first, batch()))) == [0]
    assert errors(connection.call("DeleteTopics", 6, delete_topics(first))) == [0]
    create_topic(shared_broker.bootstrap, topic_name)
    second = topic_id(shared_broker.bootstrap, topic_name)
    assert first != second
    assert errors(connection.call("Produce", 13, produce(first, batch()))) == [E.UNKNOWN_TOPIC_ID]
    assert errors(connection.call("Fetch", 13, fetch(first))) == [0, E.UNKNOWN_TOPIC_ID]
    assert values(connection.call("Fetch", 13, fetch(second)), "high_watermark") == [0]


# ---- in-sync replicas ----


@every_client
def test_no_more_replicas_are_asked_for_than_there_are(
    shared_broker: LocalBroker, new_topic: Callable[..., str], client: Client
):
    topic = new_topic(min_insync_replicas=2)
    answer = ask(shared_broker.bootstrap, "Produce", 9, produce(topic, batch()))
    # As Kafka from 3.7 on.
    assert errors(answer) == [0]
    rows = [Row(b"k", b"one replica is enough")]
    client.produce(shared_broker.bootstrap, topic, rows, acks=-1)
    assert len(client.consume(shared_broker.bootstrap, topic, {0: 2})) == 2


# ---- metadata ----


def test_a_thousand_partitions_in_metadata_of_every_version(
    connection: RawConnection, new_topic: Callable[..., str]
):
    topic = new_topic(1000)
    for version in range(14):
        [found] = connection.call("Metadata", version, metadata(topic)).topics
        assert [row.partition_index for row in found.partitions] == list(range(1000))
        assert {row.leader_id for row in found.partitions} == {found.partitions[0].replica_nodes[0]}
    assert errors(connection.call("DeleteTopics", 6, delete_topics(topic))) == [0]


@pytest.mark.skipif(KCAT is None, reason="kcat is not installed (Debian: apt install kcat)")
def test_kcat_lists_metadata(
    shared_broker: LocalBroker, connection: RawConnection, new_topic: Callable[..., str]
):
    assert KCAT is not None
    topic = new_topic(3)
    [node] = values(connection.call("Metadata", 12, metadata()), "node_id")
    command = [KCAT, "-L", "-b", shared_broker.bootstrap, "-t", topic]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    assert f'topic "{topic}" with 3 partitions:' in listed
    assert listed.count(f"leader {node}, replicas: {node}, isrs: {node}") == 3


# ---- timestamps ----


def test_the_largest_timestamp_of_a_topic_with_append_time_is_its_last_batch(
    connection: RawConnection, new_topic: Callable[..., str]
):
    topic = new_topic(message_timestamp_type="LogAppendTime")
    for _ in range(3):
        answer = connection.call(
            "Produce", 9, produce(topic, batch([(b"k", b"v")] * 2, timestamp=5))
        )
        [stamped] = values(answer, "log_append_time_ms")
        assert stamped > 10**12
    found = connection.call("ListOffsets", 7, list_offsets(topic, MAX_TIMESTAMP))
    assert values(found, "timestamp") == [stamped]
