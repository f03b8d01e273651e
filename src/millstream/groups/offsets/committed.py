"""Committed offsets, and the pending offsets of open transactions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from millstream.core.decisions import CoordinatorRecord
from millstream.groups.records import offset_tombstone
from millstream.wire.group_records import OffsetCommitKey, OffsetCommitValue


class Committed(NamedTuple):
    """A committed offset. ``order`` grows with every record.

    Of a transactional and a plain commit, the later *record* wins, whenever the marker is written.
    """

    value: OffsetCommitValue
    order: int


_ByTopic = dict[str, dict[int, Committed]]
_Key = tuple[str, str, int]


class Offsets:
    """group -> topic -> partition -> committed offset, with indexes that are derived from it."""

    def __init__(self) -> None:
        self._committed: dict[str, _ByTopic] = {}
        # producer id -> offsets that wait for its marker
        self._pending: dict[int, dict[_Key, Committed]] = {}
        # group -> (topic, partition) -> producers with an open transaction on it
        self._open: dict[str, dict[tuple[str, int], set[int]]] = {}
        # topic -> groups with a committed or pending offset of it
        self._topics: dict[str, set[str]] = {}
        self._order = 0

    # ---- queries ----

    def has(self, group: str) -> bool:
        return group in self._committed or group in self._open

    def groups(self) -> Iterator[str]:
        yield from self._committed
        yield from (group for group in self._open if group not in self._committed)

    def topics(self) -> Iterable[str]:
        return self._topics

    def groups_of(self, topic: str) -> Iterable[str]:
        return self._topics.get(topic, ())

    def of(self, group: str) -> _ByTopic:
        return self._committed.get(group, {})

    def get(self, group: str, topic: str, partition: int) -> OffsetCommitValue | None:
        committed = self._committed.get(group, {}).get(topic, {}).get(partition)
        return committed.value if committed is not None else None

    def has_open_transaction(self, group: str) -> bool:
        return group in self._open

    def is_open(self, group: str, topic: str, partition: int) -> bool:
        """Return whether an open transaction commits this partition."""
        of_group = self._open.get(group)
        return of_group is not None and (topic, partition) in of_group

    def open_partitions(self, group: str) -> Iterable[tuple[str, int]]:
        return self._open.get(group, {})

    def values(self, group: str, topic: str, partition: int) -> Iterator[OffsetCommitValue]:
        """Yield the committed offset and the pending offsets of open transactions."""
        committed = self.get(group, topic, partition)
        if committed is not None:
            yield committed
        for producer_id in self._open.get(group, {}).get((topic, partition), ()):
            yield self._pending[producer_id][group, topic, partition].value

    def tombstones(self, group: str) -> list[CoordinatorRecord]:
        """Return a tombstone for every partition with a committed or pending offset."""
        keys = dict.fromkeys((topic, n) for topic, rows in self.of(group).items() for n in rows)
        keys.update(dict.fromkeys(self.open_partitions(group)))
        return [offset_tombstone(group, topic, partition) for topic, partition in keys]

    @property
    def durable(self) -> tuple[object, ...]:
        committed = {
            (group, topic, partition): row.value
            for group, by_topic in self._committed.items()
            for topic, rows in by_topic.items()
            for partition, row in rows.items()
        }
        pending = {
            (producer_id, *key): row.value
            for producer_id, rows in self._pending.items()
            for key, row in rows.items()
        }
        return committed, pending

    # ---- changes ----

    def apply(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        if value is None:
            self._remove(key.group, key.topic, key.partition)
        else:
            self._put(key.group, key.topic, key.partition, Committed(value, self._next()))

    def apply_transactional(
        self, key: OffsetCommitKey, value: OffsetCommitValue, producer_id: int
    ) -> None:
        group, topic, partition = key.group, key.topic, key.partition
        self._pending.setdefault(producer_id, {})[group, topic, partition] = Committed(
            value, self._next()
        )
        self._open.setdefault(group, {}).setdefault((topic, partition), set()).add(producer_id)
        self._topics.setdefault(topic, set()).add(group)

    def apply_marker(self, producer_id: int, commit: bool) -> None:
        for (group, topic, partition), pending in self._pending.pop(producer_id, {}).items():
            self._close(group, topic, partition, producer_id)
            existing = self._committed.get(group, {}).get(topic, {}).get(partition)
            if commit and (existing is None or pending.order > existing.order):
                self._put(group, topic, partition, pending)
            self._prune_topic(group, topic)

    def _next(self) -> int:
        self._order += 1
        return self._order

    def _put(self, group: str, topic: str, partition: int, row: Committed) -> None:
        by_topic = self._committed.get(group)
        if by_topic is None:
            by_topic = self._committed[group] = {}
        rows = by_topic.get(topic)
        if rows is None:
            rows = by_topic[topic] = {}
            self._topics.setdefault(topic, set()).add(group)
        rows[partition] = row

    def _remove(self, group: str, topic: str, partition: int) -> None:
        by_topic = self._committed.get(group, {})
        rows = by_topic.get(topic, {})
        rows.pop(partition, None)
        if not rows:
            by_topic.pop(topic, None)
        if not by_topic:
            self._committed.pop(group, None)
        for producer_id in list(self._open.get(group, {}).get((topic, partition), ())):
            pending = self._pending[producer_id]
            del pending[group, topic, partition]
            if not pending:
                del self._pending[producer_id]
            self._close(group, topic, partition, producer_id)
        self._prune_topic(group, topic)

    def _close(self, group: str, topic: str, partition: int, producer_id: int) -> None:
        of_group = self._open[group]
        producers = of_group[topic, partition]
        producers.discard(producer_id)
        if not producers:
            del of_group[topic, partition]
        if not of_group:
            del self._open[group]

    def _prune_topic(self, group: str, topic: str) -> None:
        if topic in self._committed.get(group, {}) or any(
            t == topic for t, _ in self._open.get(group, ())
        ):
            return
        groups = self._topics.get(topic)
        if groups is not None:
            groups.discard(group)
            if not groups:
                del self._topics[topic]
