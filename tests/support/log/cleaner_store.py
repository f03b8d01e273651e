"""Real logs for the tests of the cleaner: a log manager over directories, written to as a leader
does.

`Store` opens, closes and crashes; `put` appends a batch, `read` is what a consumer gets.
`StepWorker` runs the child's jobs in this process and lets a test act after each of them; `dies_at`
ends everything in the middle of a cleaning.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from millstream.core.types import TopicPartition
from millstream.log.cleaner.background import Cleaner, CleanerSettings, CleanReport
from millstream.log.config import LogConfig
from millstream.log.management.manager import LogManager, ManagerSettings
from millstream.log.partition_log import Origin, PartitionLog
from millstream.ports.files import Files, RealFiles
from millstream.ports.worker_child import resolve
from millstream.sim.world.disk import SimDisk
from millstream.wire.records.batch import (
    Record,
    build_batch,
    build_marker,
    parse_header,
    read_marker,
    read_records,
)

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
TP = TopicPartition("events", 0)
COMPACT = LogConfig(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)

Pair = tuple[str | None, str | None]


class StepWorker:
    """Runs jobs at once, in this process, on the given files; `after` is called with the name of
    each finished job.
    """

    def __init__(self, files: Files | None = None) -> None:
        self.files = files or RealFiles()
        self.after: Callable[[str], Any] = lambda job: None
        self.jobs: list[str] = []

    async def run(self, function: str, *args: Any) -> Any:
        job = function.partition(":")[2]
        await asyncio.sleep(0)
        result = (
            resolve(function)(*args, self.files) if job == "begin" else resolve(function)(*args)
        )
        self.jobs.append(job)
        self.after(job)
        await asyncio.sleep(0)
        return result

    async def close(self) -> None:
        pass


class Store:
    """A log manager that can be stopped and started again over the same directories."""

    def __init__(
        self,
        *directories: Path | str,
        config: LogConfig = COMPACT,
        files: Files | None = None,
        **settings: Any,
    ) -> None:
        self.directories = [str(directory) for directory in directories]
        self.config = config
        self.configs: dict[str, LogConfig] = {}
        self.files = files or RealFiles()
        self.settings = ManagerSettings(**{"delete_delay_ms": 0, **settings})
        self.now_ms = START_MS
        self.sequences: dict[int, int] = {}
        self.open()

    def open(self) -> None:
        self.manager = LogManager(
            self.files,
            self.directories,
            config_for=lambda topic: self.configs.get(topic, self.config),
            clock=lambda: self.now_ms,
            settings=self.settings,
        )
        self.manager.open()
        for log in self.manager.load():
            if log is not None:
                log.restore_high_watermark(log.log_end_offset)

    def close(self) -> None:
        self.manager.close(broker_epoch=1)

    def crash(self) -> None:
        """The process dies; what was written is there, nothing is tidied up."""
        for log_dir in self.manager.dirs.values():
            log_dir.close(clean_broker_epoch=None)

    def log(self, tp: TopicPartition = TP, directory: str | None = None) -> PartitionLog:
        log = self.manager.get(tp)
        return log or self.manager.create(tp, uuid.uuid4(), directory=directory)

    # -- writing

    def put(
        self,
        *pairs: Pair,
        tp: TopicPartition = TP,
        pid: int = -1,
        txn: bool = False,
        codec: int = 0,
    ) -> int:
        log = self.log(tp)
        records = [
            Record(
                i, self.now_ms, None if k is None else k.encode(), None if v is None else v.encode()
            )
            for i, (k, v) in enumerate(pairs)
        ]
        sequence = -1
        if pid >= 0:
            sequence = self.sequences.get(pid, 0)
            self.sequences[pid] = sequence + len(records)
        epoch = 0 if pid >= 0 else -1
        batch = build_batch(
            records,
            codec=codec,
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=txn,
        )
        return self._append(log, batch, Origin.CLIENT)

    def end_transaction(self, pid: int, *, commit: bool, tp: TopicPartition = TP) -> int:
        marker = build_marker(
            base_offset=0,
            leader_epoch=0,
            producer_id=pid,
            producer_epoch=0,
            coordinator_epoch=0,
            commit=commit,
            timestamp=self.now_ms,
        )
        return self._append(self.log(tp), marker, Origin.COORDINATOR)

    def _append(self, log: PartitionLog, batch: bytes, origin: Origin) -> int:
        result = log.append(
            memoryview(bytearray(batch)), leader_epoch=0, now_ms=self.now_ms, origin=origin
        )
        log.advance_high_watermark(log.log_end_offset)
        return result.base_offset

    def roll(self, tp: TopicPartition = TP) -> None:
        """Close the active segment and make it durable, as housekeeping does soon after."""
        log = self.log(tp)
        log.roll(now_ms=self.now_ms)
        log.flush()

    def fill(self, tp: TopicPartition = TP, *, rounds: int = 3, keys: int = 4) -> dict[str, str]:
        """Closed segments in which every key is written once each; the last value of every key."""
        last: dict[str, str] = {}
        for number in range(rounds):
            for key in range(keys):
                last[f"k{key}"] = f"{number}-{key}"
                self.put((f"k{key}", f"{number}-{key}"), tp=tp)
            self.roll(tp)
        return last

    # -- reading

    def read(self, tp: TopicPartition = TP, *, committed: bool = False) -> list[Record]:
        """What a consumer gets that reads from the log start."""
        log = self.log(tp)
        end = log.last_stable_offset if committed else log.log_end_offset
        coming = log.aborted_transactions(log.log_start_offset, end) if committed else []
        skipping: set[int] = set()
        records: list[Record] = []
        offset = log.log_start_offset
        while offset < end:
            result = log.read(offset, 1 << 20, upto=end, at_least_one=True)
            if result.slice is None:
                break
            data, at = result.slice.read(), 0
            while at < len(data):
                header = parse_header(data, at)
                batch = data[at : at + header.size]
                at += header.size
                while coming and coming[0][1] <= header.last_offset:
                    skipping.add(coming.pop(0)[0])
                if header.control:
                    marker = read_marker(batch)
                    if marker is not None and not marker.commit:
                        skipping.discard(header.producer_id)
                elif not (header.transactional and header.producer_id in skipping):
                    records += [
                        r for r in read_records(batch, max_bytes=1 << 28) if r.offset >= offset
                    ]
            offset = result.end_offset
        return records

    def values(self, tp: TopicPartition = TP, *, committed: bool = False) -> dict[str, str | None]:
        """The last value of every key."""
        return {
            (r.key or b"").decode(): None if r.value is None else r.value.decode()
            for r in self.read(tp, committed=committed)
        }

    def producers(self, tp: TopicPartition = TP) -> dict[int, tuple[int, int, int]]:
        entries = self.log(tp).producer_state.producers
        return {pid: (e.epoch, e.last_sequence, e.last_offset) for pid, e in entries.items()}

    def files_of(self, tp: TopicPartition = TP) -> list[str]:
        return sorted(self.files.listdir(self.log(tp).directory))

    def leftovers(self, tp: TopicPartition = TP) -> list[str]:
        return [name for name in self.files_of(tp) if name.endswith((".cleaned", ".swap"))]


def clean(store: Store, worker: Any = None, **settings: Any) -> CleanReport | None:
    """One round, in this process unless a worker is given."""
    return asyncio.run(clean_once(store, worker, **settings))


async def clean_once(store: Store, worker: Any = None, **settings: Any) -> CleanReport | None:
    cleaner = Cleaner(store.manager, worker or StepWorker(store.files), CleanerSettings(**settings))
    return await cleaner.run_once(store.now_ms)


def offsets(records: Sequence[Record]) -> list[int]:
    return [record.offset for record in records]


class PowerCut(BaseException):
    """Ends everything at once, like the real one."""


def cut_after(count: int) -> Callable[[str, str], OSError | None]:
    left = count

    def fault(operation: str, path: str) -> OSError | None:
        nonlocal left
        if operation not in ("read", "listdir"):
            left -= 1
            if left <= 0:
                raise PowerCut
        return None

    return fault


def dies_at(store: Store, disk: SimDisk, step: int, **settings: Any) -> bool:
    """Cleans until the disk was changed so many times; whether everything ended there, before the
    round was done.
    """
    disk.fault = cut_after(step)
    try:
        clean(store, StepWorker(disk), **settings)
    except BaseException as error:
        if not _is_cut(error):
            raise
        return True
    finally:
        disk.fault = lambda operation, path: None
    return False


def _is_cut(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_is_cut(inner) for inner in error.exceptions)
    return isinstance(error, PowerCut)
