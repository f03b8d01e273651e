"""Verification of the files of a partition or data directory without a broker. Reads only.

Every batch is checked against its checksum, its neighbours and the leader epochs; every index
against the log and against `index-checksums`. The last segment is checked less strictly, because a
broker may be running.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final, NamedTuple

from millstream.log.directories import file_names
from millstream.log.directories.checkpoints import (
    parse_partition_metadata,
    parse_sealed,
    read_meta_properties,
)
from millstream.log.directories.log_directory import CHECKPOINTS
from millstream.log.errors import CorruptFile
from millstream.log.integrity.checksums import Checksums, SegmentSums, Sum
from millstream.log.leader_epochs import LeaderEpochs
from millstream.log.producers import snapshot
from millstream.log.producers.snapshot import CorruptSnapshot
from millstream.log.segments import transaction_index
from millstream.log.segments.offset_index import OffsetIndex
from millstream.log.segments.time_index import TimeIndex
from millstream.log.segments.transaction_index import AbortedTransaction
from millstream.ports.files import RealFiles
from millstream.wire.records.batch import (
    BatchHeader,
    CorruptBatch,
    crc_matches,
    parse_header,
    read_marker,
)
from millstream.wire.records.layout import HEADER_SIZE

_WINDOW: Final = 4 << 20
_NO_BASE: Final = 1 << 63


class _Torn(str):
    """The fault of a batch whose end is not in the file."""


class Finding(NamedTuple):
    """A fault of a file."""

    path: str
    reason: str


@dataclass(slots=True)
class Report:
    """Counts of the verified files and batches."""

    partitions: int = 0
    segments: int = 0
    batches: int = 0
    size: int = 0
    damaged: int = 0


def verify(path: str, report: Report) -> Iterator[Finding]:
    """Verify a partition's directory, or all of a data directory. Raises OSError."""
    names = sorted(os.listdir(path))
    if (
        any(file_names.segment_base(name) is not None for name in names)
        or file_names.PARTITION_METADATA in names
    ):
        findings = _Partition(path, report).verify(names)
    else:
        findings = _directory(path, names, report)
    for finding in findings:
        report.damaged += 1
        yield finding


def _directory(path: str, names: list[str], report: Report) -> Iterator[Finding]:
    for name in names:
        file = os.path.join(path, name)
        parsed = file_names.parse_directory(name)
        try:
            if name in CHECKPOINTS:
                parse_sealed(_read(file), file)
            elif name == file_names.META_PROPERTIES:
                read_meta_properties(RealFiles(), file)
            elif parsed is not None and parsed.kind == "" and os.path.isdir(file):
                yield from _Partition(file, report).verify(sorted(os.listdir(file)))
        except CorruptFile as error:
            yield Finding(file, _reason(error, file))
        except OSError as error:
            yield Finding(file, f"cannot be read: {error.strerror or error}")


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _reason(error: Exception, path: str) -> str:
    return str(error).removeprefix(f"{path}: ")


@dataclass(slots=True)
class _Partition:
    """One partition's directory, from the first segment to the last."""

    directory: str
    report: Report
    checksums: Checksums | None = None
    epochs: LeaderEpochs | None = None
    open_since: dict[int, int] = field(
        default_factory=dict
    )  # producer id -> first offset of its transaction
    end: int = -1

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def verify(self, names: list[str]) -> Iterator[Finding]:
        self.report.partitions += 1
        yield from self._small_files(names)
        bases = sorted(
            base for name in names if (base := file_names.segment_base(name)) is not None
        )
        yield from self._missing(bases)
        for base, following in zip(bases, [*bases[1:], None], strict=True):
            self.report.segments += 1
            yield from self._guarded(
                file_names.segment_name(base) + file_names.LOG, self._segment(base, following)
            )

    def _guarded(self, name: str, findings: Iterator[Finding]) -> Iterator[Finding]:
        try:
            yield from findings
        except (CorruptFile, CorruptSnapshot, CorruptBatch, ValueError) as error:
            yield Finding(self.path(name), _reason(error, self.path(name)))
        except OSError as error:
            yield Finding(
                error.filename or self.path(name), f"cannot be read: {error.strerror or error}"
            )

    def _small_files(self, names: list[str]) -> Iterator[Finding]:
        for name in names:
            yield from self._guarded(name, self._small_file(name))
        known = self.checksums.small.topic_id if self.checksums is not None else None
        if known is not None and file_names.PARTITION_METADATA not in names:
            yield Finding(self.path(file_names.PARTITION_METADATA), "is missing")

    def _small_file(self, name: str) -> Iterator[Finding]:
        path = self.path(name)
        if name == file_names.INDEX_CHECKSUMS:
            self.checksums = Checksums.parse(_read(path), path)
        elif name == file_names.LEADER_EPOCHS:
            self.epochs = LeaderEpochs.parse(_read(path), path)
        elif name == file_names.PARTITION_METADATA:
            topic_id = parse_partition_metadata(_read(path), path)
            known = self.checksums.small.topic_id if self.checksums is not None else None
            if known not in (None, topic_id):
                yield Finding(path, f"has the topic id {topic_id}, not {known}")
        elif name.endswith(file_names.SNAPSHOT):
            snapshot.decode(_read(path))

    def _missing(self, bases: list[int]) -> Iterator[Finding]:
        if self.checksums is None:
            return
        for base in self.checksums.segments:
            if bases and base not in bases and base > bases[0]:
                yield Finding(
                    self.path(file_names.segment_name(base) + file_names.LOG), "is missing"
                )

    def _segment(self, base: int, following: int | None) -> Iterator[Finding]:
        stem, last = file_names.segment_name(base), following is None
        path = self.path(stem + file_names.LOG)
        sums = self.checksums.segments.get(base) if self.checksums is not None else None
        headers: dict[int, BatchHeader] = {}
        aborts: set[tuple[int, int]] = set()
        for position, header, problem in self._batches(path, base, following, aborts):
            if header is not None:
                headers[position] = header
            # A broker may be writing the last batch.
            if problem and not (last and isinstance(problem, _Torn)):
                yield Finding(path, f"at byte {position}: {problem}")
        size = os.path.getsize(path)
        if sums is not None and file_names.LOG in sums and size < sums[file_names.LOG].size:
            yield Finding(path, f"has {size} bytes, but {sums[file_names.LOG].size} were flushed")
        yield from self._indexes(base, headers, aborts, sums, last=last)

    def _batches(
        self, path: str, base: int, following: int | None, aborts: set[tuple[int, int]]
    ) -> Iterator[tuple[int, BatchHeader | None, str]]:
        """Yield (position, header, fault or empty text) of every batch that can be read."""
        end = max(self.end, base)
        with open(path, "rb") as file:
            position, data, start = 0, b"", 0
            while True:
                at = position - start
                if at + HEADER_SIZE > len(data):
                    file.seek(position)
                    data, start, at = file.read(_WINDOW), position, 0
                if at >= len(data):
                    break
                try:
                    header = parse_header(data, at)
                except CorruptBatch as error:
                    yield position, None, error.reason
                    return  # the position of the next batch is unknown
                if at + header.size > len(data):
                    file.seek(position)
                    data, start, at = file.read(max(header.size, _WINDOW)), position, 0
                limit = _limit(file, position + header.size, end, following)
                yield position, header, self._problem(data, at, header, end, limit, aborts)
                self.report.batches += 1
                self.report.size += header.size
                position += header.size
                if end <= header.base_offset < header.next_offset <= limit:
                    end = header.next_offset
        self.end = end

    def _problem(
        self,
        data: bytes,
        at: int,
        header: BatchHeader,
        end: int,
        limit: int,
        aborts: set[tuple[int, int]],
    ) -> str:
        if at + header.size > len(data):
            return _Torn(
                f"a batch of {header.size} bytes, of which {len(data) - at} are in the file"
            )
        if not crc_matches(data, at, header):
            return f"the batch at offset {header.base_offset} does not match its checksum"
        if header.base_offset < end or header.next_offset > limit:
            return (
                f"a batch at offset {header.base_offset}, which does not lie between its neighbours"
            )
        self._follow_transaction(data[at : at + header.size], header, aborts)
        epoch = self.epochs.epoch_of(header.base_offset) if self.epochs is not None else -1
        if 0 <= header.leader_epoch < epoch:
            epochs = f"leader epoch {header.leader_epoch}, not {epoch}"
            return f"the batch at offset {header.base_offset} has {epochs}"
        return ""

    def _follow_transaction(
        self, batch: bytes, header: BatchHeader, aborts: set[tuple[int, int]]
    ) -> None:
        if not header.transactional:
            return
        if not header.control:
            self.open_since.setdefault(header.producer_id, header.base_offset)
            return
        marker = read_marker(batch) if header.count else None
        began = self.open_since.pop(header.producer_id, None)
        if marker is not None and not marker.commit and began is not None:
            aborts.add((header.producer_id, header.base_offset))

    def _indexes(
        self,
        base: int,
        headers: dict[int, BatchHeader],
        aborts: set[tuple[int, int]],
        sums: SegmentSums | None,
        *,
        last: bool,
    ) -> Iterator[Finding]:
        stem = file_names.segment_name(base)
        for kind in file_names.INDEXES:
            path = self.path(stem + kind)
            data = _read(path) if os.path.exists(path) else b""
            problem = (
                _sum_problem(data, sums[kind], last) if sums is not None and kind in sums else None
            )
            if problem is None and kind == file_names.OFFSET_INDEX:
                problem = _offsets_problem(OffsetIndex.parse(data, base), headers)
            elif problem is None and kind == file_names.TIME_INDEX:
                problem = _times_problem(TimeIndex.parse(data, base), headers)
            elif problem is None:
                problem = transaction_index.fault(data) or _aborts_problem(
                    transaction_index.valid_entries(data), aborts
                )
            if problem is not None:
                yield Finding(path, problem)


def _limit(file: BinaryIO, position: int, end: int, following: int | None) -> int:
    """Return the offset that the batch before a position may not reach.

    The next batch or segment begins there.
    """
    file.seek(position)
    base = file.read(8)
    if len(base) == 8 and (next_offset := int.from_bytes(base, "big", signed=True)) >= end:
        return next_offset  # else the next batch is the misplaced one
    return following if following is not None else _NO_BASE


def _sum_problem(data: bytes, known: Sum, last: bool) -> str | None:
    if not known.begins(data) or (len(data) > known.size and not last):
        return "does not match its checksum"
    return None


def _offsets_problem(index: OffsetIndex, headers: dict[int, BatchHeader]) -> str | None:
    for offset, position in zip(index.offsets, index.positions, strict=True):
        header = headers.get(position)
        if header is None:
            return f"points to byte {position}, where no batch begins"
        if index.base_offset + offset < header.base_offset:
            return f"has offset {index.base_offset + offset} for the batch at offset {header.base_offset}"
    return None


def _times_problem(index: TimeIndex, headers: dict[int, BatchHeader]) -> str | None:
    largest = max((header.max_timestamp for header in headers.values()), default=-1)
    for slot in range(len(index)):
        timestamp, _offset = index.entry(slot)
        if timestamp > largest:
            return f"has the timestamp {timestamp}, later than any record"
    return index.fault()


def _aborts_problem(entries: list[AbortedTransaction], aborts: set[tuple[int, int]]) -> str | None:
    known = {(entry.producer_id, entry.last_offset) for entry in entries}
    missing = aborts - known
    if missing:
        producer_id, offset = min(missing, key=lambda pair: pair[1])
        return f"lacks the transaction that producer {producer_id} aborted at offset {offset}"
    return None
