"""What we use of confluent-kafka, named in one place.

Importing this module loads librdkafka (60 ms), so ``errors`` and ``connection``, which the command line needs for its
help and its errors, do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import ConsumerGroupTopicPartitions as GroupTopicPartitions
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message, TopicCollection
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from millstream.client.errors import ClientError
from millstream.client.retries import Patience

T = TypeVar("T")


def make(kind: Callable[[dict[str, Any]], T], config: dict[str, Any]) -> T:
    """A client of confluent-kafka; a property it does not take is a ClientError."""
    try:
        return kind(config)
    except KafkaException as error:
        reason = error.args[0].str()
        raise ClientError(
            f"the client options are refused: {reason}", hint="names and values are those of librdkafka"
        ) from None


def interruptible(call: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Call into librdkafka; Ctrl-C during the call is KeyboardInterrupt.

    confluent-kafka 2.16 notices the signal, but may lose the exception on its way out, which Python reports as this.
    """
    try:
        return call(*arguments, **named)
    except SystemError as error:
        if "without setting an exception" in str(error):
            raise KeyboardInterrupt from None
        raise


def cluster_metadata(
    client: AdminClient | KafkaConsumer | KafkaProducer,
    topic: str | None,
    patience: Patience,
    explain: Callable[[KafkaException], ClientError],
    doing: str,
) -> Any:
    """What a client is told of a topic, or of all."""
    asked = () if topic is None else (topic,)

    def ask(limit_s: float) -> Any:
        try:
            return interruptible(client.list_topics, *asked, timeout=limit_s)
        except KafkaException as error:
            raise explain(error) from None

    return patience.persist(ask, doing=doing)


__all__ = [
    "AdminClient",
    "AlterConfigOpType",
    "ConfigEntry",
    "ConfigResource",
    "GroupTopicPartitions",
    "IsolationLevel",
    "KafkaConsumer",
    "KafkaError",
    "KafkaException",
    "KafkaProducer",
    "KafkaTopicPartition",
    "Message",
    "NewPartitions",
    "NewTopic",
    "OffsetSpec",
    "TopicCollection",
    "cluster_metadata",
    "interruptible",
    "make",
]
