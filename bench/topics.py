"""Topics of a peer through librdkafka's admin client (imported on first use: it takes 40 ms)."""

from collections.abc import Iterable, Mapping
from typing import Any

from bench.processes import BenchFailed, wait_for

OFFSETS_TIMEOUT_S = 30


def create_topics(
    address: str, names: list[str], partitions: int, settings: Mapping[str, Any], replication: int = 1
) -> None:
    """In requests of 100 topics."""
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    admin = _admin(address)
    config = {name: str(value) for name, value in settings.items()}
    for start in range(0, len(names), 100):
        topics = [
            NewTopic(name, partitions, replication, config=config) for name in names[start : start + 100]
        ]
        _wait(admin.create_topics(topics, request_timeout=60).values(), "create topics")


def delete_topics(address: str, names: list[str]) -> None:
    """All of them in one request."""
    admin = _admin(address)
    _wait(admin.delete_topics(names, operation_timeout=60, request_timeout=60).values(), "delete topics")


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
    """Of all partitions together, asked for at once: a thousand questions one by one take longer than a load."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    admin = _admin(address)
    end: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    latest = {TopicPartition(topic, partition): end for partition in range(partitions)}
    futures = admin.list_offsets(latest, request_timeout=OFFSETS_TIMEOUT_S)
    return sum(future.result().offset for future in futures.values())


def wait_served(address: str, topic: str, partitions: int) -> None:
    """A topic that has been made is not there at once: Apache Kafka opens its logs one after the other."""
    from confluent_kafka import KafkaException

    def served() -> bool:
        try:
            return end_offsets(address, topic, partitions) >= 0
        except KafkaException:
            return False

    wait_for(served, f"all {partitions} partitions of {topic}")


def leaders(address: str, topic: str, partitions: int) -> list[str]:
    """The address of the leader of each of so many partitions, once all have one."""
    found: dict[int, str] = {}

    def all_led() -> bool:
        told = _admin(address).list_topics(topic, timeout=10)
        for row in told.topics[topic].partitions.values():
            if row.leader in told.brokers:
                found[row.id] = f"{told.brokers[row.leader].host}:{told.brokers[row.leader].port}"
        return len(found) >= partitions

    wait_for(all_led, f"a leader for each of {partitions} partitions")
    return [found[partition] for partition in range(partitions)]


def _admin(address: str) -> Any:
    from confluent_kafka.admin import AdminClient

    # The caller must hold it until the futures are done: without it they fail.
    return AdminClient({"bootstrap.servers": address, "log_level": 0})


def _wait(futures: Iterable[Any], what: str) -> None:
    from confluent_kafka import KafkaException

    try:
        for future in futures:
            future.result()
    except KafkaException as error:
        raise BenchFailed(f"cannot {what}: {error.args[0].str()}") from None
