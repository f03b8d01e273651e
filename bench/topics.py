"""Topics of a peer through librdkafka's admin client (imported on first use: it takes 40 ms)."""

from collections.abc import Mapping
from typing import Any


def create_topics(address: str, names: list[str], partitions: int, settings: Mapping[str, Any]) -> None:
    """In requests of 100 topics through librdkafka's admin client."""
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient({"bootstrap.servers": address})
    config = {name: str(value) for name, value in settings.items()}
    for start in range(0, len(names), 100):
        topics = [NewTopic(name, partitions, 1, config=config) for name in names[start : start + 100]]
        for future in admin.create_topics(topics, request_timeout=60).values():
            future.result()


def delete_topics(address: str, names: list[str]) -> None:
    """All of them in one request."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.delete_topics(names, operation_timeout=60, request_timeout=60).values():
        future.result()


def alter_topic(address: str, topic: str, settings: dict[str, str]) -> None:
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()
