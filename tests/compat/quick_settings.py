"""Settings of a broker whose groups and transactions do without the pauses that are meant for large
clusters.
"""

from __future__ import annotations

QUICK: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    "group.consumer.min.session.timeout.ms": 500,
    "group.consumer.session.timeout.ms": 1500,
    "group.consumer.min.heartbeat.interval.ms": 50,
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.regex.refresh.interval.ms": 10_000,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}
