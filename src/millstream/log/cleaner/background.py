"""Compaction in the background.

It picks the dirtiest log, lets a child process clean it, and swaps the result in.

The child does all the reading and writing (see `compaction`); the loop only plans, and swaps files
by renaming them. Before the first swap the recovery point of the log is made durable, because
recovery treats a gap above it as data loss. After the last one the cleaner's checkpoint is written.
A log that cannot be cleaned is left alone, with the reason, and does not block the others. If the
log changes during a round (deleted, truncated, retention, a failed disk), the result of the child
is dropped: a swap needs every segment to be unchanged since the round began.
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
    """Kafka's log.cleaner.* settings.

    `max_decompressed_bytes` bounds the memory that one batch may need.
    """

    backoff_ms: int = 15_000
    dedupe_buffer_bytes: int = 128 << 20
    load_factor: float = 0.9
    io_buffer_bytes: int = 512 << 10
    io_max_bytes_per_s: float = UNLIMITED
    max_decompressed_bytes: int = 1 << 30


class CleanReport(NamedTuple):
    """A completed round."""

    tp: TopicPartition
    first_dirty_offset: int
    end_offset: int
    stats: CleanStats


class LogChanged(Exception):
    """The log has changed since the round began, so the result of the child is useless."""


class _Round:
    """The log being cleaned, and its segments at the start of the round."""

    def __init__(self, log: PartitionLog, end_offset: int) -> None:
        self.log = log
        self.directory = log.directory
        self.segments: dict[int, tuple[Segment, int]] = {
            s.base_offset: (s, s.size) for s in log.segments
        }
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
    """Return the child process of a cleaner: killed if its round is aborted, stopped when idle."""
    return new_worker("cleaner", kill_on_cancel=True, idle_exit_s=_IDLE_EXIT_S)


class Cleaner:
    """Belongs to a broker: `run` is its task. `uncleanable` has the reasons of failed logs."""

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

    # -- signals from other parts

    def wake(self) -> None:
        """Look for work now instead of after log.cleaner.backoff.ms."""
        self._wake.set()

    def abort(self, tp: TopicPartition) -> None:
        """Stop cleaning a log that is deleted or changed, and drop the result."""
        if self._round is not None and self._round.log.tp == tp:
            self._round.aborted = True
            if self._round.task is not None:
                self._round.task.cancel()

    def abort_directory(self, log_dir: str) -> None:
        """Stop cleaning in a data directory that failed."""
        if self._round is not None and self._round.log.log_dir == log_dir:
            self.abort(self._round.log.tp)

    def forget(self, tp: TopicPartition) -> None:
        """Drop everything known about a deleted partition."""
        self.abort(tp)
        self.uncleanable.pop(tp, None)
        self._failures.pop(tp, None)

    # -- running

    async def run(self) -> None:
        """Run until cancelled: clean while a log is dirty, else wait for log.cleaner.backoff.ms."""
        while True:
            if await self.run_once(self._manager.clock()) is None:
                await self._back_off()

    async def _back_off(self) -> None:
        try:
            async with asyncio.timeout(self.settings.backoff_ms / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def run_once(self, now_ms: int) -> CleanReport | None:
        """Clean the dirtiest log.

        Return None if nothing is due, or the round could not be completed.
        """
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
        """Measure all logs, in slices of two milliseconds so that the loop never stalls."""
        candidates: list[Cleanable] = []
        wrong: set[str] = set()
        until = time.perf_counter() + _SLICE_S
        for tp, log in list(self._manager.logs.items()):
            if (
                not log.config.compact
                or len(log.segments) < 2
                or tp in self.uncleanable
                or log.failed
            ):
                continue
            cleanable = self._measure(log, now_ms)
            if cleanable is not None:
                candidates.append(cleanable)
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
        return candidates

    def _measure(self, log: PartitionLog, now_ms: int) -> Cleanable | None:
        try:
            return measure(facts_of(log), now_ms)
        except OSError as error:
            self._storage_failed(log, error)
        except Exception as error:  # for example a damaged header; the other logs continue
            self._give_up(log.tp, error)
        return None

    # -- one round

    async def _guarded(self, round_: _Round, chosen: Cleanable, now_ms: int) -> CleanReport | None:
        """Run a round and handle its failures.

        A log that fails must not stop the others, so this catches everything.
        """
        log = round_.log
        try:
            report = await self._clean(round_, chosen, now_ms)
            self._failures.pop(log.tp, None)
            return report
        except asyncio.CancelledError:
            await self._remove_cleaned(round_)
            if not round_.aborted:
                raise
            logger.info("%s: cleaning was aborted", log.tp)
        except (LogChanged, StorageError):
            await self._remove_cleaned(round_)
            logger.info("%s: the log changed while it was cleaned; the result is dropped", log.tp)
        except WorkerClosed:
            pass  # the broker stops
        except (WorkerDied, NoRound, FileNotFoundError, MemoryError) as error:
            await self._remove_cleaned(round_)
            self._failed_again(log.tp, error)
        except OSError as error:
            await self._remove_cleaned(round_)
            self._storage_failed(log, error)
        except Exception as error:
            await self._remove_cleaned(round_)
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
        _log_result(log, chosen, plan, stats)
        return CleanReport(log.tp, chosen.first_dirty_offset, plan.end_offset, stats)

    async def _swap(self, round_: _Round, group: CleanedGroup) -> None:
        """Stage the swap in a thread, since that waits for the disk, then swap in one step."""
        log, new = round_.log, [cleaned.base_offset for cleaned in group.new]
        round_.check_unchanged(self._manager, group.old)
        sums = log.segment_list.checksums.file
        sums.suspend()
        try:
            await _uninterrupted(
                self._blocking(lambda: stage_swap(log.files, round_.directory, new, sums))
            )
            round_.check_unchanged(self._manager, group.old)
        except BaseException:
            # If they stayed, the next start would put them in the place of newer segments.
            _remove_quietly(log, round_.directory, file_names.SWAP)
            sums.resume()
            raise
        log.replace_segments(new, group.old)
        for base in group.old:
            del round_.segments[base]

    async def _recovery_point_durable(self, log: PartitionLog, offset: int) -> None:
        if (
            self._manager.dirs[log.log_dir].checkpoints[file_names.RECOVERY_POINTS].get(log.tp, 0)
            < offset
        ):
            await self._checkpoint(log.log_dir, file_names.RECOVERY_POINTS)

    async def _checkpoint(self, log_dir: str, name: str) -> None:
        directory = self._manager.dirs[log_dir]
        if not directory.online:
            return
        try:
            await self._blocking(self._manager.checkpoints.job(directory, name).run)
        except OSError as error:
            raise self._manager.failures.disk_failed(
                log_dir, f"cannot write {name}", error
            ) from error

    async def _remove_cleaned(self, round_: _Round) -> None:
        """Remove the files that the child wrote. It is dead or idle by now."""
        await self._blocking(
            lambda: _remove_quietly(round_.log, round_.directory, file_names.CLEANED)
        )

    # -- failures

    def _failed_again(self, tp: TopicPartition, error: Exception) -> None:
        """Count a failure that may be temporary: the child died, or a file was missing."""
        self._failures[tp] = self._failures.get(tp, 0) + 1
        if self._failures[tp] >= _MAX_FAILURES:
            self._give_up(tp, error)
        else:
            logger.warning("%s: cleaning failed and will be retried: %s", tp, error)

    def _storage_failed(self, log: PartitionLog, error: OSError) -> None:
        if error.errno in _FULL:
            logger.error("%s cannot be cleaned now, the disk is full: %s", log.tp, error)
        elif self._manager.logs.get(log.tp) is log:
            self._manager.failures.fail_directory(log.log_dir, f"cannot clean {log.tp}: {error}")

    def _give_up(self, tp: TopicPartition, error: Exception) -> None:
        self.uncleanable[tp] = f"{type(error).__name__}: {error}"
        logger.error("%s cannot be cleaned and stays as it is until the next start: %s", tp, error)


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


def job_for(
    log: PartitionLog, chosen: Cleanable, settings: CleanerSettings, now_ms: int
) -> CleanJob:
    """Return the job for the child. Producers that appear later write above its range."""
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
        log.may_drop_deletions,
    )
    return CleanJob(
        log.directory,
        tuple(
            SourceSegment(s.base_offset, s.size)
            for s in log.segments
            if s.base_offset < chosen.end_offset
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
    """Return the level of the topic's own codec. Other codecs, of producers, get the default."""
    levels = {
        "gzip": (Codec.GZIP, config.compression_gzip_level),
        "lz4": (Codec.LZ4, config.compression_lz4_level),
        "zstd": (Codec.ZSTD, config.compression_zstd_level),
    }
    level = levels.get(config.compression_type)
    return {int(level[0]): level[1]} if level is not None else {}


def _remove_quietly(log: PartitionLog, directory: str, suffix: str) -> None:
    try:
        for name in log.files.listdir(directory):
            if name.endswith(suffix):
                log.files.unlink(os.path.join(directory, name))
    except FileNotFoundError:
        pass  # the log was deleted
    except OSError as error:
        logger.warning(
            "%s: cannot remove the files of an interrupted cleaning: %s", directory, error
        )


def _correct_checkpoint(log: PartitionLog, cleanable: Cleanable) -> None:
    # Retention moves the log start all the time, and explicit deletion sometimes.
    if not log.config.delete:
        logger.warning(
            "%s: the cleaner's checkpoint %d is outside the log (%d to %d); cleaning starts at the log start",
            log.tp, log.cleaned_offset, log.log_start_offset, log.log_end_offset,
        )  # fmt: skip
    log.cleaned_offset = cleanable.first_dirty_offset


def _log_result(log: PartitionLog, chosen: Cleanable, plan: CleanPlan, stats: CleanStats) -> None:
    logger.info(
        "%s: cleaned offsets %d to %d: %d of %d bytes and %d of %d records are left, %.1f s",
        log.tp, chosen.first_dirty_offset, plan.end_offset, stats.bytes_written, stats.bytes_read,
        stats.records_kept, stats.records_read, stats.map_seconds + stats.clean_seconds,
    )  # fmt: skip


async def _in_thread(call: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, call)


async def _uninterrupted(work: Awaitable[Any]) -> None:
    """Await work that must complete even if the caller is cancelled."""
    future = asyncio.ensure_future(work)
    try:
        await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise
