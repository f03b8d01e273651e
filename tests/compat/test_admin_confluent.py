"""Administration through confluent-kafka's AdminClient: topics, partitions, settings, records,
offsets, cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from compat.client_confluent import Confluent
from compat.clients import Refused
from compat.sample_records import START_MS, Row
from compat.topics import topic_id
from millstream.core.errors import ErrorCode as E
from millstream.local.broker import LocalBroker

TIMEOUT_S = 120.0
TOPIC, BROKER = ConfigResource.Type.TOPIC, ConfigResource.Type.BROKER


@pytest.fixture
def admin(shared_broker: LocalBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": shared_broker.bootstrap})


def done(futures: dict[Any, Any]) -> Any:
    """The result of the one future of a call, or the broker's refusal."""
    [future] = futures.values()
    try:
        return future.result(TIMEOUT_S)
    except KafkaException as error:
        raise Refused(error.args[0].code(), error.args[0].str()) from None


def code_of(call: Callable[[], Any]) -> int:
    with pytest.raises(Refused) as caught:
        done(call())
    return caught.value.code


def describe(admin: AdminClient, kind: Any, name: str) -> dict[str, Any]:
    return done(admin.describe_configs([ConfigResource(kind, name)]))  # type: ignore[no-any-return]


def test_topics_are_created_described_and_deleted(
    admin: AdminClient, shared_broker: LocalBroker, topic_name: str
):
    done(admin.create_topics([NewTopic(topic_name, 3, 1, config={"retention.ms": "60000"})]))
    assert topic_name in admin.list_topics(timeout=TIMEOUT_S).topics
    found = done(admin.describe_topics(TopicCollection([topic_name])))
    assert (found.name, found.is_internal, len(found.partitions)) == (topic_name, False, 3)
    assert [(p.id, p.leader.id, len(p.replicas), len(p.isr)) for p in found.partitions] == [
        (index, found.partitions[0].leader.id, 1, 1) for index in range(3)
    ]
    uuid = found.topic_id
    both = (
        uuid.get_most_significant_bits() % 2**64 << 64 | uuid.get_least_significant_bits() % 2**64
    )
    assert both.to_bytes(16, "big") == topic_id(shared_broker.bootstrap, topic_name)
    done(admin.delete_topics([topic_name]))
    assert (
        code_of(lambda: admin.describe_topics(TopicCollection([topic_name])))
        == E.UNKNOWN_TOPIC_OR_PARTITION
    )


def test_refusals_have_their_codes(admin: AdminClient, topic_name: str):
    def create(*counts: int, name: str = topic_name, **config: str) -> Callable[[], Any]:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        return lambda: admin.create_topics([NewTopic(name, *counts, config=settings)])

    assert code_of(create(0, 1)) == E.INVALID_PARTITIONS
    assert code_of(create(1, 3)) == E.INVALID_REPLICATION_FACTOR
    assert code_of(create(1, 1, name="a b")) == E.INVALID_TOPIC_EXCEPTION
    assert code_of(create(1, 1, retention_ms="soon")) == E.INVALID_CONFIG
    done(create(1, 1)())
    assert code_of(create(1, 1)) == E.TOPIC_ALREADY_EXISTS
    assert (
        code_of(lambda: admin.delete_topics([f"{topic_name}-not"])) == E.UNKNOWN_TOPIC_OR_PARTITION
    )
    assert (
        code_of(lambda: admin.create_partitions([NewPartitions(topic_name, 1)]))
        == E.INVALID_PARTITIONS
    )


def test_validating_only_makes_nothing(admin: AdminClient, topic_name: str):
    done(admin.create_topics([NewTopic(topic_name, 1, 1)], validate_only=True))
    assert topic_name not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_partitions_are_added(admin: AdminClient, new_topic: Callable[..., str]):
    topic = new_topic(2)
    done(admin.create_partitions([NewPartitions(topic, 5)]))
    assert sorted(admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions) == [
        0,
        1,
        2,
        3,
        4,
    ]


def test_settings_show_their_sources_and_synonyms(
    admin: AdminClient, new_topic: Callable[..., str]
):
    topic = new_topic(retention_ms=60000, cleanup_policy="compact")
    found = describe(admin, TOPIC, topic)
    retention = found["retention.ms"]
    assert (retention.value, retention.source) == ("60000", ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
    assert not (retention.is_default or retention.is_read_only or retention.is_sensitive)
    own = retention.synonyms["retention.ms"]
    assert (own.value, own.source) == ("60000", ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
    segment = found["segment.bytes"]
    assert (segment.value, segment.source) == ("1073741824", ConfigSource.DEFAULT_CONFIG.value)
    assert list(segment.synonyms) == ["log.segment.bytes"]


def test_settings_are_changed_one_by_one(admin: AdminClient, new_topic: Callable[..., str]):
    topic = new_topic(retention_ms=60000, cleanup_policy="compact")

    def alter(name: str, what: AlterConfigOpType, value: str | None) -> None:
        entry = ConfigEntry(name, value, incremental_operation=what)
        done(
            admin.incremental_alter_configs(
                [ConfigResource(TOPIC, topic, incremental_configs=[entry])]
            )
        )

    alter("segment.ms", AlterConfigOpType.SET, "120000")
    alter("retention.ms", AlterConfigOpType.DELETE, None)
    alter("cleanup.policy", AlterConfigOpType.APPEND, "delete")
    found = describe(admin, TOPIC, topic)
    assert [found[name].value for name in ("segment.ms", "retention.ms", "cleanup.policy")] == [
        "120000",
        "604800000",
        "compact,delete",
    ]
    alter("cleanup.policy", AlterConfigOpType.SUBTRACT, "compact")
    assert describe(admin, TOPIC, topic)["cleanup.policy"].value == "delete"
    with pytest.raises(Refused) as caught:
        alter("segment.ms", AlterConfigOpType.SET, "x")
    assert caught.value.code == E.INVALID_CONFIG


def test_settings_are_replaced_as_a_whole(admin: AdminClient, new_topic: Callable[..., str]):
    topic = new_topic(retention_ms=60000)
    done(admin.alter_configs([ConfigResource(TOPIC, topic, set_config={"segment.ms": "7000"})]))
    found = describe(admin, TOPIC, topic)
    assert (found["segment.ms"].value, found["retention.ms"].value) == ("7000", "604800000")


def test_a_broker_shows_its_settings(admin: AdminClient, shared_broker: LocalBroker):
    node = str(next(iter(admin.list_topics(timeout=TIMEOUT_S).brokers)))
    found = describe(admin, BROKER, node)
    assert found["message.max.bytes"].value == "1048588"
    assert found["log.dirs"].is_read_only
    assert found["log.dirs"].source == ConfigSource.STATIC_BROKER_CONFIG.value


def test_records_are_deleted(
    admin: AdminClient, shared_broker: LocalBroker, new_topic: Callable[..., str]
):
    topic = new_topic()
    Confluent().produce(shared_broker.bootstrap, topic, [Row(b"k", b"%d" % i) for i in range(10)])
    deleted = done(admin.delete_records([TopicPartition(topic, 0, 4)]))
    assert deleted.low_watermark == 4
    assert (
        code_of(lambda: admin.delete_records([TopicPartition(topic, 0, 11)]))
        == E.OFFSET_OUT_OF_RANGE
    )


def test_offsets_are_listed(
    admin: AdminClient, shared_broker: LocalBroker, new_topic: Callable[..., str]
):
    topic = new_topic()
    rows = [Row(b"k", b"v", timestamp=START_MS + at) for at in (0, 100, 5000, 200)]
    Confluent().produce(shared_broker.bootstrap, topic, rows)

    def offset(spec: OffsetSpec) -> tuple[int, int]:
        found = done(admin.list_offsets({TopicPartition(topic, 0): spec}))
        return found.offset, found.timestamp

    assert offset(OffsetSpec.earliest()) == (0, -1)
    assert offset(OffsetSpec.latest()) == (4, -1)
    assert offset(OffsetSpec.max_timestamp()) == (2, START_MS + 5000)
    assert offset(OffsetSpec.for_timestamp(START_MS + 50)) == (1, START_MS + 100)
    assert offset(OffsetSpec.for_timestamp(START_MS + 9999)) == (-1, -1)


def test_the_cluster_is_described(admin: AdminClient, shared_broker: LocalBroker):
    found = admin.describe_cluster().result(TIMEOUT_S)
    assert [(node.host, node.port) for node in found.nodes] == [
        (shared_broker.host, shared_broker.port)
    ]
    assert found.controller.id == found.nodes[0].id
    assert found.cluster_id == admin.cluster_id(TIMEOUT_S)
