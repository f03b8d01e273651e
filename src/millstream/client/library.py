"""What we use of confluent-kafka, named in one place.

Importing this module loads librdkafka (60 ms), so ``errors`` and ``connection``, which the command line needs for its
help and its errors, do not.
"""

from __future__ import annotations

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message, TopicCollection
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

__all__ = [
    "AdminClient",
    "AlterConfigOpType",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
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
]
