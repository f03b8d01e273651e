"""The administration of a cluster through ``Admin``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from millstream.client import (
    Admin,
    ClientError,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
    produce,
)
from millstream.client.admin.offsets import OffsetAt
from millstream.client.admin.topics import Partition
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition


@pytest.fixture
def admin(shared_broker) -> Iterator[Admin]:
    with Admin(shared_broker.bootstrap) as client:
        yield client


def test_topic_is_created_described_extended_and_deleted(admin: Admin, topic_name: str):
    admin.topics.create(
        topic_name, partitions=2, replication_factor=1, configs={"retention.ms": "60000"}
    )
    topic = admin.topics.get(topic_name)
    assert (topic.name, topic.internal, topic.replication_factor) == (topic_name, False, 1)
    assert topic.partitions == (Partition(0, 0, (0,), (0,)), Partition(1, 0, (0,), (0,)))
    assert len(topic.id) == 22 and set(topic.id).isdisjoint("+/=")
    assert topic in admin.topics.list()

    admin.topics.add_partitions(topic_name, 5)
    assert admin.topics.partitions(topic_name) == [
        TopicPartition(topic_name, number) for number in range(5)
    ]
    assert admin.configs.overrides("topic", topic_name) == {"retention.ms": "60000"}

    admin.topics.delete(topic_name)
    assert not admin.topics.exists(topic_name)
    assert topic_name not in admin.topics.names()


def test_replicas_can_be_assigned(admin: Admin, topic_name: str):
    admin.topics.create(topic_name, assignment=[[0], [0], [0]])
    assert [partition.replicas for partition in admin.topics.get(topic_name).partitions] == [
        (0,),
        (0,),
        (0,),
    ]


def test_validate_only_creates_nothing(admin: Admin, topic_name: str):
    admin.topics.create(topic_name, partitions=1, validate_only=True)
    assert not admin.topics.exists(topic_name)


def test_creating_an_existing_topic_is_rejected(admin: Admin, topic_name: str):
    admin.topics.create(topic_name, partitions=1)
    with pytest.raises(TopicExists) as caught:
        admin.topics.create(topic_name, partitions=1)
    assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"replication_factor": 3}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"configs": {"retention.mss": "1"}}, ErrorCode.INVALID_CONFIG),
        ({"configs": {"retention.ms": "soon"}}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_rejected_topic_has_the_code_of_the_broker(
    admin: Admin, topic_name: str, more, code: ErrorCode
):
    with pytest.raises(ClientError) as caught:
        admin.topics.create(topic_name, **more)
    assert caught.value.code is code
    assert not admin.topics.exists(topic_name)


def test_invalid_topic_name_is_rejected(admin: Admin):
    with pytest.raises(ClientError, match="cannot create topic 'a b'") as caught:
        admin.topics.create("a b")
    assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_unknown_topic_names_the_nearest(admin: Admin, topic_name: str):
    admin.topics.create(topic_name, partitions=1)
    for ask in (
        lambda: admin.topics.get(topic_name + "x"),
        lambda: admin.topics.add_partitions(topic_name + "x", 3),
        lambda: admin.topics.delete(topic_name + "x"),
        lambda: admin.configs.describe("topic", topic_name + "x"),
        lambda: admin.configs.alter("topic", topic_name + "x", {"retention.ms": "1"}),
        lambda: admin.offsets.latest(topic_name + "x"),
    ):
        with pytest.raises(UnknownTopic) as caught:
            ask()
        assert topic_name in caught.value.hint


def test_deleting_several_topics_deletes_none_if_one_is_missing(admin: Admin, topic_name: str):
    admin.topics.create(topic_name, partitions=1)
    with pytest.raises(UnknownTopic):
        admin.topics.delete(topic_name, topic_name + "-missing")
    assert admin.topics.exists(topic_name)


def test_partitions_that_do_not_exist_are_rejected(admin: Admin, topic_name: str):
    admin.topics.create(topic_name, partitions=3)
    with pytest.raises(UnknownPartition, match=r"has no partition 3; its partitions are 0 to 2"):
        admin.topics.partitions(topic_name, [1, 3])


def test_settings_are_altered_one_by_one(admin: Admin, topic_name: str):
    admin.topics.create(
        topic_name, partitions=1, configs={"retention.ms": "1000", "segment.bytes": "2000000"}
    )
    admin.configs.alter(
        "topic",
        topic_name,
        {"max.message.bytes": "5000"},
        delete=["retention.ms"],
        append={"cleanup.policy": "compact"},
    )
    assert admin.configs.overrides("topic", topic_name) == {
        "cleanup.policy": "delete,compact",
        "max.message.bytes": "5000",
        "segment.bytes": "2000000",
    }
    admin.configs.alter("topic", topic_name, subtract={"cleanup.policy": "delete"})
    assert admin.configs.overrides("topic", topic_name)["cleanup.policy"] == "compact"


def test_settings_show_their_source_and_synonyms(admin: Admin, topic_name: str):
    admin.topics.create(topic_name, partitions=1, configs={"retention.ms": "1000"})
    configs = {config.name: config for config in admin.configs.describe("topic", topic_name)}
    assert (configs["retention.ms"].value, configs["retention.ms"].source) == (
        "1000",
        "DYNAMIC_TOPIC_CONFIG",
    )
    assert configs["retention.ms"].synonyms[0].value == "1000"
    assert configs["cleanup.policy"].default
    assert [(synonym.name, synonym.value) for synonym in configs["cleanup.policy"].synonyms] == [
        ("log.cleanup.policy", "delete")
    ]


def test_settings_of_brokers_are_described_and_altered(admin: Admin):
    described = {config.name: config for config in admin.configs.describe("broker", 0)}
    assert described["log.dirs"].read_only
    admin.configs.alter("broker", 0, {"log.cleaner.backoff.ms": "12345"})
    try:
        wait_until(
            lambda: admin.configs.overrides("broker", 0).get("log.cleaner.backoff.ms") == "12345"
        )
    finally:
        admin.configs.alter("broker", 0, delete=["log.cleaner.backoff.ms"])
    wait_until(lambda: "log.cleaner.backoff.ms" not in admin.configs.overrides("broker", 0))


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait: brokers of a cluster learn of a change a moment after it is acknowledged."""
    for _ in range(200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not become true")


def test_bad_settings_are_rejected(admin: Admin, topic_name: str):
    admin.topics.create(topic_name, partitions=1)
    for changes in ({"retention.mss": "1"}, {"retention.ms": "soon"}):
        with pytest.raises(ClientError) as caught:
            admin.configs.alter("topic", topic_name, changes)
        assert caught.value.code is ErrorCode.INVALID_CONFIG
    with pytest.raises(ClientError, match="nothing to alter"):
        admin.configs.alter("topic", topic_name)
    with pytest.raises(ClientError, match="broker '77' does not exist; the brokers are 0"):
        admin.configs.describe("broker", 77)
    with pytest.raises(ClientError, match="a 'topics' has no settings; use topic"):
        admin.configs.describe("topics", topic_name)  # type: ignore[arg-type]


def test_cluster_is_described(admin: Admin, shared_broker):
    cluster = admin.cluster.describe()
    assert len(cluster.id) == 22
    assert cluster.controller == 0
    assert [(broker.id, broker.host, broker.port) for broker in cluster.brokers] == [
        (0, shared_broker.host, shared_broker.port)
    ]


def test_offsets_are_listed_and_records_deleted(admin: Admin, shared_broker, topic_name: str):
    admin.topics.create(topic_name, partitions=2)
    first, second = TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)
    produce(shared_broker.bootstrap, topic_name, ["x"] * 5, options={"partitioner": "consistent"})
    latest = admin.offsets.latest(topic_name)
    assert sorted(latest.values()) == [0, 5]
    full = max(latest, key=lambda partition: latest[partition])
    empty = second if full == first else first
    assert admin.offsets.list({full: "max_timestamp", empty: "max_timestamp"})[empty] == OffsetAt(
        -1, -1
    )

    assert admin.offsets.delete_records({full: 3}) == {full: 3}
    assert admin.offsets.earliest(topic_name) == {full: 3, empty: 0}
    assert admin.offsets.delete_records({full: -1}) == {full: 5}
    with pytest.raises(ClientError) as caught:
        admin.offsets.delete_records({full: 99})
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
