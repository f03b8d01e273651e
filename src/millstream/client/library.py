"""The parts of confluent-kafka that this package uses, named in one place.

Importing this module loads librdkafka (60 ms). ``errors`` and ``connection``, which the command
line needs for its help and errors, do not import it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
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
from millstream.client.retries import Retries

T = TypeVar("T")

# How long a closing member waits for a join that is in flight, and the time of each poll.
SETTLE_S = 0.2
SETTLE_POLL_S = 0.005


def make(kind: Callable[[dict[str, Any]], T], config: dict[str, Any]) -> T:
    """Create a client of confluent-kafka; ClientError if it rejects a property."""
    try:
        return kind(config)
    except KafkaException as error:
        reason = error.args[0].str()
        raise ClientError(
            f"the client options are invalid: {reason}",
            hint="names and values are those of librdkafka",
        ) from None


def interruptible(call: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Call into librdkafka, and raise KeyboardInterrupt for Ctrl-C during the call.

    confluent-kafka 2.16 notices the signal but may lose the exception on the way out. Python then
    raises a SystemError.
    """
    try:
        return call(*arguments, **named)
    except SystemError as error:
        if "without setting an exception" in str(error):
            raise KeyboardInterrupt from None
        raise


def close_member(client: KafkaConsumer, *, static: bool = False) -> None:
    """Leave the group and close.

    Every consumer that subscribes needs this, with or without rebalance callbacks. ``close`` hangs
    for ever in librdkafka up to 2.16 if a rebalance is pending that no poll has served (issue
    4884). ``close`` serves it while the group shuts down. A shutdown that completes in that moment
    drops the call to assign or unassign, which waits for its answer without a limit.

    Unsubscribing and serving rebalances first leaves nothing for ``close`` to serve. librdkafka
    postpones unsubscribing during a join, so a join in flight gets a moment to complete.

    ``static``: a static member of the classic protocol. It must not unsubscribe, because that would
    leave the group; its pending rebalances are served and nothing more.
    """
    try:
        _settle(client, static)
    finally:
        client.close()


def _settle(client: KafkaConsumer, static: bool) -> None:
    try:
        assigned = client.assignment()
    except RuntimeError:  # already closed
        return
    if assigned:
        client.pause(assigned)  # so that serving rebalances takes no records
    _serve_rebalances(client)
    had_partitions = bool(assigned or client.assignment())
    deadline_s = time.monotonic() + SETTLE_S
    while not static:
        with suppress(
            KafkaException
        ):  # after a fatal error, every call that changes the subscription fails
            client.unsubscribe()
        _serve_rebalances(client)
        has_partitions = bool(client.assignment())
        had_partitions |= has_partitions
        # Only the classic protocol drops the member id when it leaves.
        left = not client.memberid() or (had_partitions and not has_partitions)
        if left or time.monotonic() > deadline_s:
            return
        interruptible(client.poll, SETTLE_POLL_S)


def _serve_rebalances(client: KafkaConsumer) -> None:
    while interruptible(client.consume, 1_000, 0):
        pass


def cluster_metadata(
    client: AdminClient | KafkaConsumer | KafkaProducer,
    topic: str | None,
    retries: Retries,
    explain: Callable[[KafkaException], ClientError],
    doing: str,
) -> Any:
    """Return the client's metadata of a topic, or of all topics."""
    topics = () if topic is None else (topic,)

    def list_once(limit_s: float) -> Any:
        try:
            return interruptible(client.list_topics, *topics, timeout=limit_s)
        except KafkaException as error:
            raise explain(error) from None

    return retries.run(list_once, doing=doing)


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
    "close_member",
    "cluster_metadata",
    "interruptible",
    "make",
]
