"""The client library: ``Admin``, ``Producer``, ``Consumer``, ``produce`` and ``consume``.

It is built on confluent-kafka. The names below are loaded on first use, because librdkafka takes
60 ms to import, and an error class or an address does not need it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin as Admin
    from millstream.client.asynchronous import AsyncConsumer as AsyncConsumer
    from millstream.client.asynchronous import AsyncProducer as AsyncProducer
    from millstream.client.consumer import Consumer as Consumer
    from millstream.client.consumer import consume as consume
    from millstream.client.consuming.positions import Position as Position
    from millstream.client.consuming.threads import ConsumerThreads as ConsumerThreads
    from millstream.client.errors import BrokerUnreachable as BrokerUnreachable
    from millstream.client.errors import ClientError as ClientError
    from millstream.client.errors import CommitFailed as CommitFailed
    from millstream.client.errors import DeliveryFailed as DeliveryFailed
    from millstream.client.errors import GroupActive as GroupActive
    from millstream.client.errors import ProducerFenced as ProducerFenced
    from millstream.client.errors import TooFewRecords as TooFewRecords
    from millstream.client.errors import TopicExists as TopicExists
    from millstream.client.errors import UndecodableRecord as UndecodableRecord
    from millstream.client.errors import UnknownGroup as UnknownGroup
    from millstream.client.errors import UnknownPartition as UnknownPartition
    from millstream.client.errors import UnknownTopic as UnknownTopic
    from millstream.client.interceptors import ConsumerInterceptor as ConsumerInterceptor
    from millstream.client.interceptors import ProducerInterceptor as ProducerInterceptor
    from millstream.client.latency import LatencyInterceptor as LatencyInterceptor
    from millstream.client.producer import Producer as Producer
    from millstream.client.producer import produce as produce
    from millstream.client.record import Record as Record
    from millstream.client.serdes import avro as avro

_MODULES = {
    "Admin": "admin.client",
    "AsyncConsumer": "asynchronous",
    "AsyncProducer": "asynchronous",
    "BrokerUnreachable": "errors",
    "ClientError": "errors",
    "CommitFailed": "errors",
    "Consumer": "consumer",
    "ConsumerInterceptor": "interceptors",
    "ConsumerThreads": "consuming.threads",
    "DeliveryFailed": "errors",
    "GroupActive": "errors",
    "LatencyInterceptor": "latency",
    "Position": "consuming.positions",
    "Producer": "producer",
    "ProducerFenced": "errors",
    "ProducerInterceptor": "interceptors",
    "Record": "record",
    "TooFewRecords": "errors",
    "TopicExists": "errors",
    "UndecodableRecord": "errors",
    "UnknownGroup": "errors",
    "UnknownPartition": "errors",
    "UnknownTopic": "errors",
    "avro": "serdes",
    "consume": "consumer",
    "produce": "producer",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_MODULES)
