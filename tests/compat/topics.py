"""Making topics with raw requests, so that a test of one client does not lean on another."""

from __future__ import annotations

import time

from compat.raw_client import RawConnection
from compat.raw_requests import (
    EARLIEST,
    create_topics,
    delete_topics,
    errors,
    list_offsets,
    metadata,
    new_topic,
)

DEADLINE_S = 120.0


def create_topic(bootstrap: str, name: str, partitions: int = 1, **settings: object) -> str:
    """A topic that can be written to when this returns; settings have underscores for dots."""
    configs = {key.replace("_", "."): str(value) for key, value in settings.items()}
    with RawConnection(bootstrap) as connection:
        asked = create_topics(new_topic(name, partitions, configs=configs))
        answer = connection.call("CreateTopics", 7, asked)
        assert errors(answer) == [0], answer
        wait_until_led(connection, name, partitions)
    return name


def wait_until_led(connection: RawConnection, name: str, partitions: int) -> None:
    """Apache Kafka may answer before the leader of the last partition knows that it leads."""
    deadline = time.monotonic() + DEADLINE_S
    last = list_offsets(name, EARLIEST, partition=max(partitions, 1) - 1)
    while any(errors(connection.call("ListOffsets", 7, last))):
        assert time.monotonic() < deadline, f"nobody leads the last partition of {name}"


def delete_topic(bootstrap: str, name: str) -> None:
    with RawConnection(bootstrap) as connection:
        assert errors(connection.call("DeleteTopics", 6, delete_topics(name))) == [0]


def topic_id(bootstrap: str, name: str) -> bytes:
    with RawConnection(bootstrap) as connection:
        [topic] = connection.call("Metadata", 12, metadata(name)).topics
        assert topic.error_code == 0
        found: bytes = topic.topic_id
        return found
