"""Going on without a checkpoint: the copies themselves say how far the mirror has come.

First whoever wrote under the mirror's name is shut out, then the target is read up to where it ended at that moment, waiting for transactions that are
open. The last copy in each partition is then the last one for good, and the mirror begins behind it; at the beginning, if it is a copy of a topic that
had the name before. Copies of older versions do not say of which topic they are: what a new topic would lose is then not risked.
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
STRANGERS_S = 960.0
RETRY_S = 0.5


def resumed(direction: Direction, writer: str) -> Direction:
    """The direction, beginning behind the last copies that the target has; ``writer`` is the name of its progress."""
    ids = find_ids(direction)
    _fence(direction, writer)
    places, topic_ids = _partitions(direction)
    found: dict[str, dict[str, int]] = {}
    for place, offset in _positions(direction, ids, places, topic_ids).items():
        found.setdefault(place.topic, {})[str(place.partition)] = offset
    return replace(direction, starting=json.dumps(found)) if found else direction


def _fence(direction: Direction, writer: str) -> None:
    protocol = Protocol(direction.target.connection())
    try:
        TransactionOwner(protocol, writer, timeout_ms=60_000, patience_s=FENCE_PATIENCE_S).fence()
    finally:
        protocol.close()


def _partitions(direction: Direction) -> tuple[list[TopicPartition], Mapping[str, str]]:
    """Of the source, and the ids of their topics."""
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
    direction: Direction, ids: Ids, places: list[TopicPartition], topic_ids: Mapping[str, str]
) -> Mapping[TopicPartition, int]:
    names = {place.topic: direction.selection.target_topic(place.topic) for place in places}
    copies = _settled(direction, set(names.values()))
    found = {}
    try:
        for place in places:
            there = TopicPartition(names[place.topic], place.partition)
            last = None
            if there in copies.bounds:
                last = last_copy(copies.reader(there, ids.source, place.topic), copies.bounds[there])
            found[place] = (
                EARLIEST if last is None else _behind(last, place, there, topic_ids.get(place.topic, ""))
            )
    finally:
        copies.close()
    return found


def _behind(last: Copy, place: TopicPartition, there: TopicPartition, topic_id: str) -> int:
    """Where the mirror goes on in a partition of the source whose last copy this is."""
    if topic_id and not last.topic_id:
        raise ClientError(
            f"the last copy in {there} does not say which topic {place.topic} it was copied from: an older version has written it",
            hint=f"nothing tells whether that one was deleted and made again since; --exclude '{place.topic}' resumes the others",
        )
    return last.source + 1 if last.topic_id == topic_id else EARLIEST


def _settled(direction: Direction, topics: set[str]) -> Copies:
    """The target when every transaction that was open at first has ended."""
    first = Copies(direction.target, topics, committed=False)
    first.close()
    give_up_s = time.monotonic() + STRANGERS_S
    while True:
        copies = Copies(direction.target, topics)
        behind = [one for one, bounds in first.bounds.items() if copies.bounds[one].end < bounds.end]
        if not behind:
            return copies
        copies.close()
        if time.monotonic() > give_up_s:
            raise ClientError(
                f"a transaction is open on {behind[0]} of {direction.target.name} since offset {copies.bounds[behind[0]].end}",
                hint="find its owner with `millstream transactions list`, or abort it",
            )
        time.sleep(RETRY_S)
