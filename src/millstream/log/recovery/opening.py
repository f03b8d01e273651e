"""Opening a partition's directory.

After a clean shutdown that takes a few small reads, otherwise a check of batches.

After an unclean stop everything from the recovery point on is suspect. Segments are scanned from
the one that holds it. The log is truncated at the first batch that is torn, fails its checksum or
leaves a gap. Later segments are removed, because a log must be a prefix of what was appended. The
same scan rebuilds indexes, transaction index, leader epochs and producer state. Truncation is
logged. If whole batches follow the bad position, which no torn write leaves behind, they are kept
beside the log in a file named `.cut`.

Below the recovery point data was flushed, so damage there was not caused by a crash. Apache Kafka
would truncate the log there as well, and acknowledged records would be lost silently unless another
replica has them. Here the partition stays offline instead, with the reason, until an operator
restores the files, or accepts the data loss by creating a file named `accept-data-loss` in the
partition's directory.
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
    """The state of a log while it is being opened."""

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
    """Open the log. Waits for the disk.

    Raises CorruptLog if flushed data is damaged, OSError if the disk is. `power_lost`: unsynced
    data may be gone, including whole files. `verify_reads`: verify batches when they are first
    read. `log_start_known`: the checkpoint with the log start was good.
    """
    loading = Loading(
        host.files, pool, directory, tp, config, clean, recovery_point, log_start, now_ms,
        expired_before_ms=now_ms - producer_expiration_ms, power_lost=power_lost, state=ProducerState(str(tp)),
        verify_reads=verify_reads, log_start_known=log_start_known,
    )  # fmt: skip
    before = loading.files.listdir(directory)
    loading.deleted = {
        file_names.offset_of(name) or 0
        for name in before
        if name.endswith(file_names.LOG + file_names.DELETED)
    }
    _load_checksums(loading, before)
    names = finish_interrupted(loading.files, pool, directory, before)
    loading.accept_loss = file_names.ACCEPT_LOSS in names
    if loading.accept_loss:
        loading.clean, loading.recovery_point = (
            False,
            min(loading.recovery_point, loading.log_start),
        )
    topic_id = _topic_id(loading, names)
    _load_epochs(loading, names)
    _collect(loading, names)
    end = _clean_end(loading) if loading.clean else _recover(loading)
    end = _check_ends(loading, end)
    loading.log_start = max(
        loading.log_start, loading.segments[0].base_offset, _log_start_of_epochs(loading)
    )
    loading.epochs.truncate_end(end)
    loading.epochs.truncate_start(loading.log_start)
    if loading.accept_loss:
        loading.files.unlink(loading.path(file_names.ACCEPT_LOSS))
    segment_list = SegmentList(
        loading.files, host, pool, directory, config, loading.segments, loading.snapshots
    )
    log = PartitionLog(
        host, segment_list, tp, config, topic_id=topic_id, log_start_offset=loading.log_start,
        log_end_offset=end, recovery_point=end if loading.clean else min(recovery_point, end),
        epochs=loading.epochs, producer_state=loading.state,
        new=not loading.clean,  # a crash before the first flush left the directory unsynced
    )  # fmt: skip
    log.producer_expiration_ms = producer_expiration_ms
    log.segment_list.unsynced.update(loading.unsynced)  # synced with the next flush
    for segment in loading.segments:
        segment.log_file.release_idle()
    if loading.checksums is None or loading.checksums != unsaved_checksums(log):
        log.segment_list.checksums.not_saved()
    return log


def _topic_id(loading: Loading, names: list[str]) -> uuid.UUID | None:
    """Return the topic id: of the checksum file, otherwise of partition.metadata."""
    known = loading.checksums.small.topic_id if loading.checksums is not None else None
    if known is None:
        return _topic_id_on_disk(loading, names)
    path, data = loading.path(file_names.PARTITION_METADATA), format_partition_metadata(known)
    if (
        file_names.PARTITION_METADATA not in names
        or loading.files.read_bytes(path).strip() != data.strip()
    ):
        logger.warning("%s is missing or damaged; rewriting it for the topic id %s", path, known)
        loading.files.write_bytes(path, data)
        loading.unsynced.append(path)
    return known


def _topic_id_on_disk(loading: Loading, names: list[str]) -> uuid.UUID | None:
    if file_names.PARTITION_METADATA not in names:
        return None
    path = loading.path(file_names.PARTITION_METADATA)
    data = loading.files.read_bytes(path)
    if not loading.clean:
        loading.unsynced.append(path)
    try:
        return parse_partition_metadata(data, path)
    except CorruptFile as error:
        if not loading.clean or not data.strip():
            # A crash right after the topic was created. The name of the directory identifies the
            # topic: the directory of a deleted topic was durably renamed before the name could be
            # reused. Or its broker was down then, and finds a record of the deletion.
            logger.warning("%s; it is ignored", error)
            return None
        raise CorruptLog(loading.directory, f"its topic is unknown: {error}") from error


def _load_checksums(loading: Loading, names: list[str]) -> None:
    path = loading.path(file_names.INDEX_CHECKSUMS)
    if file_names.INDEX_CHECKSUMS not in names:
        return
    if any(name.endswith(file_names.SWAP) for name in names):
        return  # they describe segments that compaction has replaced
    try:
        loading.checksums = Checksums.parse(loading.files.read_bytes(path), path)
    except CorruptFile as error:
        logger.warning("%s; rewriting it", error)
    if loading.deleted:
        _remove_checksums(loading)


def _remove_checksums(loading: Loading) -> None:
    """Remove the checksums before segments: the next start would report the segments as lost."""
    _unlink(loading.files, loading.path(file_names.INDEX_CHECKSUMS))
    loading.files.sync_dir(loading.directory)


def _load_epochs(loading: Loading, names: list[str]) -> None:
    path = loading.path(file_names.LEADER_EPOCHS)
    known = loading.checksums.small.epochs if loading.checksums is not None else None
    try:
        if file_names.LEADER_EPOCHS not in names:
            if known is None:
                return  # a new log, or one older than leader epochs
            raise CorruptFile(path, "is missing")
        data = loading.files.read_bytes(path)
        loading.epochs = LeaderEpochs.parse(data, path)
        if loading.clean and known not in (None, summed(data)):
            loading.epochs = LeaderEpochs()
            raise CorruptFile(path, "does not match its checksum")
    except CorruptFile as error:
        logger.warning("%s; the leader epochs are read from the batches instead", error)
        loading.clean, loading.recovery_point = (
            False,
            min(loading.recovery_point, loading.log_start),
        )


def _collect(loading: Loading, names: list[str]) -> None:
    """List the existing segments and snapshots.

    Indexes without a log are removed, logs without an index get one.
    """
    have = set(names)
    bases = sorted(base for name in names if (base := file_names.segment_base(name)) is not None)
    loading.segments = [loading.segment(base) for base in bases]
    _check_missing(loading)
    for name in names:
        base = file_names.offset_of(name)
        if base is None:
            continue
        if (
            name.endswith(file_names.INDEXES)
            and file_names.segment_name(base) + file_names.LOG not in have
        ):
            logger.warning("%s has no log file beside it and is removed", loading.path(name))
            loading.files.unlink(loading.path(name))
        elif name.endswith(file_names.SNAPSHOT):
            loading.snapshots.append(base)
    loading.snapshots.sort()
    for segment in loading.segments:
        known = (
            loading.checksums.segments.get(segment.base_offset, {})
            if loading.checksums is not None
            else {}
        )
        segment.index_files.sums = known if known.keys() >= set(file_names.INDEXES) else None
        if loading.verify_reads:
            segment.unchecked = Unchecked(
                short_of=known[file_names.LOG].size if file_names.LOG in known else 0
            )
    if not loading.clean:
        return  # the scan rebuilds what it reaches; _recover checks the segments before it
    for segment in loading.segments:
        _ensure_indexes(loading, segment, have)


def _check_missing(loading: Loading) -> None:
    """Raise CorruptLog if segments that were flushed are gone."""
    if loading.checksums is None or loading.accept_loss:
        return
    sizes = {segment.base_offset: partial(getattr, segment, "size") for segment in loading.segments}
    # Another version or Apache Kafka may have used the directory since. Then the log does not end
    # as the checksums say.
    counts = loading.checksums.closed_with(sizes) if loading.clean else loading.log_start_known
    gone = [
        base
        for base in loading.checksums.missing(sizes, first=loading.log_start if counts else None)
        if base not in loading.deleted and (loading.clean or base < loading.recovery_point)
    ]
    if gone:
        files = ", ".join(file_names.segment_name(base) + file_names.LOG for base in gone)
        raise CorruptLog(
            loading.directory,
            f"{files} had been flushed and is missing. Restore the files, or create"
            f" {loading.path(file_names.ACCEPT_LOSS)} to continue with what is left",
        )


def _ensure_indexes(loading: Loading, segment: Segment, have: set[str]) -> None:
    """Rebuild the missing indexes of a flushed segment, and a damaged transaction index.

    A damaged offset or time index is rebuilt when it is first used: that needs only the segment.
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
    state = ProducerState(str(loading.tp))
    before = [other for other in loading.segments if other.base_offset < segment.base_offset]
    rebuild_producers(
        loading.files, loading.directory, before, loading.snapshots, state,
        end=segment.base_offset, expired_before_ms=loading.expired_before_ms,
    )  # fmt: skip
    begin = _from_start(segment)
    _, damage = scan(segment, state, begin=begin)
    if damage is not None:
        raise CorruptLog(segment.path(file_names.LOG), f"flushed data is damaged: {damage}")
    segment.index.finish()
    for kind in file_names.INDEXES:
        if loading.files.exists(segment.path(kind)):
            loading.files.sync_file(segment.path(kind))
    loading.files.sync_dir(loading.directory)


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


def _clean_end(loading: Loading) -> int:
    """Return the end of a log that was shut down cleanly.

    The last snapshot has the state of its producers.
    """
    if not loading.segments:
        return _begin(loading, loading.log_start)
    last = loading.segments[-1]
    try:
        end = last.next_offset()
        if last.index_files.sums is not None:
            # Without that of the .log file, which continues to grow.
            last.index_files.sums = {
                kind: last.index_files.sums[kind] for kind in file_names.INDEXES
            }
        if last.unchecked is not None:
            last.unchecked = Unchecked(end=last.size)
    except ApiError as error:
        logger.warning("%s although the shutdown was clean; checking the log", error)
        loading.clean = False
        return _recover(loading)
    if loading.snapshots:
        loading.snapshots = rebuild_producers(
            loading.files, loading.directory, loading.segments, loading.snapshots, loading.state,
            end=end,
            expired_before_ms=loading.expired_before_ms,
        )  # fmt: skip
    return end


def _begin(loading: Loading, offset: int) -> int:
    loading.segments = [loading.segment(offset, new=True)]
    loading.state.clear(offset)
    return offset


def _recover(loading: Loading) -> int:
    """Scan from the segment that holds the recovery point on. Return the new end of the log."""
    if not loading.segments:
        return _begin(loading, loading.log_start)
    first = max(
        (
            n
            for n, segment in enumerate(loading.segments)
            if segment.base_offset <= loading.recovery_point
        ),
        default=0,
    )
    bases, earlier_snapshots = (
        {segment.base_offset for segment in loading.segments},
        set(loading.snapshots),
    )
    have = set(loading.files.listdir(loading.directory))
    for segment in loading.segments[:first]:
        _ensure_indexes(loading, segment, have)
    begin = _resume(loading, loading.segments[first])
    start = begin[1]
    _drop_snapshots_after(loading, start)
    loading.epochs.truncate_end(max(start, loading.recovery_point))
    loading.snapshots = rebuild_producers(
        loading.files, loading.directory, loading.segments[: first + 1], loading.snapshots, loading.state,
        end=start, expired_before_ms=loading.expired_before_ms,
    )  # fmt: skip
    number = first
    while number < len(loading.segments):
        damage = _recover_segment(loading, number, begin)
        if damage is not None:
            _truncate(loading, number, damage)
        number += 1
        if number < len(loading.segments):
            begin = _from_start(loading.segments[number])
    end = loading.segments[-1].next_offset()
    if end in earlier_snapshots and end not in bases:
        logger.warning(
            "%s ends at offset %d: a segment that starts there may be missing",
            loading.directory,
            end,
        )
    return end


def _resume(loading: Loading, segment: Segment) -> tuple[int, int]:
    """Return where the scan of the first suspect segment begins.

    At the recovery point, if the indexes lead there; otherwise at the start.
    """
    if loading.recovery_point > segment.base_offset and _flushed_indexes_are_good(segment):
        # entries after the flushed part of an index have no checksum
        segment.index_files.sums = None
        begin = segment.index.resume_at(loading.recovery_point)
        if begin is not None:
            segment.index_files.sums = read_sums(loading.files, segment.path)
            if loading.verify_reads:
                segment.unchecked = Unchecked(end=begin[0])
            return begin
    return _from_start(segment)


def _flushed_indexes_are_good(segment: Segment) -> bool:
    """Return whether the indexes begin with their flushed contents.

    If those are unknown, only a transaction index is suspect.
    """
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


def _drop_snapshots_after(loading: Loading, offset: int) -> None:
    for snapshot in loading.snapshots:
        if snapshot > offset:
            loading.files.unlink(
                loading.path(file_names.segment_name(snapshot) + file_names.SNAPSHOT)
            )
    loading.snapshots = [snapshot for snapshot in loading.snapshots if snapshot <= offset]


def _recover_segment(loading: Loading, number: int, begin: tuple[int, int]) -> Damage | None:
    segment = loading.segments[number]
    if segment.base_offset not in loading.snapshots and number and begin[1] == segment.base_offset:
        _write_snapshot(loading, segment.base_offset)
    following = loading.segments[number + 1] if number + 1 < len(loading.segments) else None
    before = following.base_offset if following is not None else None
    end, damage = scan(
        segment,
        loading.state,
        loading.epochs,
        begin=begin,
        before=before,
        gaps=loading.config.compact,
    )
    _transactions_durable(loading, segment)
    if damage is not None or following is None:
        return damage
    # Segments compacted here have been flushed. A follower's copy of segments that its leader
    # compacted has gaps too. If only the process died, a gap is just that. If the power was lost, a
    # gap may also be the lost end of a segment, and only the leader knows: it has the records that
    # are truncated here.
    copied = loading.config.compact and not loading.power_lost
    if (
        end != following.base_offset
        and not copied
        and following.base_offset > loading.recovery_point
    ):
        return Damage(
            segment.size, end, f"the next segment begins at {following.base_offset}", False
        )
    segment.index.finish()
    return None


def _transactions_durable(loading: Loading, segment: Segment) -> None:
    """Sync a rebuilt transaction index at once.

    It replaces a durable one, and the next recovery may begin above this segment. The other indexes
    can wait: they only lead to the batches.
    """
    loading.unsynced += segment.names.paths()[1:]
    if segment.index_files.transactions():
        loading.files.sync_file(segment.path(file_names.TRANSACTION_INDEX))
        loading.files.sync_dir(loading.directory)


def _write_snapshot(loading: Loading, offset: int) -> None:
    path = loading.path(file_names.segment_name(offset) + file_names.SNAPSHOT)
    loading.files.write_bytes(path, producer_snapshot.encode(loading.state.snapshot()))
    loading.snapshots.append(offset)


def _truncate(loading: Loading, number: int, damage: Damage) -> None:
    """Truncate the log at the damage. Later segments go first, so that a crash leaves no gap."""
    segment = loading.segments[number]
    path = segment.path(file_names.LOG)
    if damage.offset < loading.recovery_point and not loading.accept_loss:
        raise CorruptLog(
            path,
            f"at byte {damage.position}, offset {damage.offset}: {damage.reason}. Everything below"
            f" offset {loading.recovery_point} had been flushed, so the log is not truncated; the"
            " partition stays offline. Restore the files, or create"
            f" {loading.path(file_names.ACCEPT_LOSS)} to continue with what is left",
        )
    _remove_checksums(loading)
    for later in reversed(loading.segments[number + 1 :]):
        logger.warning(
            "%r: dropped (%d bytes), because %s is truncated before it", later, later.size, path
        )
        _keep_copy(loading, later, 0, later.size)
        later.close()
        for kind in file_names.INDEXES:
            _unlink(loading.files, later.path(kind))
        loading.files.unlink(later.path(file_names.LOG))
    del loading.segments[number + 1 :]
    lost = segment.size - damage.position
    if lost:
        logger.warning(
            "%s: truncated at byte %d, offset %d (%d bytes dropped): %s",
            path, damage.position, damage.offset, lost, damage.reason,
        )  # fmt: skip
        if damage.followed:
            _keep_copy(loading, segment, damage.position, lost)
        segment.log_file.truncate(damage.position)
        segment.file().sync()  # else another crash could bring the old bytes back under new ones
    loading.files.sync_dir(loading.directory)


def _log_start_of_epochs(loading: Loading) -> int:
    """Return the log start according to the leader epochs, if its checkpoint is lost; otherwise 0.

    The first epoch starts with the log. Batches older than leader epochs have none; if the first
    batch is one of those, the epochs say nothing.
    """
    if loading.log_start_known or not loading.epochs.starts or not loading.segments[0].size:
        return 0
    start = loading.epochs.starts[0]
    if (
        start <= loading.segments[0].base_offset
        or loading.segments[0].log_file.header_at(0).leader_epoch < 0
    ):
        return 0
    logger.warning(
        "%s starts at offset %d according to its leader epochs", loading.directory, start
    )
    return start


def _keep_copy(loading: Loading, segment: Segment, position: int, n: int) -> None:
    """Keep a copy of bytes that may hold whole batches, for an operator to inspect."""
    if not n:
        return
    path = f"{segment.path(file_names.LOG)}.cut-{position}"
    out = loading.files.open(path, create=True)
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
    logger.warning("the truncated bytes are kept in %s", path)


def _unlink(files: Files, path: str) -> None:
    try:
        files.unlink(path)
    except FileNotFoundError:
        pass


def _check_ends(loading: Loading, end: int) -> int:
    """Make sure that the log does not end before its start or its recovery point."""
    if end < loading.log_start:
        logger.warning(
            "%s ends at %d, before its log start %d: all its records had been deleted;"
            " it continues at its start",
            loading.directory, end, loading.log_start,
        )  # fmt: skip
        _remove_checksums(loading)
        for segment in reversed(loading.segments):
            segment.close()
            for path in segment.names.paths():
                _unlink(loading.files, path)
        loading.epochs.clear()
        loading.segments = [loading.segment(loading.log_start, new=True)]
        _write_snapshot(loading, loading.log_start)
        loading.files.sync_dir(loading.directory)
        return loading.log_start
    if end < loading.recovery_point and not loading.accept_loss:
        raise CorruptLog(
            loading.directory,
            f"the log ends at offset {end}, but was flushed up to {loading.recovery_point}: records"
            f" are missing. Restore the files, or create {loading.path(file_names.ACCEPT_LOSS)} to"
            " continue with what is left",
        )
    return end
