"""Topics of a peer through librdkafka's admin client (imported on first use: it takes 40 ms)."""

from collections.abc import Iterable, Mapping
from typing import Any

from bench.processes import BenchFailed, wait_for

OFFSETS_TIMEOUT_S = 30


def create_topics(
    address: str,
    names: list[str],
    partitions: int,
    settings: Mapping[str, Any],
    replication: int = 1,
) -> None:
    """Create topics in requests of 100."""
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    admin = _admin(address)
    config = {name: str(value) for name, value in settings.items()}
    for start in range(0, len(names), 100):
        topics = [
            NewTopic(name, partitions, replication, config=config)
            for name in names[start : start + 100]
        ]
        _wait(admin.create_topics(topics, request_timeout=60).values(), "create topics")


def delete_topics(address: str, names: list[str]) -> None:
    """Delete all topics in one request."""
    admin = _admin(address)
    _wait(
        admin.delete_topics(names, operation_timeout=60, request_timeout=60).values(),
        "delete topics",
    )


def alter_topic(address: str, topic: str, settings: Mapping[str, str]) -> None:
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
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
    admin = _admin(address)
    _wait(admin.incremental_alter_configs([resource]).values(), "alter a topic")


def end_offsets(address: str, topic: str, partitions: int) -> int:
    """Return the sum of the end offsets of all partitions.

    One request for all: a thousand single ones take longer than a load.
    """
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    admin = _admin(address)
    end: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    latest = {TopicPartition(topic, partition): end for partition in range(partitions)}
    futures = admin.list_offsets(latest, request_timeout=OFFSETS_TIMEOUT_S)
    return sum(future.result().offset for future in futures.values())


def wait_served(address: str, topic: str, partitions: int) -> None:
    """Wait until a new topic is usable.

    Apache Kafka opens its logs one after the other.
    """
    from confluent_kafka import KafkaException

    def served() -> bool:
        try:
            return end_offsets(address, topic, partitions) >= 0
        except KafkaException:
            return False

    wait_for(served, f"all {partitions} partitions of {topic}")


def leaders(address: str, topic: str, partitions: int) -> list[str]:
    """Return the address of each partition's leader, when all have one."""
    addresses: dict[int, str] = {}

    def all_led() -> bool:
        metadata = _admin(address).list_topics(topic, timeout=10)
        for row in metadata.topics[topic].partitions.values():
            if row.leader in metadata.brokers:
                addresses[row.id] = (
                    f"{metadata.brokers[row.leader].host}:{metadata.brokers[row.leader].port}"
                )
        return len(addresses) >= partitions

    wait_for(all_led, f"a leader for each of {partitions} partitions")
    return [addresses[partition] for partition in range(partitions)]


def _admin(address: str) -> Any:
    from confluent_kafka.admin import AdminClient

    # The caller must keep a reference until the futures are done: they fail without it.
    return AdminClient({"bootstrap.servers": address, "log_level": 0})


def _wait(futures: Iterable[Any], action: str) -> None:
    from confluent_kafka import KafkaException

    try:
        for future in futures:
            future.result()
    except KafkaException as error:
        raise BenchFailed(f"cannot {action}: {error.args[0].str()}") from None
