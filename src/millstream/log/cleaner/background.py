"""Compaction in the background: picks the dirtiest log, has a child process clean it, and swaps the result in.

The child does all the reading and writing (see `compaction`); the loop only plans, and swaps files by renaming them.
Before the first swap the recovery point of the log is made durable, because recovery takes a gap above it for a
loss; after the last one the cleaner's checkpoint. A log that cannot be cleaned is left alone, with the reason, and
does not hold up the others. Whatever happens to a log meanwhile (deleted, truncated, retention, a failed disk), what
the child made of it is then dropped: a swap needs every segment to be as it was when the round began.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from millstream.core.types import TopicPartition
from millstream.log.cleaner.job import (
    JOBS,
    UNLIMITED,
    ActiveProducer,
    CleanedGroup,
    CleanJob,
    CleanPlan,
    CleanStats,
    NoRound,
    Retention,
    SourceSegment,
)
from millstream.log.cleaner.selection import Cleanable, LogFacts, choose, measure
from millstream.log.cleaner.swap import stage_swap
from millstream.log.config import LogConfig
from millstream.log.directories import file_names
from millstream.log.errors import StorageError
from millstream.log.management.manager import LogManager
from millstream.log.partition_log import PartitionLog
from millstream.log.segments.segment import Segment
from millstream.ports.workers import JobRunner, NewWorker, Worker, WorkerClosed, WorkerDied
from millstream.wire.records.compression import Codec

logger = logging.getLogger("millstream.log.cleaner")

_SLICE_S: Final = 0.002
_IDLE_EXIT_S: Final = 60.0
_MAX_FAILURES: Final = 3
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)

Blocking = Callable[[Callable[[], Any]], Awaitable[Any]]


class CleanerSettings(NamedTuple):
    """Kafka's log.cleaner.* settings; `max_decompressed_bytes` bounds the memory that one batch may need."""

    backoff_ms: int = 15_000
    dedupe_buffer_bytes: int = 128 << 20
    load_factor: float = 0.9
    io_buffer_bytes: int = 512 << 10
    io_max_bytes_per_s: float = UNLIMITED
    max_decompressed_bytes: int = 1 << 30


class CleanReport(NamedTuple):
    """A round that was completed."""

    tp: TopicPartition
    first_dirty_offset: int
    end_offset: int
    stats: CleanStats


class LogChanged(Exception):
    """The log is not what it was when the round began; what the child made is of no use."""


class _Round:
    """The log being cleaned, and its segments as they were."""

    def __init__(self, log: PartitionLog, end_offset: int) -> None:
        self.log = log
        self.directory = log.directory
        self.segments: dict[int, tuple[Segment, int]] = {s.base_offset: (s, s.size) for s in log.segments}
        self.end_offset = end_offset
        self.task: asyncio.Task[CleanReport | None] | None = None
        self.aborted = False

    def check_unchanged(self, manager: LogManager, bases: Sequence[int]) -> None:
        log = self.log
        if (
            self.aborted
            or manager.logs.get(log.tp) is not log
            or log.directory != self.directory
            or log.failed
        ):
            raise LogChanged
        if log.recovery_point < self.end_offset:
            raise LogChanged  # truncated
        present = {id(segment) for segment in log.segments}
        for base in bases:
            segment, size = self.segments[base]
            if id(segment) not in present or segment.log_file.active or segment.size != size:
                raise LogChanged


def cleaner_worker(new_worker: NewWorker = Worker) -> JobRunner:
    """The child process of a cleaner: killed when its round is aborted, and gone when it has long been idle."""
    return new_worker("cleaner", kill_on_cancel=True, idle_exit_s=_IDLE_EXIT_S)


class Cleaner:
    """Belongs to a broker: `run` is its task. `uncleanable` tells which logs it gave up, and why."""

    def __init__(
        self,
        manager: LogManager,
        worker: JobRunner,
        settings: CleanerSettings = CleanerSettings(),  # noqa: B008 - immutable
        *,
        blocking: Blocking | None = None,
    ) -> None:
        self.settings = settings
        self.uncleanable: dict[TopicPartition, str] = {}
        self.last: CleanReport | None = None
        self.last_run_ms = 0
        self.max_dirty_ratio = 0.0
        self._manager = manager
        self._worker = worker
        self._blocking = blocking or _in_thread
        self._round: _Round | None = None
        self._failures: dict[TopicPartition, int] = {}
        self._wake = asyncio.Event()

    @property
    def cleaning(self) -> TopicPartition | None:
        """The partition whose log is being cleaned."""
        return self._round.log.tp if self._round is not None else None

    # -- what others tell it

    def wake(self) -> None:
        """Look again now instead of after log.cleaner.backoff.ms."""
        self._wake.set()

    def abort(self, tp: TopicPartition) -> None:
        """The log of this partition goes, or changes: stop cleaning it and drop what was made of it."""
        if self._round is not None and self._round.log.tp == tp:
            self._round.aborted = True
            if self._round.task is not None:
                self._round.task.cancel()

    def abort_directory(self, log_dir: str) -> None:
        """A data directory failed."""
        if self._round is not None and self._round.log.log_dir == log_dir:
            self.abort(self._round.log.tp)

    def forget(self, tp: TopicPartition) -> None:
        """The partition was deleted: also what was wrong with its log is of the past."""
        self.abort(tp)
        self.uncleanable.pop(tp, None)
        self._failures.pop(tp, None)

    # -- running

    async def run(self) -> None:
        """Until cancelled: clean while something is dirty, else rest for log.cleaner.backoff.ms."""
        while True:
            if await self.run_once(self._manager.clock()) is None:
                await self._rest()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(self.settings.backoff_ms / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def run_once(self, now_ms: int) -> CleanReport | None:
        """Clean the dirtiest log; None where nothing is due, or the round could not be completed."""
        self.last_run_ms = now_ms
        for gone in self.uncleanable.keys() - self._manager.logs.keys():
            self.forget(gone)
        candidates = await self._measure_logs(now_ms)
        self.max_dirty_ratio = max((c.dirty_ratio for c in candidates), default=0.0)
        chosen = choose(candidates)
        log = self._manager.logs.get(chosen.tp) if chosen is not None else None
        if chosen is None or log is None:
            return None
        self._round = _Round(log, chosen.end_offset)
        try:
            async with asyncio.TaskGroup() as group:
                self._round.task = group.create_task(self._guarded(self._round, chosen, now_ms))
            report = self._round.task.result()
        finally:
            self._round = None
        self.last = report or self.last
        return report

    async def _measure_logs(self, now_ms: int) -> list[Cleanable]:
        """In slices of two milliseconds, so that thousands of logs do not hold up the loop."""
        found: list[Cleanable] = []
        wrong: set[str] = set()
        until = time.perf_counter() + _SLICE_S
        for tp, log in list(self._manager.logs.items()):
            if not log.config.compact or len(log.segments) < 2 or tp in self.uncleanable or log.failed:
                continue
            cleanable = self._measure(log, now_ms)
            if cleanable is not None:
                found.append(cleanable)
                if cleanable.checkpoint_wrong:
                    _correct_checkpoint(log, cleanable)
                    wrong.add(log.log_dir)
            if time.perf_counter() >= until:
                await asyncio.sleep(0)
                until = time.perf_counter() + _SLICE_S
        for log_dir in wrong:
            try:
                await self._checkpoint(log_dir, file_names.CLEANER_OFFSETS)
            except StorageError:
                pass  # the directory is offline now, or full
        return found

    def _measure(self, log: PartitionLog, now_ms: int) -> Cleanable | None:
        try:
            return measure(facts_of(log), now_ms)
        except OSError as error:
            self._storage_failed(log, error)
        except Exception as error:  # a damaged header, for one; the other logs go on
            self._give_up(log.tp, error)
        return None

    # -- one round

    async def _guarded(self, round_: _Round, chosen: Cleanable, now_ms: int) -> CleanReport | None:
        """A round, with what may go wrong in it. A log that fails must not stop the others, so this catches all."""
        log = round_.log
        try:
            report = await self._clean(round_, chosen, now_ms)
            self._failures.pop(log.tp, None)
            return report
        except asyncio.CancelledError:
            await self._tidy(round_)
            if not round_.aborted:
                raise
            logger.info("%s: cleaning was aborted", log.tp)
        except (LogChanged, StorageError):
            await self._tidy(round_)
            logger.info("%s: the log changed while it was cleaned; what was made of it is dropped", log.tp)
        except WorkerClosed:
            pass  # the broker stops
        except (WorkerDied, NoRound, FileNotFoundError, MemoryError) as error:
            await self._tidy(round_)
            self._failed_again(log.tp, error)
        except OSError as error:
            await self._tidy(round_)
            self._storage_failed(log, error)
        except Exception as error:
            await self._tidy(round_)
            self._give_up(log.tp, error)
        return None

    async def _clean(self, round_: _Round, chosen: Cleanable, now_ms: int) -> CleanReport:
        log = round_.log
        job = job_for(log, chosen, self.settings, now_ms)
        plan: CleanPlan = await self._worker.run(f"{JOBS}:begin", job)
        round_.check_unchanged(self._manager, ())
        await self._recovery_point_durable(log, chosen.end_offset)
        for number in range(len(plan.groups)):
            group: CleanedGroup = await self._worker.run(f"{JOBS}:clean_group", number)
            await self._swap(round_, group)
        stats: CleanStats = await self._worker.run(f"{JOBS}:end")
        await self._blocking(lambda: log.files.sync_dir(round_.directory))
        round_.check_unchanged(self._manager, ())
        log.cleaned_offset = plan.end_offset
        await self._checkpoint(log.log_dir, file_names.CLEANER_OFFSETS)
        _tell(log, chosen, plan, stats)
        return CleanReport(log.tp, chosen.first_dirty_offset, plan.end_offset, stats)

    async def _swap(self, round_: _Round, group: CleanedGroup) -> None:
        """`.cleaned` to `.swap` in a thread, since that waits for the disk, then the swap itself in one step."""
        log, new = round_.log, [cleaned.base_offset for cleaned in group.new]
        round_.check_unchanged(self._manager, group.old)
        sums = log.segment_list.checksums.file
        sums.suspend()
        try:
            await _to_its_end(self._blocking(lambda: stage_swap(log.files, round_.directory, new, sums)))
            round_.check_unchanged(self._manager, group.old)
        except BaseException:
            # Left behind, they would take the place of what the log is by then at the next start.
            _remove_quietly(log, round_.directory, file_names.SWAP)
            sums.resume()
            raise
        log.replace_segments(new, group.old)
        for base in group.old:
            del round_.segments[base]

    async def _recovery_point_durable(self, log: PartitionLog, offset: int) -> None:
        if self._manager.dirs[log.log_dir].checkpoints[file_names.RECOVERY_POINTS].get(log.tp, 0) < offset:
            await self._checkpoint(log.log_dir, file_names.RECOVERY_POINTS)

    async def _checkpoint(self, log_dir: str, name: str) -> None:
        directory = self._manager.dirs[log_dir]
        if not directory.online:
            return
        try:
            await self._blocking(self._manager.checkpoints.job(directory, name).run)
        except OSError as error:
            raise self._manager.failures.disk_failed(log_dir, f"cannot write {name}", error) from error

    async def _tidy(self, round_: _Round) -> None:
        """Takes away what the child wrote. It is dead or idle by now."""
        await self._blocking(lambda: _remove_quietly(round_.log, round_.directory, file_names.CLEANED))

    # -- failures

    def _failed_again(self, tp: TopicPartition, error: Exception) -> None:
        """The child died, or a file was missing: that may pass, unless it happens every time."""
        self._failures[tp] = self._failures.get(tp, 0) + 1
        if self._failures[tp] >= _MAX_FAILURES:
            self._give_up(tp, error)
        else:
            logger.warning("%s: cleaning failed and will be tried again: %s", tp, error)

    def _storage_failed(self, log: PartitionLog, error: OSError) -> None:
        if error.errno in _FULL:
            logger.error("%s cannot be cleaned now, the disk is full: %s", log.tp, error)
        elif self._manager.logs.get(log.tp) is log:
            self._manager.failures.fail_directory(log.log_dir, f"cannot clean {log.tp}: {error}")

    def _give_up(self, tp: TopicPartition, error: Exception) -> None:
        self.uncleanable[tp] = f"{type(error).__name__}: {error}"
        logger.error("%s cannot be cleaned and is left as it is until the next start: %s", tp, error)


def facts_of(log: PartitionLog) -> LogFacts:
    segments, config = log.segments, log.config
    return LogFacts(
        log.tp,
        segments[:-1],
        segments[-1].base_offset,
        log.log_start_offset,
        log.log_end_offset,
        log.cleanable_end,
        log.cleaned_offset,
        config.min_cleanable_dirty_ratio,
        config.min_compaction_lag_ms,
        config.max_compaction_lag_ms,
    )


def job_for(log: PartitionLog, chosen: Cleanable, settings: CleanerSettings, now_ms: int) -> CleanJob:
    """Everything the child has to know. The producers are those of now: one that comes later writes above."""
    config = log.config
    producers = {
        producer_id: ActiveProducer(entry.last_offset, entry.epoch)
        for producer_id, entry in log.producer_state.producers.items()
    }
    rules = Retention(
        now_ms,
        config.delete_retention_ms,
        chosen.end_offset,
        producers,
        compression_levels(config),
        settings.max_decompressed_bytes,
        log.may_forget_deletions,
    )
    return CleanJob(
        log.directory,
        tuple(
            SourceSegment(s.base_offset, s.size) for s in log.segments if s.base_offset < chosen.end_offset
        ),
        chosen.first_dirty_offset,
        rules,
        tuple(s.base_offset for s in log.segments if s.base_offset >= chosen.end_offset),
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        dedupe_buffer_bytes=settings.dedupe_buffer_bytes,
        load_factor=settings.load_factor,
        io_buffer_bytes=settings.io_buffer_bytes,
        io_max_bytes_per_s=settings.io_max_bytes_per_s,
    )


def compression_levels(config: LogConfig) -> dict[int, int]:
    """The level for batches of the topic's own codec; others were the producer's choice, and get the default."""
    levels = {
        "gzip": (Codec.GZIP, config.compression_gzip_level),
        "lz4": (Codec.LZ4, config.compression_lz4_level),
        "zstd": (Codec.ZSTD, config.compression_zstd_level),
    }
    found = levels.get(config.compression_type)
    return {int(found[0]): found[1]} if found is not None else {}


def _remove_quietly(log: PartitionLog, directory: str, suffix: str) -> None:
    try:
        for name in log.files.listdir(directory):
            if name.endswith(suffix):
                log.files.unlink(os.path.join(directory, name))
    except FileNotFoundError:
        pass  # the log was deleted meanwhile
    except OSError as error:
        logger.warning("%s: what is left of a cleaning cannot be removed: %s", directory, error)


def _correct_checkpoint(log: PartitionLog, cleanable: Cleanable) -> None:
    if (
        not log.config.delete
    ):  # retention moves the log start all the time, and explicit deletion now and then
        logger.warning(
            "%s: the cleaner's checkpoint %d is outside the log (%d to %d); cleaning begins at the log start",
            log.tp, log.cleaned_offset, log.log_start_offset, log.log_end_offset,
        )  # fmt: skip
    log.cleaned_offset = cleanable.first_dirty_offset


def _tell(log: PartitionLog, chosen: Cleanable, plan: CleanPlan, stats: CleanStats) -> None:
    logger.info(
        "%s: cleaned offsets %d to %d: %d of %d bytes and %d of %d records are left, %.1f s",
        log.tp, chosen.first_dirty_offset, plan.end_offset, stats.bytes_written, stats.bytes_read,
        stats.records_kept, stats.records_read, stats.map_seconds + stats.clean_seconds,
    )  # fmt: skip


async def _in_thread(call: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, call)


async def _to_its_end(work: Awaitable[Any]) -> None:
    """Awaits work that must not be left half done when the caller is cancelled."""
    future = asyncio.ensure_future(work)
    try:
        await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise
