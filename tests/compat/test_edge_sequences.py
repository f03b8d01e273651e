"""Edge cases that take more than one request: topics made and deleted, settings layered, telemetry,
as Apache Kafka answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from compat.crafted import batch
from compat.raw_client import RawConnection
from compat.raw_requests import (
    APPEND,
    BROKER,
    DELETE,
    NULL_ID,
    SET,
    SUBTRACT,
    TOPIC,
    all_topics,
    alter_configs,
    alter_incrementally,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    delete_topics_by_name,
    describe_configs,
    errors,
    metadata,
    produce,
    values,
)
from compat.raw_requests import message as request
from compat.raw_requests import new_topic as topic_row
from compat.topics import topic_id
from compat.waiting import eventually
from millstream.core.errors import ErrorCode as E
from millstream.local.broker import LocalBroker

NewTopic = Callable[..., str]


# ---- topics ----


def test_a_topic_twice_in_one_request_is_refused_once_and_the_rest_made(
    connection: RawConnection, topic_name: str
):
    twice, once = f"{topic_name}-twice", f"{topic_name}-once"
    asked = create_topics(topic_row(twice), topic_row(twice), topic_row(once))
    answer = connection.call("CreateTopics", 7, asked)
    found = {topic.name: topic.error_code for topic in answer.topics}
    assert (len(answer.topics), found) == (2, {twice: E.INVALID_REQUEST, once: 0})
    eventually(lambda: once in values(connection.call("Metadata", 12, all_topics()), "name"), True)
    assert twice not in values(connection.call("Metadata", 12, all_topics()), "name")


def test_an_answer_shows_what_was_made(connection: RawConnection, topic_name: str):
    asked = create_topics(topic_row(topic_name, 2, -1, configs={"retention.ms": "1000"}))
    [made] = connection.call("CreateTopics", 7, asked).topics
    assert (made.error_code, made.num_partitions, made.replication_factor) == (0, 2, 1)
    assert made.topic_id != NULL_ID
    configs = {config.name: (config.value, config.config_source) for config in made.configs}
    assert configs["retention.ms"] == ("1000", 1)
    assert configs["cleanup.policy"] == ("delete", 5)


def test_nothing_is_written_behind_a_batch_that_came_before_its_topic(
    connection: RawConnection, topic_name: str
):
    """Kafka takes the later one; librdkafka then takes the earlier one for written, too, and it is
    lost.
    """

    def send(sequence: int) -> list[int]:
        return errors(
            connection.call("Produce", 9, produce(topic_name, batch(producer=(4711, 0, sequence))))
        )

    assert send(0) == [E.UNKNOWN_TOPIC_OR_PARTITION]
    connection.call("CreateTopics", 7, create_topics(topic_row(topic_name)))
    assert send(1) == [E.UNKNOWN_TOPIC_OR_PARTITION]
    assert [send(n) for n in (0, 1)] == [[0], [0]]


def test_topics_are_deleted_by_name_and_by_id(
    connection: RawConnection, shared_broker: LocalBroker, new_topic: NewTopic
):
    named, known, old = new_topic(), new_topic(), new_topic()
    by_name = connection.call("DeleteTopics", 6, delete_topics(named)).responses
    assert [(row.name, row.error_code, row.topic_id != NULL_ID) for row in by_name] == [
        (named, 0, True)
    ]
    identity = topic_id(shared_broker.bootstrap, known)
    by_id = connection.call("DeleteTopics", 6, delete_topics(identity)).responses
    assert [(row.name, row.error_code, row.topic_id) for row in by_id] == [(known, 0, identity)]
    mixed = connection.call("DeleteTopics", 5, delete_topics_by_name(old, f"{old}-not")).responses
    assert sorted(row.error_code for row in mixed) == [0, E.UNKNOWN_TOPIC_OR_PARTITION]
    again = connection.call("DeleteTopics", 6, delete_topics(named, identity))
    assert sorted(errors(again)) == [E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_ID]


def test_partitions_are_added_step_by_step(connection: RawConnection, new_topic: NewTopic):
    topic = new_topic(2)

    def count() -> int:
        return len(values(connection.call("Metadata", 12, metadata(topic)), "partition_index"))

    node = connection.call("Metadata", 12, metadata()).brokers[0].node_id
    assert errors(
        connection.call("CreatePartitions", 3, create_partitions(topic, 3, validate_only=True))
    ) == [0]
    assert count() == 2
    assert errors(connection.call("CreatePartitions", 0, create_partitions(topic, 3))) == [0]
    eventually(count, 3)
    assigned = create_partitions(topic, 4, assignments=[[node]])
    assert errors(connection.call("CreatePartitions", 3, assigned)) == [0]
    eventually(count, 4)


def test_records_are_deleted_step_by_step(connection: RawConnection, new_topic: NewTopic):
    topic = new_topic()
    assert errors(connection.call("Produce", 9, produce(topic, batch([(b"k", b"v")] * 6)))) == [0]

    def delete(offset: int, version: int = 2) -> tuple[int, int]:
        answer = connection.call("DeleteRecords", version, delete_records(topic, offset))
        return errors(answer)[0], values(answer, "low_watermark")[0]

    assert delete(2) == (0, 2)
    assert delete(1) == (0, 2)
    assert delete(0) == (0, 2)
    assert delete(7) == (E.OFFSET_OUT_OF_RANGE, -1)
    assert delete(6) == (0, 6)
    assert delete(-1, version=0) == (0, 6)


# ---- settings ----


class Settings:
    """Changes and shows settings over one connection."""

    def __init__(self, connection: RawConnection) -> None:
        self.connection = connection

    def change(
        self, kind: int, name: str, *operations: tuple[str, int, str | None], **how: Any
    ) -> int:
        asked = alter_incrementally(kind, name, *operations, **how)
        [code] = errors(self.connection.call("IncrementalAlterConfigs", 1, asked))
        return int(code)

    def replace(self, name: str, *pairs: tuple[str, str | None], **how: Any) -> int:
        [code] = errors(
            self.connection.call("AlterConfigs", 2, alter_configs(TOPIC, name, *pairs, **how))
        )
        return int(code)

    def shown(self, kind: int, name: str, key: str) -> tuple[str, int] | None:
        [answer] = self.connection.call(
            "DescribeConfigs", 4, describe_configs(kind, name, key)
        ).results
        return next(((one.value, one.config_source) for one in answer.configs), None)


@pytest.fixture
def settings(connection: RawConnection) -> Settings:
    return Settings(connection)


def test_a_list_grows_and_shrinks(settings: Settings, new_topic: NewTopic):
    topic = new_topic(cleanup_policy="compact")
    steps: list[tuple[int, str, str]] = [
        (APPEND, "delete", "compact,delete"),
        (APPEND, "delete", "compact,delete"),
        (SUBTRACT, "compact", "delete"),
        (SUBTRACT, "compact", "delete"),
        (SUBTRACT, "delete", ""),
        (SET, "delete", "delete"),
    ]
    for what, value, left in steps:
        assert settings.change(TOPIC, topic, ("cleanup.policy", what, value)) == 0
        eventually(lambda: settings.shown(TOPIC, topic, "cleanup.policy"), (left, 1))


def test_a_setting_is_set_deleted_and_only_tried(settings: Settings, new_topic: NewTopic):
    topic = new_topic()
    assert settings.change(TOPIC, topic, ("retention.ms", SET, "7000")) == 0
    eventually(lambda: settings.shown(TOPIC, topic, "retention.ms"), ("7000", 1))
    assert settings.change(TOPIC, topic, ("retention.ms", SET, "8000"), validate_only=True) == 0
    assert (
        settings.change(TOPIC, topic, ("retention.ms", SET, "9000"), ("foo", SET, "1"))
        == E.INVALID_CONFIG
    )
    assert settings.shown(TOPIC, topic, "retention.ms") == ("7000", 1)
    for _ in range(2):
        assert settings.change(TOPIC, topic, ("retention.ms", DELETE, None)) == 0
        eventually(lambda: settings.shown(TOPIC, topic, "retention.ms"), ("604800000", 5))


def test_the_older_way_replaces_all_settings(settings: Settings, new_topic: NewTopic):
    topic = new_topic(cleanup_policy="compact", retention_ms=5000)
    assert settings.replace(topic, ("segment.ms", "100000")) == 0
    eventually(lambda: settings.shown(TOPIC, topic, "segment.ms"), ("100000", 1))
    assert settings.shown(TOPIC, topic, "cleanup.policy") == ("delete", 5)
    assert settings.replace(topic, ("segment.ms", "5"), validate_only=True) == 0
    assert settings.shown(TOPIC, topic, "segment.ms") == ("100000", 1)
    assert settings.replace(topic) == 0
    eventually(lambda: settings.shown(TOPIC, topic, "segment.ms"), ("604800000", 5))


def test_settings_of_a_broker_come_in_layers(settings: Settings, new_topic: NewTopic):
    """Of all brokers, then of one; a topic shows where its own comes from."""
    topic = new_topic()
    node = str(settings.connection.call("Metadata", 12, metadata()).brokers[0].node_id)
    key = "log.message.timestamp.after.max.ms"
    shown = (
        settings.shown(BROKER, node, key),
        settings.shown(TOPIC, topic, "message.timestamp.after.max.ms"),
    )
    assert shown == (("3600000", 5), ("3600000", 5))
    try:
        assert settings.change(BROKER, "", (key, SET, "7000000")) == 0
        eventually(lambda: settings.shown(BROKER, "", key), ("7000000", 3))
        eventually(lambda: settings.shown(BROKER, node, key), ("7000000", 3))
        eventually(
            lambda: settings.shown(TOPIC, topic, "message.timestamp.after.max.ms"), ("7000000", 3)
        )
        assert settings.change(BROKER, node, (key, SET, "8000000")) == 0
        eventually(lambda: settings.shown(BROKER, node, key), ("8000000", 2))
        eventually(
            lambda: settings.shown(TOPIC, topic, "message.timestamp.after.max.ms"), ("8000000", 2)
        )
    finally:
        settings.change(BROKER, node, (key, DELETE, None))
        settings.change(BROKER, "", (key, DELETE, None))
    eventually(lambda: settings.shown(BROKER, node, key), ("3600000", 5))


# ---- telemetry ----


def test_a_client_that_pushes_metrics_is_heard(connection: RawConnection):
    def push(**values: Any) -> int:
        asked = request("GetTelemetrySubscriptions", client_instance_id=NULL_ID)
        given = connection.call("GetTelemetrySubscriptions", 0, asked)
        assert (given.error_code, given.requested_metrics) == (0, [])
        told = {
            "client_instance_id": given.client_instance_id,
            "subscription_id": given.subscription_id,
        }
        code = connection.call(
            "PushTelemetry", 0, request("PushTelemetry", **told | values)
        ).error_code
        return int(code)

    assert push() == 0
    assert push(terminating=True) == 0
    assert push(subscription_id=5) == E.UNKNOWN_SUBSCRIPTION_ID
    assert push(compression_type=9) == E.UNSUPPORTED_COMPRESSION_TYPE
    assert push(metrics=bytes(2 << 20)) == E.TELEMETRY_TOO_LARGE
