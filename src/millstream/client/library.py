"""What we use of confluent-kafka, named in one place.

Importing this module loads librdkafka (60 ms), so ``errors`` and ``connection``, which the command line needs for its
help and its errors, do not.
"""

from __future__ import annotations

import time
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

from millstream.client.errors import NO_ANSWER, ClientError

T = TypeVar("T")
FIRST_PATIENCE_S = 1.0


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
    client: AdminClient | KafkaConsumer | KafkaProducer, topic: str | None, timeout_s: float
) -> Any:
    """What a client is told of a topic, or of all; KafkaException when nobody answers in time.

    The library asks one broker, and waits for that one though it has died meanwhile: so it is asked again, with more patience each time.
    """
    deadline_s, patience_s = time.monotonic() + timeout_s, FIRST_PATIENCE_S
    asked = () if topic is None else (topic,)
    while True:
        left_s = deadline_s - time.monotonic()
        try:
            return interruptible(client.list_topics, *asked, timeout=min(patience_s, max(left_s, 0.01)))
        except KafkaException as error:
            if error.args[0].code() not in NO_ANSWER or left_s <= patience_s:
                raise
        patience_s *= 2


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
