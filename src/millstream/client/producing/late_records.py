"""Why a record was not written in time.

librdkafka retries what passes and keeps to itself what the brokers answered. Once it has given up,
the cluster is asked: has the partition a leader, has it enough replicas in sync, is the disk of its
leader full.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.client.admin.client import Admin
from millstream.client.connection import Connection
from millstream.client.errors import ClientError
from millstream.core.types import TopicPartition
from millstream.core.words import listed

# A diagnosis must not double the time that the caller has waited already.
MAX_WAIT_S = 5.0
# A disk with less room than this is full: the next batch or index file does not fit.
FULL_BELOW_BYTES = 16 << 20


class Cause(NamedTuple):
    """What is wrong, and what to do about it."""

    problem: str
    hint: str


def find_cause(connection: Connection, partition: TopicPartition) -> Cause | None:
    """Return why the partition takes no records; None if nothing is wrong with it now, or no broker
    answers.
    """
    timeout_s = min(MAX_WAIT_S, connection.timeout_s)
    try:
        with Admin(connection.bootstrap, timeout_s=timeout_s, options=connection.options) as admin:
            return _find(admin, partition)
    except ClientError:
        return None


def _find(admin: Admin, partition: TopicPartition) -> Cause | None:
    found = next(one for one in admin.topics.get(partition.topic).partitions if one.id == partition.partition)
    away = sorted(set(found.replicas) - set(found.isr))
    if found.leader is None:
        return Cause(f"{partition} has no leader", f"start {listed(found.replicas, 'broker')} again")
    (configs,) = admin.configs.describe_topics([partition.topic]).values()
    needed = next((int(one.value or 1) for one in configs if one.name == "min.insync.replicas"), 1)
    if len(found.isr) < needed:
        return Cause(
            f"{partition} has {len(found.isr)} of the {needed} replicas in sync that min.insync.replicas asks for",
            f"start {listed(away, 'broker')} again, or lower min.insync.replicas of the topic"
            if away
            else "lower min.insync.replicas of the topic, or give it more replicas",
        )
    return _find_full_disk(admin, found.leader)


def _find_full_disk(admin: Admin, broker: int) -> Cause | None:
    for directory in admin.cluster.log_directories(broker):
        if not directory.online:
            return Cause(
                f"the directory {directory.path} of broker {broker} is offline", "see the log of that broker"
            )
        if directory.usable_bytes is not None and directory.usable_bytes < FULL_BELOW_BYTES:
            return Cause(
                f"the disk of broker {broker} is full: {directory.path} has {directory.usable_bytes:,} bytes left",
                "free space, or shorten retention; records are accepted again at once",
            )
    return None
