"""Find the newest record of each key that a redrive would overwrite.

The topics are read from the origin of the oldest letter to their current end. Before each
transaction they are read again from where the last scan ended. A record that another producer
writes between the last scan and the commit is not seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from millstream.client.consumer import Consumer
from millstream.client.dead_letters.decisions import (
    Candidate,
    Group,
    NewerRecord,
    Target,
    record_order,
)
from millstream.client.dead_letters.letters import FIRST, Identity, NotRedriven, parse_first
from millstream.core.types import TopicPartition

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin
    from millstream.client.record import Record

REPORT_EVERY = 10_000


class NewestRecords:
    """The newest record of each key of these letters, in their target topics.

    The records that the letters are about are left out.
    """

    def __init__(
        self,
        admin: Admin,
        letters: Iterable[Candidate],
        *,
        each: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._admin = admin
        self._each = each
        self._count = 0
        self.newest: dict[Group, NewerRecord] = {}
        self._groups: set[Group] = set()
        self._keys: set[bytes] = set()
        self._own: set[tuple[str, int, int]] = set()
        self._next: dict[TopicPartition, int] = {}
        by_offset: dict[Target, int] = {}
        by_time: dict[Target, int] = {}
        for letter in letters:
            if letter.record is not None:
                self._own.add(letter.record[:3])
            if letter.group is None:
                continue
            self._groups.add(letter.group)
            self._keys.add(letter.group.key)
            oldest = by_offset if letter.group.by_offset else by_time
            target = letter.group.target
            oldest[target] = min(oldest.get(target, letter.order), letter.order)
        self._known = set(admin.topics.names()) if self._groups else set()
        for target, order in by_offset.items():
            self._start_at(self._partitions(target), order + 1)
        for target, order in by_time.items():
            self._start_after(self._partitions(target), order)

    def scan(self) -> None:
        """Read the records since the last scan."""
        ends = self._admin.offsets.list(
            dict.fromkeys(self._next, "latest"), isolation="read_committed"
        )
        behind: defaultdict[str, list[int]] = defaultdict(list)
        for partition, offset in self._next.items():
            if offset < ends[partition].offset:
                behind[partition.topic].append(partition.partition)
        for topic, partitions in behind.items():
            self._read(topic, partitions)
        for partition in self._next:
            self._next[partition] = max(self._next[partition], ends[partition].offset)

    def _read(self, topic: str, partitions: list[int]) -> None:
        connection = self._admin.connection
        with Consumer(
            connection.bootstrap,
            topic,
            partitions=partitions,
            start=NotRedriven("earliest", committed=self._next),
            until_end=True,
            timeout_s=connection.timeout_s,
            options=connection.options,
        ) as consumer:
            for record in consumer:
                self._count += 1
                if self._count % REPORT_EVERY == 0:
                    self._each(self._count)
                if record.key in self._keys:
                    self._compare(record)
                at = TopicPartition(topic, record.partition)
                self._next[at] = max(self._next[at], record.offset + 1)

    def _compare(self, record: Record) -> None:
        if (record.topic, record.partition, record.offset) in self._own:
            return
        place = Identity(record.topic, record.partition, record.offset, record.timestamp_ms)
        first = next((parse_first(value) for name, value in record.headers if name == FIRST), None)
        for partition, by_offset in (
            (record.partition, True),
            (record.partition, False),
            (None, False),
        ):
            group = Group(Target(record.topic, partition), by_offset, record.key)
            if group not in self._groups:
                continue
            order = record_order(place, first, by_offset=by_offset)
            if group not in self.newest or order > self.newest[group].order:
                self.newest[group] = NewerRecord(order, record.partition, record.offset)

    def _partitions(self, target: Target) -> list[TopicPartition]:
        """Return the partitions of a target; none for a topic that does not exist."""
        if target.topic not in self._known:
            return []
        partitions = self._admin.topics.partitions(target.topic)
        return [
            partition for partition in partitions if target.partition in (None, partition.partition)
        ]

    def _start_at(self, partitions: Iterable[TopicPartition], offset: int) -> None:
        for partition in partitions:
            self._next[partition] = min(self._next.get(partition, offset), offset)

    def _start_after(self, partitions: list[TopicPartition], timestamp_ms: int) -> None:
        requested = dict.fromkeys(partitions, max(timestamp_ms + 1, 0))
        listed = self._admin.offsets.list(dict(requested)) if requested else {}
        for partition, result in listed.items():
            if result.offset >= 0:
                self._start_at([partition], result.offset)
            else:  # all records are older: read only new ones
                end = self._admin.offsets.list({partition: "latest"})[partition].offset
                self._start_at([partition], end)
