"""Opening a partition's directory: after a clean shutdown with a few small reads, else with a check of every batch.

After an unclean stop everything from the recovery point on is suspect. Segments are scanned from the one that holds
it: the log is cut at the first batch that is torn, fails its checksum or leaves a gap, and later segments are taken
away, because a log must be a prefix of what was appended. Indexes, transaction index, leader epochs and producer
state are rebuilt by the same scan. What is cut is logged; where whole batches follow the bad place they are kept
beside the log in a file named `.cut`, since a torn write does not look like that.

Below the recovery point data was flushed, so damage there is not the trace of a crash. Apache Kafka would cut the log
there as well, and acknowledged records would be gone without a word unless another replica has them. Here the
partition stays offline instead, with the reason, until somebody restores the files or accepts the loss by creating a
file named `accept-data-loss` in the partition's directory.
"""

from __future__ import annotations

import logging
import os
import uuid
from dataclasses import dataclass, field
from functools import partial

from millstream.core.errors import ApiError
from millstream.core.types import TopicPartition
from millstream.log.cleaner.swap import finish_interrupted
from millstream.log.config import LogConfig
from millstream.log.directories import file_names
from millstream.log.directories.checkpoints import (
    format_partition_metadata,
    parse_partition_metadata,
)
from millstream.log.errors import CorruptFile, CorruptLog
from millstream.log.flush.job import unsaved_checksums
from millstream.log.integrity.checksums import Checksums, read_sums, summed
from millstream.log.integrity.unverified import Unchecked
from millstream.log.leader_epochs import LeaderEpochs
from millstream.log.partition_log import PartitionLog
from millstream.log.producers import snapshot as producer_snapshot
from millstream.log.producers.replay import rebuild_producers
from millstream.log.producers.state import ProducerState
from millstream.log.recovery.scan import Damage, scan
from millstream.log.segments.open_files import OpenFiles
from millstream.log.segments.segment import Segment
from millstream.log.segments.segment_list import SegmentList
from millstream.log.state import LogServices
from millstream.ports.files import Files

logger = logging.getLogger("millstream.log.recovery")


@dataclass(slots=True)
class Loading:
    """What is known of a log while it is being opened."""

    files: Files
    pool: OpenFiles
    directory: str
    tp: TopicPartition
    config: LogConfig
    clean: bool
    recovery_point: int
    log_start: int
    now_ms: int
    expired_before_ms: int
    power_lost: bool
    accept_loss: bool = False
    segments: list[Segment] = field(default_factory=list)
    snapshots: list[int] = field(default_factory=list)
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    state: ProducerState = field(default_factory=lambda: ProducerState(""))
    unsynced: list[str] = field(default_factory=list)
    verify_reads: bool = True
    checksums: Checksums | None = None
    log_start_known: bool = True
    deleted: set[int] = field(default_factory=set)

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def segment(self, base_offset: int, *, new: bool = False) -> Segment:
        return Segment(
            self.files, self.pool, self.directory, base_offset,
            index_interval=self.config.index_interval_bytes, created_ms=self.now_ms, new=new,
        )  # fmt: skip


def load(
    host: LogServices,
    pool: OpenFiles,
    directory: str,
    tp: TopicPartition,
    config: LogConfig,
    *,
    clean: bool,
    power_lost: bool = False,
    recovery_point: int = 0,
    log_start: int = 0,
    now_ms: int = 0,
    producer_expiration_ms: int = 24 * 3600 * 1000,
    verify_reads: bool = True,
    log_start_known: bool = True,
) -> PartitionLog:
    """Open the log. Waits for the disk. Raises CorruptLog where flushed data is damaged, OSError where the disk is. ``power_lost``: what was
    written and not synced may be gone, whole files of it. ``verify_reads``: verify what is read of it, once.
    ``log_start_known``: the checkpoint with the log start was good."""
    it = Loading(
        host.files, pool, directory, tp, config, clean, recovery_point, log_start, now_ms,
        expired_before_ms=now_ms - producer_expiration_ms, power_lost=power_lost, state=ProducerState(str(tp)),
        verify_reads=verify_reads, log_start_known=log_start_known,
    )  # fmt: skip
    before = it.files.listdir(directory)
    it.deleted = {
        file_names.offset_of(name) or 0
        for name in before
        if name.endswith(file_names.LOG + file_names.DELETED)
    }
    _load_checksums(it, before)
    found = finish_interrupted(it.files, pool, directory, before)
    it.accept_loss = file_names.ACCEPT_LOSS in found
    if it.accept_loss:
        it.clean, it.recovery_point = False, min(it.recovery_point, it.log_start)
    topic_id = _topic_id(it, found)
    _load_epochs(it, found)
    _collect(it, found)
    end = _clean_end(it) if it.clean else _recover(it)
    end = _check_ends(it, end)
    it.log_start = max(it.log_start, it.segments[0].base_offset, _log_start_of_epochs(it))
    it.epochs.truncate_end(end)
    it.epochs.truncate_start(it.log_start)
    if it.accept_loss:
        it.files.unlink(it.path(file_names.ACCEPT_LOSS))
    segment_list = SegmentList(it.files, host, pool, directory, config, it.segments, it.snapshots)
    log = PartitionLog(
        host, segment_list, tp, config, topic_id=topic_id, log_start_offset=it.log_start,
        log_end_offset=end, recovery_point=end if it.clean else min(recovery_point, end),
        epochs=it.epochs, producer_state=it.state,
        new=not it.clean,  # who died before the first flush did not make the directory durable
    )  # fmt: skip
    log.producer_expiration_ms = producer_expiration_ms
    log.segment_list.unsynced.update(it.unsynced)  # with the next flush
    for segment in it.segments:
        segment.log_file.rest()
    if it.checksums is None or it.checksums != unsaved_checksums(log):
        log.segment_list.checksums.not_saved()
    return log


def _topic_id(it: Loading, found: list[str]) -> uuid.UUID | None:
    """From partition.metadata, unless the file with the checksums knows better."""
    known = it.checksums.small.topic_id if it.checksums is not None else None
    if known is None:
        return _topic_id_on_disk(it, found)
    path, data = it.path(file_names.PARTITION_METADATA), format_partition_metadata(known)
    if file_names.PARTITION_METADATA not in found or it.files.read_bytes(path).strip() != data.strip():
        logger.warning("%s is missing or damaged; it is written again, for the topic id %s", path, known)
        it.files.write_bytes(path, data)
        it.unsynced.append(path)
    return known


def _topic_id_on_disk(it: Loading, found: list[str]) -> uuid.UUID | None:
    if file_names.PARTITION_METADATA not in found:
        return None
    path = it.path(file_names.PARTITION_METADATA)
    data = it.files.read_bytes(path)
    if not it.clean:
        it.unsynced.append(path)
    try:
        return parse_partition_metadata(data, path)
    except CorruptFile as error:
        if not it.clean or not data.strip():
            # The trace of a crash right after the topic was created. The directory's name tells which topic it is: that
            # of a deleted one was durably renamed before the name could be used again, or its broker was away then, and
            # finds a note of the deletion.
            logger.warning("%s; it is ignored", error)
            return None
        raise CorruptLog(it.directory, f"whose topic this is cannot be told: {error}") from error


def _load_checksums(it: Loading, found: list[str]) -> None:
    path = it.path(file_names.INDEX_CHECKSUMS)
    if file_names.INDEX_CHECKSUMS not in found:
        return
    if any(name.endswith(file_names.SWAP) for name in found):
        return  # they tell of what compaction has replaced
    try:
        it.checksums = Checksums.parse(it.files.read_bytes(path), path)
    except CorruptFile as error:
        logger.warning("%s; it is written again", error)
    if it.deleted:
        _remove_checksums(it)


def _remove_checksums(it: Loading) -> None:
    """Segments are about to be removed: the next start would take them for lost."""
    _unlink(it.files, it.path(file_names.INDEX_CHECKSUMS))
    it.files.sync_dir(it.directory)


def _load_epochs(it: Loading, found: list[str]) -> None:
    path = it.path(file_names.LEADER_EPOCHS)
    known = it.checksums.small.epochs if it.checksums is not None else None
    try:
        if file_names.LEADER_EPOCHS not in found:
            if known is None:
                return  # a new log, or one of before leader epochs
            raise CorruptFile(path, "is missing")
        data = it.files.read_bytes(path)
        it.epochs = LeaderEpochs.parse(data, path)
        if it.clean and known not in (None, summed(data)):
            it.epochs = LeaderEpochs()
            raise CorruptFile(path, "does not match its checksum")
    except CorruptFile as error:
        logger.warning("%s; the leader epochs are read from the batches instead", error)
        it.clean, it.recovery_point = False, min(it.recovery_point, it.log_start)


def _collect(it: Loading, found: list[str]) -> None:
    """The segments and snapshots that are there; indexes without a log go, logs without an index get one."""
    have = set(found)
    bases = sorted(base for name in found if (base := file_names.segment_base(name)) is not None)
    it.segments = [it.segment(base) for base in bases]
    _check_missing(it)
    for name in found:
        base = file_names.offset_of(name)
        if base is None:
            continue
        if name.endswith(file_names.INDEXES) and file_names.segment_name(base) + file_names.LOG not in have:
            logger.warning("%s has no log file beside it and is removed", it.path(name))
            it.files.unlink(it.path(name))
        elif name.endswith(file_names.SNAPSHOT):
            it.snapshots.append(base)
    it.snapshots.sort()
    for segment in it.segments:
        known = it.checksums.segments.get(segment.base_offset, {}) if it.checksums is not None else {}
        segment.index_files.sums = known if known.keys() >= set(file_names.INDEXES) else None
        if it.verify_reads:
            segment.unchecked = Unchecked(
                short_of=known[file_names.LOG].size if file_names.LOG in known else 0
            )
    if not it.clean:
        return  # the scan rebuilds what it reaches; below it _recover looks
    for segment in it.segments:
        _ensure_indexes(it, segment, have)


def _check_missing(it: Loading) -> None:
    """Raise CorruptLog if segments that were flushed are gone."""
    if it.checksums is None or it.accept_loss:
        return
    sizes = {segment.base_offset: partial(getattr, segment, "size") for segment in it.segments}
    # Another version or Apache Kafka may have used the directory since; then the log does not end as it did.
    counts = it.checksums.closed_with(sizes) if it.clean else it.log_start_known
    gone = [
        base
        for base in it.checksums.missing(sizes, first=it.log_start if counts else None)
        if base not in it.deleted and (it.clean or base < it.recovery_point)
    ]
    if gone:
        files = ", ".join(file_names.segment_name(base) + file_names.LOG for base in gone)
        raise CorruptLog(
            it.directory,
            f"{files} had been flushed and is missing. Restore the files, or create"
            f" {it.path(file_names.ACCEPT_LOSS)} to go on with what is left",
        )


def _ensure_indexes(it: Loading, segment: Segment, have: set[str]) -> None:
    """A flushed segment whose indexes are missing, or whose transaction index is damaged, gets new ones.

    A damaged offset or time index is rebuilt when it is first used: that needs nothing but the segment.
    """
    stem = file_names.segment_name(segment.base_offset)
    faults = [
        f"{kind} is missing"
        for kind in (file_names.OFFSET_INDEX, file_names.TIME_INDEX)
        if stem + kind not in have
    ]
    fault = _transactions_fault(segment, stem + file_names.TRANSACTION_INDEX in have)
    if fault is not None:
        faults.append(f"{file_names.TRANSACTION_INDEX}: {fault}")
    if not faults or not segment.size:
        return
    logger.warning("%r: rebuilding its indexes (%s)", segment, ", ".join(faults))
    state = ProducerState(str(it.tp))
    before = [other for other in it.segments if other.base_offset < segment.base_offset]
    rebuild_producers(
        it.files, it.directory, before, it.snapshots, state,
        end=segment.base_offset, expired_before_ms=it.expired_before_ms,
    )  # fmt: skip
    begin = _from_start(segment)
    _, damage = scan(segment, state, begin=begin)
    if damage is not None:
        raise CorruptLog(segment.path(file_names.LOG), f"flushed data is damaged: {damage}")
    segment.index.finish()
    for kind in file_names.INDEXES:
        if it.files.exists(segment.path(kind)):
            it.files.sync_file(segment.path(kind))
    it.files.sync_dir(it.directory)


def _transactions_fault(segment: Segment, exists: bool) -> str | None:
    if segment.index_files.sums is None:
        return (
            "it has no checksum"
            if exists and segment.files.size(segment.path(file_names.TRANSACTION_INDEX))
            else None
        )
    if exists or segment.index_files.sums[file_names.TRANSACTION_INDEX].size:
        return segment.index_files.fault_on_disk(file_names.TRANSACTION_INDEX)
    return None


def _clean_end(it: Loading) -> int:
    """The end of a log that was shut down cleanly; the state of its producers is in the last snapshot."""
    if not it.segments:
        return _begin(it, it.log_start)
    last = it.segments[-1]
    try:
        end = last.next_offset()
        if last.index_files.sums is not None:
            last.index_files.sums = {
                kind: last.index_files.sums[kind] for kind in file_names.INDEXES
            }  # its log goes on growing
        if last.unchecked is not None:
            last.unchecked = Unchecked(end=last.size)
    except ApiError as error:
        logger.warning("%s although the shutdown was clean; checking the log", error)
        it.clean = False
        return _recover(it)
    if it.snapshots:
        it.snapshots = rebuild_producers(
            it.files, it.directory, it.segments, it.snapshots, it.state,
            end=end,
            expired_before_ms=it.expired_before_ms,
        )  # fmt: skip
    return end


def _begin(it: Loading, offset: int) -> int:
    it.segments = [it.segment(offset, new=True)]
    it.state.clear(offset)
    return offset


def _recover(it: Loading) -> int:
    """Scan from the segment that holds the recovery point on; the end of what is good."""
    if not it.segments:
        return _begin(it, it.log_start)
    first = max(
        (n for n, segment in enumerate(it.segments) if segment.base_offset <= it.recovery_point), default=0
    )
    bases, found_snapshots = {segment.base_offset for segment in it.segments}, set(it.snapshots)
    have = set(it.files.listdir(it.directory))
    for segment in it.segments[:first]:
        _ensure_indexes(it, segment, have)
    begin = _resume(it, it.segments[first])
    start = begin[1]
    _drop_snapshots_after(it, start)
    it.epochs.truncate_end(max(start, it.recovery_point))
    it.snapshots = rebuild_producers(
        it.files, it.directory, it.segments[: first + 1], it.snapshots, it.state,
        end=start, expired_before_ms=it.expired_before_ms,
    )  # fmt: skip
    number = first
    while number < len(it.segments):
        damage = _recover_segment(it, number, begin)
        if damage is not None:
            _cut(it, number, damage)
        number += 1
        if number < len(it.segments):
            begin = _from_start(it.segments[number])
    end = it.segments[-1].next_offset()
    if end in found_snapshots and end not in bases:
        logger.warning("%s ends at offset %d: a segment that began there may be missing", it.directory, end)
    return end


def _resume(it: Loading, segment: Segment) -> tuple[int, int]:
    """Where the scan of the first suspect segment begins: at the recovery point, if its indexes lead there."""
    if it.recovery_point > segment.base_offset and _flushed_indexes_are_good(segment):
        segment.index_files.sums = None  # what comes after the flushed part of an index has no checksum
        begin = segment.index.resume_at(it.recovery_point)
        if begin is not None:
            segment.index_files.sums = read_sums(it.files, segment.path)
            if it.verify_reads:
                segment.unchecked = Unchecked(end=begin[0])
            return begin
    return _from_start(segment)


def _flushed_indexes_are_good(segment: Segment) -> bool:
    """Whether the indexes begin with what was flushed. Where that is unknown, only a transaction index is in doubt."""
    if segment.index_files.sums is None:
        return not segment.files.exists(segment.path(file_names.TRANSACTION_INDEX))
    for kind in file_names.INDEXES:
        fault = segment.index_files.fault_on_disk(kind, prefix=True)
        if fault is not None:
            logger.warning("%s: %s; rebuilding the indexes", segment.path(kind), fault)
            return False
    return True


def _from_start(segment: Segment) -> tuple[int, int]:
    segment.index.reset()
    segment.index_files.reset_transactions()
    segment.unchecked = None  # the scan verifies every batch
    return 0, segment.base_offset


def _drop_snapshots_after(it: Loading, offset: int) -> None:
    for snapshot in it.snapshots:
        if snapshot > offset:
            it.files.unlink(it.path(file_names.segment_name(snapshot) + file_names.SNAPSHOT))
    it.snapshots = [snapshot for snapshot in it.snapshots if snapshot <= offset]


def _recover_segment(it: Loading, number: int, begin: tuple[int, int]) -> Damage | None:
    segment = it.segments[number]
    if segment.base_offset not in it.snapshots and number and begin[1] == segment.base_offset:
        _write_snapshot(it, segment.base_offset)
    following = it.segments[number + 1] if number + 1 < len(it.segments) else None
    before = following.base_offset if following is not None else None
    end, damage = scan(segment, it.state, it.epochs, begin=begin, before=before, gaps=it.config.compact)
    _transactions_durable(it, segment)
    if damage is not None or following is None:
        return damage
    # What is compacted here has been flushed. A follower's copy of what its leader has compacted has gaps, too. When the process died, they are just
    # that; when the power was lost, such a gap may as well be the lost end of a segment, and only the leader can tell: it has what is cut here.
    copied = it.config.compact and not it.power_lost
    if end != following.base_offset and not copied and following.base_offset > it.recovery_point:
        return Damage(segment.size, end, f"the next segment begins at {following.base_offset}", False)
    segment.index.finish()
    return None


def _transactions_durable(it: Loading, segment: Segment) -> None:
    """The rebuilt transaction index must not be lost after it took the place of one that was durable: the next recovery
    may begin above this segment. The other indexes can wait, they only lead to the batches."""
    it.unsynced += segment.names.paths()[1:]
    if segment.index_files.transactions():
        it.files.sync_file(segment.path(file_names.TRANSACTION_INDEX))
        it.files.sync_dir(it.directory)


def _write_snapshot(it: Loading, offset: int) -> None:
    path = it.path(file_names.segment_name(offset) + file_names.SNAPSHOT)
    it.files.write_bytes(path, producer_snapshot.encode(it.state.snapshot()))
    it.snapshots.append(offset)


def _cut(it: Loading, number: int, damage: Damage) -> None:
    """End the log at the damage; later segments go first, so that a crash here leaves no gap behind."""
    segment = it.segments[number]
    path = segment.path(file_names.LOG)
    if damage.offset < it.recovery_point and not it.accept_loss:
        raise CorruptLog(
            path,
            f"at byte {damage.position}, offset {damage.offset}: {damage.reason}. Everything below offset"
            f" {it.recovery_point} had been flushed, so nothing is cut; the partition stays offline. Restore the"
            f" files, or create {it.path(file_names.ACCEPT_LOSS)} to go on with what is left",
        )
    _remove_checksums(it)
    for later in reversed(it.segments[number + 1 :]):
        logger.warning("%r: dropped (%d bytes), because %s is cut before it", later, later.size, path)
        _put_aside(it, later, 0, later.size)
        later.close()
        for kind in file_names.INDEXES:
            _unlink(it.files, later.path(kind))
        it.files.unlink(later.path(file_names.LOG))
    del it.segments[number + 1 :]
    lost = segment.size - damage.position
    if lost:
        logger.warning(
            "%s: cut at byte %d, offset %d (%d bytes go): %s",
            path, damage.position, damage.offset, lost, damage.reason,
        )  # fmt: skip
        if damage.followed:
            _put_aside(it, segment, damage.position, lost)
        segment.log_file.truncate(damage.position)
        segment.file().sync()  # else another crash could bring the old bytes back under new ones
    it.files.sync_dir(it.directory)


def _log_start_of_epochs(it: Loading) -> int:
    """Where the log begins by its leader epochs, if its checkpoint is lost: the first epoch begins there, too.
    Batches of before leader epochs have none, so that the first of them says nothing."""
    if it.log_start_known or not it.epochs.starts or not it.segments[0].size:
        return 0
    start = it.epochs.starts[0]
    if start <= it.segments[0].base_offset or it.segments[0].log_file.header_at(0).leader_epoch < 0:
        return 0
    logger.warning("%s begins at offset %d by its leader epochs", it.directory, start)
    return start


def _put_aside(it: Loading, segment: Segment, position: int, n: int) -> None:
    """Keep bytes that may hold whole batches, for somebody to look at."""
    if not n:
        return
    path = f"{segment.path(file_names.LOG)}.cut-{position}"
    out = it.files.open(path, create=True)
    try:
        out.truncate(0)
        while n > 0:
            chunk = segment.file().pread(position, min(n, 1 << 20))
            if not chunk:
                break
            out.append((chunk,))
            position += len(chunk)
            n -= len(chunk)
        out.sync()
    finally:
        out.close()
    logger.warning("what was cut is kept in %s", path)


def _unlink(files: Files, path: str) -> None:
    try:
        files.unlink(path)
    except FileNotFoundError:
        pass


def _check_ends(it: Loading, end: int) -> int:
    """The log may not end before its start or before its recovery point."""
    if end < it.log_start:
        logger.warning(
            "%s ends at %d, before its log start %d: all that is there had been deleted; it goes on at its start",
            it.directory, end, it.log_start,
        )  # fmt: skip
        _remove_checksums(it)
        for segment in reversed(it.segments):
            segment.close()
            for path in segment.names.paths():
                _unlink(it.files, path)
        it.epochs.clear()
        it.segments = [it.segment(it.log_start, new=True)]
        _write_snapshot(it, it.log_start)
        it.files.sync_dir(it.directory)
        return it.log_start
    if end < it.recovery_point and not it.accept_loss:
        raise CorruptLog(
            it.directory,
            f"the log ends at offset {end}, but was flushed up to {it.recovery_point}: records are missing. Restore"
            f" the files, or create {it.path(file_names.ACCEPT_LOSS)} to go on with what is left",
        )
    return end
