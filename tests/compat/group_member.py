"""A member of a group as a process of its own, so that it can be killed: ``python group_member.py
'{"client": ...}'``.

What happens to it goes to a ledger file, one JSON row per line, written before the next thing
happens. Times are of the machine's monotonic clock, so that the ledgers of many processes can be
put in order: ``["assigned", t, [partitions]]``, ``["read", t, [[partition, offset, value], ...]]``,
``["committed", t, {partition: offset}]``. SIGTERM makes it leave its group and end.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any, TextIO

Row = tuple[int, int, str]


class Member:
    """One client in a group: reads, notes, commits what it has noted, until it is told to end."""

    def __init__(self, options: dict[str, Any], ledger: TextIO) -> None:
        self.bootstrap: str = options["bootstrap"]
        self.group: str = options["group"]
        self.topic: str = options["topic"]
        self.strategy: str = options.get("strategy", "range")
        self.session_ms: int = options.get("session_ms", 6_000)
        self.instance: str | None = options.get("instance")
        self._ledger = ledger
        self.ended = False
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, number: int, frame: object) -> None:
        self.ended = True

    def note(self, what: str, content: Any) -> None:
        self._ledger.write(json.dumps([what, time.monotonic(), content]) + "\n")
        self._ledger.flush()

    def assigned(self, partitions: Iterable[int]) -> None:
        self.note("assigned", sorted(partitions))

    def read(self, rows: list[Row]) -> dict[int, int]:
        """Notes the rows; what is to be committed then."""
        self.note("read", rows)
        return {partition: offset + 1 for partition, offset, _ in rows}

    def committed(self, ends: dict[int, int]) -> None:
        self.note("committed", ends)


def confluent(member: Member) -> None:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    from millstream.client.library import close_member

    classic = {
        "partition.assignment.strategy": member.strategy,
        "session.timeout.ms": member.session_ms,
        "heartbeat.interval.ms": max(member.session_ms // 10, 50),
    }
    consumer = Consumer(
        {
            "bootstrap.servers": member.bootstrap,
            "group.id": member.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 500,
            "fetch.wait.max.ms": 50,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
        }
        | ({"group.instance.id": member.instance} if member.instance else {})
        | ({"group.protocol": "consumer"} if member.strategy == "consumer" else classic)
    )

    def on_assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        member.assigned(tp.partition for tp in partitions)

    consumer.subscribe([member.topic], on_assign=on_assign)
    while not member.ended:
        found = [m for m in consumer.consume(50, 0.05) if m.error() is None]
        if not found:
            continue
        ends = member.read([(m.partition(), m.offset(), m.value().decode()) for m in found])
        try:
            consumer.commit(
                offsets=[TopicPartition(member.topic, p, end) for p, end in ends.items()],
                asynchronous=False,
            )
            member.committed(ends)
        except KafkaException:
            pass  # a rebalance came between: the next member reads these again
    close_member(consumer, static=member.instance is not None and member.strategy != "consumer")


def kafka_python(member: Member) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndMetadata

    strategies = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None: ...

        def on_partitions_assigned(self, assigned: Any) -> None:
            member.assigned(tp.partition for tp in assigned)

    consumer = KafkaConsumer(
        bootstrap_servers=member.bootstrap,
        group_id=member.group,
        group_instance_id=member.instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=member.session_ms,
        heartbeat_interval_ms=max(member.session_ms // 10, 50),
        max_poll_interval_ms=60_000,
        partition_assignment_strategy=[strategies[member.strategy]],
        fetch_max_wait_ms=50,
        metadata_max_age_ms=500,
        max_poll_records=50,
    )
    consumer.subscribe([member.topic], listener=Listener())
    while not member.ended:
        polled = consumer.poll(
            timeout_ms=1_000
        )  # one that ends in the middle of a join may never get out of it
        rows = [
            (tp.partition, r.offset, r.value.decode()) for tp, some in polled.items() for r in some
        ]
        if not rows:
            continue
        ends = member.read(rows)
        try:
            consumer.commit(
                {
                    TopicPartition(member.topic, p): OffsetAndMetadata(end, "", -1)
                    for p, end in ends.items()
                }
            )
            member.committed(ends)
        except KafkaError:
            pass
    consumer.close()


def aiokafka(member: Member) -> None:
    asyncio.run(_aiokafka(member))


async def _aiokafka(member: Member) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from aiokafka.errors import KafkaError

    strategies = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None: ...

        def on_partitions_assigned(self, assigned: Any) -> None:
            member.assigned(tp.partition for tp in assigned)

    consumer = AIOKafkaConsumer(
        bootstrap_servers=member.bootstrap,
        group_id=member.group,
        group_instance_id=member.instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=member.session_ms,
        heartbeat_interval_ms=max(member.session_ms // 10, 50),
        max_poll_interval_ms=60_000,
        partition_assignment_strategy=[strategies[member.strategy]],
        fetch_max_wait_ms=50,
        metadata_max_age_ms=500,
    )
    consumer.subscribe([member.topic], listener=Listener())
    await consumer.start()
    while not member.ended:
        polled = await consumer.getmany(timeout_ms=50, max_records=50)
        rows = [
            (tp.partition, r.offset, r.value.decode()) for tp, some in polled.items() for r in some
        ]
        if not rows:
            continue
        ends = member.read(rows)
        try:
            await consumer.commit({TopicPartition(member.topic, p): end for p, end in ends.items()})
            member.committed(ends)
        except KafkaError:
            pass
    await consumer.stop()


CLIENTS = {"confluent": confluent, "kafka-python": kafka_python, "aiokafka": aiokafka}


def main() -> None:
    options = json.loads(sys.argv[1])
    with open(options["ledger"], "a", encoding="utf-8") as ledger:
        member = Member(options, ledger)
        CLIENTS[options["client"]](member)
        member.note("left", None)


if __name__ == "__main__":
    main()
