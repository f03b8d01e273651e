"""Resumes a mirror without a checkpoint, from the copies in the target.

First, older writers with the mirror's name are fenced. Then the target is read up to its current
end, after all open transactions have ended. So the last copy in each partition is final, and the
mirror starts after it. If that is a copy of an earlier topic of the same name, the mirror starts at
the beginning. Copies of older versions do not name the id of their topic. Then resuming is
rejected, since records of a recreated topic could be lost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace

from millstream.client.errors import ClientError
from millstream.client.protocol import Protocol
from millstream.connect.mirror.copies import Copies
from millstream.connect.mirror.direction import Direction, Ids, find_ids
from millstream.connect.mirror.offsets import Copy, last_copy
from millstream.core.types import TopicPartition
from millstream.spark.options import BATCH, only_for, parse
from millstream.spark.sink.transaction import TransactionOwner
from millstream.spark.source.cluster_view import ClusterView
from millstream.spark.source.offsets import EARLIEST

FENCE_PATIENCE_S = 60.0
OPEN_TRANSACTIONS_S = 960.0
RETRY_S = 0.5


def resumed(direction: Direction, writer: str) -> Direction:
    """Return the direction, starting after the last copies in the target.

    ``writer`` is the name of its progress.
    """
    ids = find_ids(direction)
    _fence(direction, writer)
    partitions, topic_ids = _partitions(direction)
    starting: dict[str, dict[str, int]] = {}
    for partition, offset in _positions(direction, ids, partitions, topic_ids).items():
        starting.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return replace(direction, starting=json.dumps(starting)) if starting else direction


def _fence(direction: Direction, writer: str) -> None:
    protocol = Protocol(direction.target.connection())
    try:
        TransactionOwner(protocol, writer, timeout_ms=60_000, patience_s=FENCE_PATIENCE_S).fence()
    finally:
        protocol.close()


def _partitions(direction: Direction) -> tuple[list[TopicPartition], Mapping[str, str]]:
    """Return the partitions of the source, and the ids of their topics."""
    source = direction.source
    options = {
        **only_for(source.options, BATCH),
        "kafka.bootstrap.servers": source.bootstrap,
        "subscribePattern": direction.selection.pattern,
    }
    view = ClusterView(parse(options, BATCH))
    try:
        return sorted(view.refresh()), view.ids
    finally:
        view.close()


def _positions(
    direction: Direction, ids: Ids, partitions: list[TopicPartition], topic_ids: Mapping[str, str]
) -> Mapping[TopicPartition, int]:
    names = {
        partition.topic: direction.selection.target_topic(partition.topic)
        for partition in partitions
    }
    copies = _without_open_transactions(direction, set(names.values()))
    positions = {}
    try:
        for partition in partitions:
            target = TopicPartition(names[partition.topic], partition.partition)
            last = None
            if target in copies.bounds:
                read = copies.reader(target, ids.source, partition.topic)
                last = last_copy(read, copies.bounds[target])
            topic_id = topic_ids.get(partition.topic, "")
            positions[partition] = (
                EARLIEST if last is None else _position_after(last, partition, target, topic_id)
            )
    finally:
        copies.close()
    return positions


def _position_after(
    last: Copy, source: TopicPartition, target: TopicPartition, topic_id: str
) -> int:
    """Return where the mirror continues in a partition of the source, after its last copy."""
    if topic_id and not last.topic_id:
        raise ClientError(
            f"the last copy in {target} does not name the id of topic {source.topic}: "
            "an older version wrote it",
            hint="the topic may have been deleted and recreated since; "
            f"--exclude '{source.topic}' resumes the others",
        )
    return last.source + 1 if last.topic_id == topic_id else EARLIEST


def _without_open_transactions(direction: Direction, topics: set[str]) -> Copies:
    """Return the target after every transaction that is open now has ended."""
    first = Copies(direction.target, topics, committed=False)
    first.close()
    deadline_s = time.monotonic() + OPEN_TRANSACTIONS_S
    while True:
        copies = Copies(direction.target, topics)
        behind = [
            partition
            for partition, bounds in first.bounds.items()
            if copies.bounds[partition].end < bounds.end
        ]
        if not behind:
            return copies
        copies.close()
        if time.monotonic() > deadline_s:
            raise ClientError(
                f"a transaction on {behind[0]} of {direction.target.name} is open since offset "
                f"{copies.bounds[behind[0]].end}",
                hint="find its owner with `millstream transactions list`, or abort it",
            )
        time.sleep(RETRY_S)
