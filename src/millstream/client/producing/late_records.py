"""Why a record was not written in time.

librdkafka retries, and does not report what the brokers answered. When it has given up, the cluster
is asked: has the partition a leader, has it enough in-sync replicas, is the leader's disk full.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.client.admin.client import Admin
from millstream.client.connection import Connection
from millstream.client.errors import ClientError
from millstream.core.types import TopicPartition
from millstream.core.words import listed

# A diagnosis must not double the time that the caller has waited.
MAX_WAIT_S = 5.0
# A disk with less free space is full: the next batch or index file does not fit.
FULL_BELOW_BYTES = 16 << 20


class Cause(NamedTuple):
    """The problem, and what to do about it."""

    problem: str
    hint: str


def find_cause(connection: Connection, partition: TopicPartition) -> Cause | None:
    """Return why the partition accepts no records.

    None if nothing is wrong with it now, or if no broker answers.
    """
    timeout_s = min(MAX_WAIT_S, connection.timeout_s)
    try:
        with Admin(connection.bootstrap, timeout_s=timeout_s, options=connection.options) as admin:
            return _find(admin, partition)
    except ClientError:
        return None


def _find(admin: Admin, partition: TopicPartition) -> Cause | None:
    partitions = admin.topics.get(partition.topic).partitions
    state = next(state for state in partitions if state.id == partition.partition)
    missing = sorted(set(state.replicas) - set(state.isr))
    if state.leader is None:
        return Cause(
            f"{partition} has no leader", f"start {listed(state.replicas, 'broker')} again"
        )
    (configs,) = admin.configs.describe_topics([partition.topic]).values()
    needed = next(
        (int(config.value or 1) for config in configs if config.name == "min.insync.replicas"), 1
    )
    if len(state.isr) < needed:
        return Cause(
            f"{partition} has {len(state.isr)} of the {needed} in-sync replicas "
            "that min.insync.replicas requires",
            f"start {listed(missing, 'broker')} again, or lower min.insync.replicas of the topic"
            if missing
            else "lower min.insync.replicas of the topic, or give it more replicas",
        )
    return _find_full_disk(admin, state.leader)


def _find_full_disk(admin: Admin, broker: int) -> Cause | None:
    for directory in admin.cluster.log_directories(broker):
        if not directory.online:
            return Cause(
                f"the directory {directory.path} of broker {broker} is offline",
                "see the log of that broker",
            )
        if directory.usable_bytes is not None and directory.usable_bytes < FULL_BELOW_BYTES:
            return Cause(
                f"the disk of broker {broker} is full: "
                f"{directory.path} has {directory.usable_bytes:,} bytes left",
                "free space, or shorten retention; records are accepted again at once",
            )
    return None
