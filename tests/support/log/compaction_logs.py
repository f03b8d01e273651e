"""Logs as plain files for the tests of compaction: written batch by batch, cleaned in rounds, read
as a consumer does.

`LogFiles` is a partition's directory without a broker. Offsets are assigned as a leader would; a
transaction that is aborted gets its entry in the transaction index. `clean` runs a round and swaps
the result in by renaming.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from millstream.log.cleaner.compaction import Compaction
from millstream.log.cleaner.job import (
    ActiveProducer,
    CleanedGroup,
    CleanJob,
    Retention,
    SourceSegment,
)
from millstream.log.directories import file_names
from millstream.log.segments import transaction_index
from millstream.log.segments.offset_index import OffsetIndex
from millstream.log.segments.time_index import TimeIndex
from millstream.log.segments.transaction_index import AbortedTransaction
from millstream.ports.files import RealFiles
from millstream.wire.records.batch import (
    BatchHeader,
    Record,
    build_batch,
    build_marker,
    crc_matches,
    parse_header,
    read_marker,
    read_records,
)

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


class StoredBatch(NamedTuple):
    header: BatchHeader
    data: bytes

    @property
    def records(self) -> list[Record]:
        return read_records(self.data, max_bytes=1 << 30)


class LogFiles:
    """A log in a directory; the last segment is the active one."""

    def __init__(self, directory: Any, base_offset: int = 0) -> None:
        self.directory = str(directory)
        self.next_offset = base_offset
        self.sequences: dict[int, int] = {}
        self.open_transactions: dict[int, int] = {}  # producer id -> first offset
        self.first_dirty_offset = base_offset
        self.bases: list[int] = []
        self.roll()

    # -- writing

    def path(self, base_offset: int, kind: str = file_names.LOG) -> str:
        return os.path.join(self.directory, file_names.segment_name(base_offset) + kind)

    def roll(self) -> None:
        if self.bases and self.bases[-1] == self.next_offset:
            return
        self.bases.append(self.next_offset)
        for kind in (file_names.LOG, file_names.OFFSET_INDEX, file_names.TIME_INDEX):
            with open(self.path(self.next_offset, kind), "wb"):
                pass

    def put(
        self,
        *pairs: tuple[str | None, str | None],
        pid: int = -1,
        epoch: int = 0,
        txn: bool = False,
        codec: int = 0,
        timestamp: int | None = None,
        timestamp_type: int = 0,
    ) -> int:
        """Append one batch of (key, value); the offset of its first record."""
        first = self.next_offset
        records = [
            Record(
                first + i,
                (START_MS + first + i) if timestamp is None else timestamp,
                None if key is None else key.encode(),
                None if value is None else value.encode(),
                (("at", str(first + i).encode()),) if (first + i) % 3 == 0 else (),
            )
            for i, (key, value) in enumerate(pairs)
        ]
        sequence = -1
        if pid >= 0:
            sequence = self.sequences.get(pid, 0)
            self.sequences[pid] = sequence + len(records)
        if txn:
            self.open_transactions.setdefault(pid, first)
        data = build_batch(
            records,
            base_offset=first,
            codec=codec,
            timestamp_type=timestamp_type,
            leader_epoch=3,
            producer_id=pid,
            producer_epoch=epoch if pid >= 0 else -1,
            base_sequence=sequence,
            transactional=txn,
        )
        self._append(data, first + len(records))
        return first

    def end_transaction(self, pid: int, *, commit: bool, epoch: int = 0) -> int:
        """Append a marker; its offset."""
        offset = self.next_offset
        marker = build_marker(
            base_offset=offset,
            leader_epoch=3,
            producer_id=pid,
            producer_epoch=epoch,
            coordinator_epoch=0,
            commit=commit,
            timestamp=START_MS + offset,
        )
        self._append(marker, offset + 1)
        first = self.open_transactions.pop(pid, None)
        if not commit and first is not None:
            entry = AbortedTransaction(pid, first, offset, self.last_stable_offset)
            with open(self.path(self.bases[-1], file_names.TRANSACTION_INDEX), "ab") as file:
                file.write(transaction_index.encode([entry]))
        return offset

    def _append(self, data: bytes, next_offset: int) -> None:
        with open(self.path(self.bases[-1]), "ab") as file:
            file.write(data)
        self.next_offset = next_offset

    # -- cleaning

    @property
    def last_stable_offset(self) -> int:
        return min(self.open_transactions.values(), default=self.next_offset)

    @property
    def cleanable_end(self) -> int:
        """The base offset of the first segment that may not be cleaned."""
        return max(base for base in self.bases if base <= self.last_stable_offset)

    def job(self, now_ms: int, **options: Any) -> CleanJob:
        end = self.cleanable_end
        rules = Retention(
            now_ms,
            options.pop("delete_retention_ms", 24 * HOUR_MS),
            end,
            options.pop("active", {}),
            {},
            options.pop("max_decompressed_bytes", 1 << 30),
            options.pop("drop_deletions", True),
        )
        closed = [base for base in self.bases if base < end]
        segments = tuple(SourceSegment(base, os.path.getsize(self.path(base))) for base in closed)
        later = tuple(base for base in self.bases if base >= end)
        return CleanJob(self.directory, segments, self.first_dirty_offset, rules, later, **options)

    def clean(self, now_ms: int, **options: Any) -> Compaction:
        """A whole round, each group swapped in as soon as it is written."""
        compaction = Compaction(self.job(now_ms, **options), RealFiles())
        for number in range(len(compaction.groups)):
            self.swap(compaction.clean_group(number))
        self.first_dirty_offset = compaction.end_offset
        return compaction

    def swap(self, group: CleanedGroup) -> None:
        for base in group.old:
            for kind in file_names.SEGMENT_FILES:
                if os.path.exists(self.path(base, kind)):
                    os.unlink(self.path(base, kind))
            self.bases.remove(base)
        for cleaned in group.new:
            for kind in file_names.SEGMENT_FILES:
                path = self.path(cleaned.base_offset, kind)
                if os.path.exists(path + file_names.CLEANED):
                    os.rename(path + file_names.CLEANED, path)
            self.bases.append(cleaned.base_offset)
        self.bases.sort()

    # -- reading

    def batches(self, base: int | None = None) -> Iterator[StoredBatch]:
        """Every batch of a segment, or of the log; checks what every reader relies on."""
        for base_offset in self.bases if base is None else [base]:
            with open(self.path(base_offset), "rb") as file:
                data = file.read()
            at = 0
            while at < len(data):
                header = parse_header(data, at)
                assert crc_matches(data, at, header)
                assert header.base_offset >= base_offset
                yield StoredBatch(header, data[at : at + header.size])
                at += header.size

    def records(self) -> list[Record]:
        """All data records in their order, committed or not."""
        return [
            record
            for batch in self.batches()
            if not batch.header.control
            for record in batch.records
        ]

    def aborted(self) -> list[AbortedTransaction]:
        entries = []
        for base in self.bases:
            path = self.path(base, file_names.TRANSACTION_INDEX)
            if os.path.exists(path):
                with open(path, "rb") as file:
                    entries += transaction_index.parse(file.read())
        return entries

    def read_committed(self) -> list[Record]:
        """What a read_committed consumer sees: it skips by the list of aborted transactions and by
        markers.
        """
        coming = sorted(self.aborted(), key=lambda entry: entry.first_offset)
        skipping: set[int] = set()
        seen: list[Record] = []
        for batch in self.batches():
            header = batch.header
            if header.base_offset >= self.last_stable_offset:
                break
            while coming and coming[0].first_offset <= header.last_offset:
                skipping.add(coming.pop(0).producer_id)
            if header.control:
                marker = read_marker(batch.data)
                if marker is not None and not marker.commit:
                    skipping.discard(header.producer_id)
            elif not (header.transactional and header.producer_id in skipping):
                seen += batch.records
        return seen

    def producers(self) -> dict[int, tuple[int, int, int]]:
        """What a restart would know of each producer from the log: epoch, last sequence, last
        offset of data.
        """
        state: dict[int, tuple[int, int, int]] = {}
        for batch in self.batches():
            header = batch.header
            if header.producer_id < 0:
                continue
            if header.control:
                _, sequence, offset = state.get(header.producer_id, (-1, -1, -1))
                state[header.producer_id] = (header.producer_epoch, sequence, offset)
            else:
                state[header.producer_id] = (
                    header.producer_epoch,
                    header.last_sequence,
                    header.last_offset,
                )
        return state

    def active_producers(self) -> dict[int, ActiveProducer]:
        return {
            pid: ActiveProducer(offset, epoch)
            for pid, (epoch, _, offset) in self.producers().items()
        }

    def check_indexes(self, bases: Iterable[int]) -> None:
        for base in bases:
            positions, largest, at = {}, (-1, base), 0
            for batch in self.batches(base):
                positions[at] = batch.header.last_offset
                if batch.header.max_timestamp > largest[0]:
                    largest = (batch.header.max_timestamp, batch.header.last_offset)
                at += len(batch.data)
            with open(self.path(base, file_names.OFFSET_INDEX), "rb") as file:
                offsets = OffsetIndex.parse(file.read(), base)
            for relative, position in zip(offsets.offsets, offsets.positions, strict=True):
                assert positions[position] == base + relative
            with open(self.path(base, file_names.TIME_INDEX), "rb") as file:
                times = TimeIndex.parse(file.read(), base)
            entries = [times.entry(slot) for slot in range(len(times))]
            assert entries == sorted(set(entries))
            assert times.last == largest


def pairs(records: Iterable[Record]) -> list[tuple[int, str | None, str | None]]:
    """(offset, key, value) as text."""
    return [
        (
            r.offset,
            None if r.key is None else r.key.decode(),
            None if r.value is None else r.value.decode(),
        )
        for r in records
    ]
