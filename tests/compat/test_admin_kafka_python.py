"""Administration through kafka-python's client, which knows most of the newer calls, and through
aiokafka's.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import kafka.errors as errors
import pytest
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType

from compat.client_kafka_python import KafkaPython
from compat.sample_records import START_MS, Row
from compat.topics import topic_id
from millstream.local.broker import LocalBroker

TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER


@pytest.fixture(scope="module")
def admin(shared_broker: LocalBroker) -> Iterator[KafkaAdminClient]:
    made = KafkaAdminClient(bootstrap_servers=shared_broker.bootstrap)
    yield made
    made.close()


def node_id(admin: KafkaAdminClient) -> int:
    return int(admin.describe_cluster()["brokers"][0]["broker_id"])


def settings(admin: KafkaAdminClient, topic: str, *names: str) -> dict[str, tuple[str, str]]:
    """name -> (value, source)"""
    resource = ConfigResource(TOPIC, topic, list(names))
    found = admin.describe_configs([resource], include_synonyms=True, config_filter="all")["topic"][
        topic
    ]
    return {name: (entry["value"], entry["config_source"]) for name, entry in found.items()}


# ---- kafka-python ----


def test_topics_are_created_described_and_deleted(
    admin: KafkaAdminClient, shared_broker: LocalBroker, topic_name: str
):
    plan = {"num_partitions": 3, "replication_factor": 1, "configs": {"retention.ms": "60000"}}
    admin.create_topics({topic_name: plan}, wait_for_metadata=True)
    assert topic_name in admin.list_topics()
    [found] = admin.describe_topics([topic_name])
    assert [row["partition_index"] for row in found["partitions"]] == [0, 1, 2]
    identity = uuid.UUID(bytes=topic_id(shared_broker.bootstrap, topic_name))
    [same] = admin.describe_topics([identity])
    assert same["name"] == topic_name
    admin.delete_topics([topic_name])
    assert topic_name not in admin.list_topics()


def test_refusals_have_their_names(
    admin: KafkaAdminClient, topic_name: str, new_topic: Callable[..., str]
):
    with pytest.raises(errors.InvalidReplicationFactorError):
        admin.create_topics({topic_name: {"num_partitions": 1, "replication_factor": 3}})
    with pytest.raises(errors.InvalidTopicError):
        admin.create_topics(["a b"])
    with pytest.raises(errors.TopicAlreadyExistsError):
        admin.create_topics([new_topic()])
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        admin.delete_topics([topic_name])


def test_partitions_are_added_and_paged(admin: KafkaAdminClient, new_topic: Callable[..., str]):
    topic = new_topic(2)
    admin.create_partitions({topic: 5})
    page = admin.describe_topic_partitions([topic], response_partition_limit=3)
    assert [row["partition_index"] for row in page["topics"][0]["partitions"]] == [0, 1, 2]
    assert page["next_cursor"] == {"topic_name": topic, "partition_index": 3}
    rest = admin.describe_topic_partitions([topic], cursor=page["next_cursor"])
    assert [row["partition_index"] for row in rest["topics"][0]["partitions"]] == [3, 4]
    assert rest["next_cursor"] is None


def test_settings_show_their_sources_and_synonyms(
    admin: KafkaAdminClient, new_topic: Callable[..., str]
):
    topic = new_topic(retention_ms=60000)
    resource = ConfigResource(TOPIC, topic, ["retention.ms", "segment.bytes"])
    found = admin.describe_configs([resource], include_synonyms=True, config_filter="all")["topic"][
        topic
    ]
    retention, segment = found["retention.ms"], found["segment.bytes"]
    assert (retention["value"], retention["config_source"]) == ("60000", "DYNAMIC_TOPIC_CONFIG")
    assert retention["config_type"] == "LONG"
    own, *defaults = retention["synonyms"]
    assert own == {"name": "retention.ms", "value": "60000", "source": "DYNAMIC_TOPIC_CONFIG"}
    # Kafka leaves out a synonym in another unit; we show it as it is set.
    assert defaults in (
        [],
        [{"name": "log.retention.hours", "value": "168", "source": "DEFAULT_CONFIG"}],
    )
    assert (segment["value"], segment["config_source"]) == ("1073741824", "DEFAULT_CONFIG")
    assert segment["synonyms"] == [
        {"name": "log.segment.bytes", "value": "1073741824", "source": "DEFAULT_CONFIG"}
    ]


@pytest.mark.parametrize("incremental", [True, False])
def test_settings_are_changed_and_reset(
    admin: KafkaAdminClient, new_topic: Callable[..., str], incremental: bool
):
    topic = new_topic(retention_ms=60000)
    resource = ConfigResource(TOPIC, topic, {"segment.ms": "7000"})
    assert admin.alter_configs([resource], incremental=incremental) == {"topic": {topic: "OK"}}
    assert settings(admin, topic, "segment.ms", "retention.ms") == {
        "segment.ms": ("7000", "DYNAMIC_TOPIC_CONFIG"),
        "retention.ms": ("60000", "DYNAMIC_TOPIC_CONFIG"),
    }
    admin.reset_configs(
        [ConfigResource(TOPIC, topic, {"segment.ms": None})], incremental=incremental
    )
    assert settings(admin, topic, "segment.ms") == {"segment.ms": ("604800000", "DEFAULT_CONFIG")}


def test_a_broker_setting_is_changed_while_it_runs(admin: KafkaAdminClient):
    node = str(node_id(admin))

    def shown() -> tuple[str, str]:
        resource = ConfigResource(BROKER, node, ["log.cleaner.backoff.ms"])
        entry = admin.describe_configs([resource], config_filter="all")["broker"][node][
            "log.cleaner.backoff.ms"
        ]
        return entry["value"], entry["config_source"]

    before = shown()
    admin.alter_configs([ConfigResource(BROKER, node, {"log.cleaner.backoff.ms": "14000"})])
    assert shown() == ("14000", "DYNAMIC_BROKER_CONFIG")
    admin.reset_configs([ConfigResource(BROKER, node, {"log.cleaner.backoff.ms": None})])
    assert shown() == before


def test_records_are_deleted_and_offsets_listed(
    admin: KafkaAdminClient, shared_broker: LocalBroker, new_topic: Callable[..., str]
):
    tp = TopicPartition(new_topic(), 0)
    rows = [Row(b"k", b"v", timestamp=START_MS + at) for at in (0, 100, 5000, 200)]
    KafkaPython().produce(shared_broker.bootstrap, tp.topic, rows)
    assert admin.delete_records({tp: 1})[tp]["low_watermark"] == 1
    found = {
        mark: admin.list_partition_offsets({tp: mark})[tp][:2]
        for mark in (-2, -1, -3, -4, START_MS + 150)
    }
    assert found == {
        -2: (1, -1),
        -1: (4, -1),
        -3: (2, START_MS + 5000),
        -4: (1, -1),
        START_MS + 150: (2, START_MS + 5000),
    }


def test_log_directories_are_described(
    admin: KafkaAdminClient, shared_broker: LocalBroker, new_topic: Callable[..., str]
):
    topic = new_topic()
    KafkaPython().produce(shared_broker.bootstrap, topic, [Row(b"k", b"v" * 1000)])
    [answer] = admin.describe_log_dirs({topic: [0]}, brokers=[node_id(admin)])
    [directory] = answer["log_dirs"]
    assert directory["error_code"] == 0
    [found] = directory["topics"]
    assert found["name"] == topic
    assert [
        (p["partition_index"], p["offset_lag"], p["is_future_key"]) for p in found["partitions"]
    ] == [(0, 0, False)]
    assert found["partitions"][0]["partition_size"] > 1000
    assert 0 < directory["usable_bytes"] <= directory["total_bytes"]


def test_producers_are_described(
    admin: KafkaAdminClient, shared_broker: LocalBroker, new_topic: Callable[..., str]
):
    tp = TopicPartition(new_topic(), 0)
    KafkaPython().produce(shared_broker.bootstrap, tp.topic, [Row(b"k", b"v")] * 3, idempotent=True)
    [producer] = admin.describe_producers([tp])[tp].active_producers
    assert (producer.producer_epoch, producer.last_sequence) == (0, 2)


def test_the_cluster_is_described(admin: KafkaAdminClient, shared_broker: LocalBroker):
    found = admin.describe_cluster()
    assert [(b["host"], b["port"]) for b in found["brokers"]] == [
        (shared_broker.host, shared_broker.port)
    ]
    assert found["controller_id"] == found["brokers"][0]["broker_id"]
    assert found["cluster_id"]


def test_features_and_resources_are_told(admin: KafkaAdminClient, new_topic: Callable[..., str]):
    topic = new_topic()
    features = admin.describe_features()
    assert all(
        low <= high for low, high in (f["supported"] for f in features.values() if "supported" in f)
    )
    assert topic in admin.list_config_resources(["TOPIC"])["topic"]


# ---- aiokafka ----


def run(bootstrap: str, work: Callable[[AIOKafkaAdminClient], Coroutine[Any, Any, Any]]) -> Any:
    async def inside() -> Any:
        client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await client.start()
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(inside())


def test_aiokafka_manages_topics(shared_broker: LocalBroker, topic_name: str):
    async def work(admin: AIOKafkaAdminClient) -> None:
        created = await admin.create_topics(
            [AioNewTopic(topic_name, 2, 1, topic_configs={"segment.ms": "7000"})]
        )
        assert [row[1] for row in created.topic_errors] == [0]
        again = await admin.create_topics([AioNewTopic(topic_name, 2, 1)])
        assert [row[1] for row in again.topic_errors] == [36]
        assert topic_name in await admin.list_topics()
        await admin.create_partitions({topic_name: AioNewPartitions(4)})
        [found] = await admin.describe_topics([topic_name])
        assert sorted(row["partition"] for row in found["partitions"]) == [0, 1, 2, 3]
        assert len((await admin.describe_cluster())["brokers"]) == 1
        await admin.delete_topics([topic_name])
        assert topic_name not in await admin.list_topics()

    run(shared_broker.bootstrap, work)


def test_aiokafka_changes_settings_and_deletes_records(
    shared_broker: LocalBroker, new_topic: Callable[..., str]
):
    topic = new_topic()
    KafkaPython().produce(shared_broker.bootstrap, topic, [Row(b"k", b"v")] * 5)

    async def work(admin: AIOKafkaAdminClient) -> None:
        kind = AioConfigResourceType.TOPIC
        await admin.alter_configs([AioConfigResource(kind, topic, {"segment.ms": "7000"})])
        [answer] = await admin.describe_configs(
            [AioConfigResource(kind, topic, {"segment.ms": None})]
        )
        [(_code, _message, _kind, _name, entries)] = answer.resources
        assert [entry[:2] for entry in entries] == [("segment.ms", "7000")]
        tp = AioTopicPartition(topic, 0)
        assert await admin.delete_records({tp: RecordsToDelete(before_offset=3)}) == {tp: 3}

    run(shared_broker.bootstrap, work)
