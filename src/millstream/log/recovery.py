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

from millstream.core.errors import ApiError
from millstream.core.types import TopicPartition
from millstream.log import names, producer_snapshot
from millstream.log.checkpoints import parse_partition_metadata
from millstream.log.config import LogConfig
from millstream.log.epochs import LeaderEpochs
from millstream.log.errors import CorruptFile, CorruptLog
from millstream.log.host import LogHost
from millstream.log.open_files import OpenFiles
from millstream.log.partition_log import PartitionLog
from millstream.log.producer_state import ProducerState
from millstream.log.replay import rebuild_producers
from millstream.log.scan import Damage, scan
from millstream.log.segment import Segment
from millstream.log.swapping import finish_interrupted
from millstream.ports.files import Files

logger = logging.getLogger(__name__)


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

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def segment(self, base_offset: int, *, new: bool = False) -> Segment:
        return Segment(
            self.files, self.pool, self.directory, base_offset,
            index_interval=self.config.index_interval_bytes, created_ms=self.now_ms, new=new,
        )  # fmt: skip


def load(
    host: LogHost,
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
) -> PartitionLog:
    """Open the log. Waits for the disk. Raises CorruptLog where flushed data is damaged, OSError where the disk is. ``power_lost``: what was
    written and not synced may be gone, whole files of it."""
    it = Loading(
        host.files, pool, directory, tp, config, clean, recovery_point, log_start, now_ms,
        expired_before_ms=now_ms - producer_expiration_ms, power_lost=power_lost, state=ProducerState(str(tp)),
    )  # fmt: skip
    found = finish_interrupted(it.files, pool, directory, it.files.listdir(directory))
    it.accept_loss = names.ACCEPT_LOSS in found
    topic_id = _topic_id(it, found)
    _load_epochs(it, found)
    _collect(it, found)
    end = _clean_end(it) if it.clean else _recover(it)
    end = _check_ends(it, end)
    it.log_start = max(it.log_start, it.segments[0].base_offset)
    it.epochs.truncate_end(end)
    it.epochs.truncate_start(it.log_start)
    if it.accept_loss:
        it.files.unlink(it.path(names.ACCEPT_LOSS))
    log = PartitionLog(
        host, pool, directory, tp, config, it.segments, topic_id=topic_id, log_start_offset=it.log_start,
        log_end_offset=end, recovery_point=end if it.clean else min(recovery_point, end),
        epochs=it.epochs, producer_state=it.state, snapshots=it.snapshots,
        new=not it.clean,  # who died before the first flush did not make the directory durable
    )  # fmt: skip
    log.producer_expiration_ms = producer_expiration_ms
    log._local.unsynced.update(it.unsynced)  # with the next flush
    for segment in it.segments:
        segment.rest()
    return log


def _topic_id(it: Loading, found: list[str]) -> uuid.UUID | None:
    if names.PARTITION_METADATA not in found:
        return None
    path = it.path(names.PARTITION_METADATA)
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


def _load_epochs(it: Loading, found: list[str]) -> None:
    if names.LEADER_EPOCHS not in found:
        return
    path = it.path(names.LEADER_EPOCHS)
    try:
        it.epochs = LeaderEpochs.parse(it.files.read_bytes(path), path)
    except CorruptFile as error:
        logger.warning("%s; the leader epochs are read from the batches instead", error)
        it.clean, it.recovery_point = False, min(it.recovery_point, it.log_start)


def _collect(it: Loading, found: list[str]) -> None:
    """The segments and snapshots that are there; indexes without a log go, logs without an index get one."""
    have = set(found)
    bases = sorted(base for name in found if (base := names.segment_base(name)) is not None)
    for name in found:
        base = names.offset_of(name)
        if base is None:
            continue
        if name.endswith(names.INDEXES) and names.segment_name(base) + names.LOG not in have:
            logger.warning("%s has no log file beside it and is removed", it.path(name))
            it.files.unlink(it.path(name))
        elif name.endswith(names.SNAPSHOT):
            it.snapshots.append(base)
    it.snapshots.sort()
    it.segments = [it.segment(base) for base in bases]
    if not it.clean:
        return  # the scan rebuilds what it reaches; below it _recover looks
    for segment in it.segments:
        _ensure_indexes(it, segment, have)


def _ensure_indexes(it: Loading, segment: Segment, have: set[str]) -> None:
    """A flushed segment whose indexes somebody removed gets new ones, the transaction index included."""
    stem = names.segment_name(segment.base_offset)
    missing = [kind for kind in (names.OFFSET_INDEX, names.TIME_INDEX) if stem + kind not in have]
    if not missing or not segment.size:
        return
    logger.warning("%r has no %s; rebuilding its indexes", segment, " and ".join(missing))
    state = ProducerState(str(it.tp))
    before = [other for other in it.segments if other.base_offset < segment.base_offset]
    rebuild_producers(
        it.files, it.directory, before, it.snapshots, state,
        end=segment.base_offset, expired_before_ms=it.expired_before_ms,
    )  # fmt: skip
    begin = _from_start(segment)
    _, damage = scan(segment, state, begin=begin)
    if damage is not None:
        raise CorruptLog(segment.path(names.LOG), f"flushed data is damaged: {damage}")
    segment.finish()
    for kind in names.INDEXES:
        if it.files.exists(segment.path(kind)):
            it.files.sync_file(segment.path(kind))
    it.files.sync_dir(it.directory)


def _clean_end(it: Loading) -> int:
    """The end of a log that was shut down cleanly; the state of its producers is in the last snapshot."""
    if not it.segments:
        return _begin(it, it.log_start)
    last = it.segments[-1]
    try:
        end = last.next_offset()
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
    return it.segments[-1].next_offset()


def _resume(it: Loading, segment: Segment) -> tuple[int, int]:
    """Where the scan of the first suspect segment begins: at the recovery point, if its indexes lead there."""
    if it.recovery_point > segment.base_offset:
        begin = segment.resume_at(it.recovery_point)
        if begin is not None:
            return begin
    return _from_start(segment)


def _from_start(segment: Segment) -> tuple[int, int]:
    segment.reset_indexes()
    segment.reset_transactions()
    return 0, segment.base_offset


def _drop_snapshots_after(it: Loading, offset: int) -> None:
    for snapshot in it.snapshots:
        if snapshot > offset:
            it.files.unlink(it.path(names.segment_name(snapshot) + names.SNAPSHOT))
    it.snapshots = [snapshot for snapshot in it.snapshots if snapshot <= offset]


def _recover_segment(it: Loading, number: int, begin: tuple[int, int]) -> Damage | None:
    segment = it.segments[number]
    if segment.base_offset not in it.snapshots and number and begin[1] == segment.base_offset:
        _write_snapshot(it, segment.base_offset)
    end, damage = scan(segment, it.state, it.epochs, begin=begin)
    _transactions_durable(it, segment)
    following = it.segments[number + 1] if number + 1 < len(it.segments) else None
    if damage is not None or following is None:
        return damage
    # What is compacted here has been flushed. A follower's copy of what its leader has compacted has gaps, too. When the process died, they are just
    # that; when the power was lost, such a gap may as well be the lost end of a segment, and only the leader can tell: it has what is cut here.
    copied = it.config.compact and not it.power_lost
    if end != following.base_offset and not copied and following.base_offset > it.recovery_point:
        return Damage(segment.size, end, f"the next segment begins at {following.base_offset}", False)
    segment.finish()
    return None


def _transactions_durable(it: Loading, segment: Segment) -> None:
    """The rebuilt transaction index must not be lost after it took the place of one that was durable: the next recovery
    may begin above this segment. The other indexes can wait, they only lead to the batches."""
    it.unsynced += segment.paths()[1:]
    if segment.transactions():
        it.files.sync_file(segment.path(names.TRANSACTION_INDEX))
        it.files.sync_dir(it.directory)


def _write_snapshot(it: Loading, offset: int) -> None:
    path = it.path(names.segment_name(offset) + names.SNAPSHOT)
    it.files.write_bytes(path, producer_snapshot.encode(it.state.snapshot()))
    it.snapshots.append(offset)


def _cut(it: Loading, number: int, damage: Damage) -> None:
    """End the log at the damage; later segments go first, so that a crash here leaves no gap behind."""
    segment = it.segments[number]
    path = segment.path(names.LOG)
    if damage.offset < it.recovery_point and not it.accept_loss:
        raise CorruptLog(
            path,
            f"at byte {damage.position}, offset {damage.offset}: {damage.reason}. Everything below offset"
            f" {it.recovery_point} had been flushed, so nothing is cut; the partition stays offline. Restore the"
            f" files, or create {it.path(names.ACCEPT_LOSS)} to go on with what is left",
        )
    for later in reversed(it.segments[number + 1 :]):
        logger.warning("%r: dropped (%d bytes), because %s is cut before it", later, later.size, path)
        _put_aside(it, later, 0, later.size)
        later.close()
        for kind in names.INDEXES:
            _unlink(it.files, later.path(kind))
        it.files.unlink(later.path(names.LOG))
    del it.segments[number + 1 :]
    lost = segment.size - damage.position
    if lost:
        logger.warning(
            "%s: cut at byte %d, offset %d (%d bytes go): %s",
            path, damage.position, damage.offset, lost, damage.reason,
        )  # fmt: skip
        if damage.followed:
            _put_aside(it, segment, damage.position, lost)
        segment.cut(damage.position)
        segment.file().sync()  # else another crash could bring the old bytes back under new ones
    it.files.sync_dir(it.directory)


def _put_aside(it: Loading, segment: Segment, position: int, n: int) -> None:
    """Keep bytes that may hold whole batches, for somebody to look at."""
    if not n:
        return
    path = f"{segment.path(names.LOG)}.cut-{position}"
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
        for segment in reversed(it.segments):
            segment.close()
            for path in segment.paths():
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
            f" the files, or create {it.path(names.ACCEPT_LOSS)} to go on with what is left",
        )
    return end
