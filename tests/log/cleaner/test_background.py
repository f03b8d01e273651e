"""The cleaner over real logs: what it cleans, what it remembers, and what others may do to a log
meanwhile.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millstream.core.types import TopicPartition
from millstream.log.cleaner.background import Cleaner, CleanerSettings, cleaner_worker
from millstream.log.directories.checkpoints import read_offsets
from millstream.ports.files import RealFiles
from millstream.ports.workers import WorkerDied
from millstream.wire.records.compression import Codec
from support.log.cleaner_store import COMPACT, HOUR_MS, TP, StepWorker, Store, clean, offsets

OTHER = TopicPartition("events", 1)


def checkpoint(store: Store, directory: Path | str) -> dict[TopicPartition, int]:
    return read_offsets(store.files, os.path.join(str(directory), "cleaner-offset-checkpoint"))


# -- what it does


def test_round_keeps_last_values_and_stores_its_end(tmp_path: Path):
    store = Store(tmp_path)
    last = store.fill(rounds=3, keys=4)
    report = clean(store)
    assert report is not None and (report.first_dirty_offset, report.end_offset) == (0, 12)
    assert (report.stats.records_read, report.stats.records_kept) == (12, 4)
    assert offsets(store.read()) == [8, 9, 10, 11]
    assert store.values() == last
    assert len(store.log().segments) == 2, "three closed segments became one"
    assert checkpoint(store, tmp_path) == {TP: 12}
    assert store.leftovers() == []
    assert clean(store) is None, "nothing is dirty any more"
    store.close()


def test_restart_continues_where_the_last_round_ended(tmp_path: Path):
    store = Store(tmp_path)
    store.fill(rounds=2)
    clean(store)
    store.close()
    store.open()
    assert clean(store) is None
    store.put(("k0", "new"))
    store.roll()
    report = clean(store)
    assert report is not None and report.first_dirty_offset == 8
    assert store.values()["k0"] == "new"
    assert offsets(store.read()) == [5, 6, 7, 8]
    store.close()


def test_log_reads_the_same_after_a_crash_and_recovery(tmp_path: Path):
    store = Store(tmp_path)
    last = store.fill(rounds=4)
    clean(store)
    store.put(("k0", "after"))
    before = store.read()
    store.crash()
    store.open()
    assert store.read() == before
    assert store.values() == {**last, "k0": "after"}
    store.close()


def test_lost_checkpoints_cost_work_but_no_record(tmp_path: Path):
    store = Store(tmp_path, config=replace(COMPACT, segment_bytes=300))
    store.fill(rounds=6)
    clean(store)
    before = store.read()
    store.crash()
    for name in (
        "cleaner-offset-checkpoint",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
    ):
        (tmp_path / name).unlink(missing_ok=True)
    store.open()
    assert store.read() == before
    clean(store)
    assert store.read() == before
    store.close()


def test_active_segment_and_what_is_not_replicated_stay(tmp_path: Path):
    store = Store(tmp_path)
    store.put(("a", "1"), ("a", "2"))
    store.roll()
    log = store.log()
    end = log.log_end_offset
    store.put(("a", "3"), ("a", "4"))
    store.roll()
    store.put(("a", "5"), ("a", "6"))
    log.high_watermark = end + 1
    report = clean(store)
    assert report is not None and report.end_offset == end
    assert offsets(store.read()) == [1, 2, 3, 4, 5]
    store.close()


def test_segment_of_an_open_transaction_stays(tmp_path: Path):
    store = Store(tmp_path)
    store.put(("a", "1"), ("a", "2"))
    store.roll()
    store.put(("a", "open"), pid=5, txn=True)
    store.put(("a", "3"), ("a", "4"))
    store.roll()
    clean(store)
    assert offsets(store.read()) == [1, 2, 3, 4]
    store.end_transaction(5, commit=False)
    store.roll()
    clean(store)
    assert offsets(store.read(committed=True)) == [4]
    assert store.values(committed=True) == {"a": "4"}
    store.close()


def test_log_that_is_not_compacted_is_left_alone(tmp_path: Path):
    store = Store(tmp_path, config=replace(COMPACT, cleanup_policy=frozenset({"delete"})))
    store.fill()
    assert clean(store) is None
    store.close()


def test_dirtiest_log_goes_first_and_each_gets_its_turn(tmp_path: Path):
    store = Store(tmp_path)
    store.fill(TP, rounds=2)
    clean(store)
    store.put(("k0", "x"))
    store.roll()
    store.fill(OTHER, rounds=2)
    reports = [clean(store), clean(store), clean(store)]
    assert [report.tp if report else None for report in reports] == [OTHER, TP, None]
    store.close()


def test_every_data_directory_has_its_own_checkpoint(tmp_path: Path):
    store = Store(tmp_path / "one", tmp_path / "two")
    store.log(TP, str(tmp_path / "one"))
    store.log(OTHER, str(tmp_path / "two"))
    store.fill(TP)
    store.fill(OTHER, rounds=2)
    clean(store)
    clean(store)
    assert checkpoint(store, tmp_path / "one") == {TP: 12}
    assert checkpoint(store, tmp_path / "two") == {OTHER: 8}
    store.close()


def test_small_buffer_cleans_in_several_rounds(tmp_path: Path):
    store = Store(tmp_path)
    last = store.fill(rounds=3, keys=10)
    ends = []
    while (report := clean(store, dedupe_buffer_bytes=24 * 4, load_factor=1.0)) is not None:
        ends.append(report.end_offset)
    assert len(ends) > 5 and ends == sorted(set(ends)) and ends[-1] == 30
    assert store.values() == last
    assert offsets(store.read()) == list(range(20, 30))
    store.close()


def test_tombstones_go_when_their_horizon_is_reached(tmp_path: Path):
    store = Store(tmp_path, config=replace(COMPACT, delete_retention_ms=HOUR_MS))
    store.put(("a", "1"), ("b", "1"))
    store.put(("a", None))
    store.roll()
    clean(store)
    assert store.values() == {"b": "1", "a": None}
    store.now_ms += HOUR_MS
    store.put(("c", "1"))
    store.roll()
    clean(store)
    assert store.values() == {"b": "1", "c": "1"}
    store.close()


COMPACT_DELETE = replace(
    COMPACT,
    cleanup_policy=frozenset({"compact", "delete"}),
    retention_ms=HOUR_MS,
    segment_bytes=200,
)


def test_compact_and_delete_together(tmp_path: Path):
    store = Store(tmp_path, config=COMPACT_DELETE)
    store.fill(rounds=2)
    for segment in store.log().segments:
        os.utime(segment.path(".log"), (store.now_ms / 1000, store.now_ms / 1000))
    clean(store)
    assert store.log().segments[0].size == 0, "without a record, hence without a time of its own"
    store.now_ms += HOUR_MS + 1
    store.put(("new", "1"))
    store.roll()
    assert store.log().delete_old_segments(store.now_ms) > 1
    assert store.log().log_start_offset == 8 == store.log().cleaned_offset
    store.put(("new", "2"))
    store.roll()
    store.log().delete_records(9)
    clean(store)
    assert store.values() == {"new": "2"}
    assert checkpoint(store, tmp_path) == {TP: 10}
    store.close()


def test_checkpoint_outside_the_log_is_corrected(tmp_path: Path):
    store = Store(tmp_path, config=replace(COMPACT, min_cleanable_dirty_ratio=1.0))
    store.fill(rounds=2)
    for impossible in (10**6, -5):
        store.log().cleaned_offset = impossible
        assert clean(store) is None
        assert store.log().cleaned_offset in (0, -5), "-1 and less mean that there is none"
    store.log().cleaned_offset = 10**6
    clean(store)
    assert checkpoint(store, tmp_path) == {TP: 0}
    store.close()


@pytest.mark.parametrize("codec", list(Codec))
def test_real_child_cleans_every_codec(tmp_path: Path, codec: Codec):
    store = Store(tmp_path)
    for number in range(3):
        store.put(*((f"k{key}", f"{number}-{key}") for key in range(50)), codec=codec)
        store.put((f"k{number}", None), codec=codec)
        store.roll()
    expected = store.values()

    async def scenario() -> None:
        worker = cleaner_worker()
        try:
            report = await Cleaner(store.manager, worker).run_once(store.now_ms)
            assert report is not None and report.stats.records_kept == 50
        finally:
            await worker.close()

    asyncio.run(scenario())
    assert store.values() == expected
    store.close()


def test_reader_of_a_replaced_segment_reads_on(tmp_path: Path):
    store = Store(tmp_path)
    store.fill()
    old = store.log().read(0, 1 << 20, upto=12, at_least_one=True)
    assert old.slice is not None
    before = old.slice.read()
    clean(store)
    assert old.slice.read() == before
    store.close()


# -- producers


def test_producers_are_the_same_after_a_restart_from_the_cleaned_log_alone(tmp_path: Path):
    store = Store(tmp_path)
    for number in range(3):
        store.put(("a", f"p{number}"), pid=1)
        store.put(("b", f"q{number}"), pid=2, txn=True)
        store.end_transaction(2, commit=number % 2 == 0)
        store.put(("a", "plain"), ("b", "plain"))
        store.roll()
    before = store.producers()
    clean(store)
    assert store.producers() == before
    store.crash()
    directory = store.log().directory
    for name in os.listdir(directory):
        if name.endswith(".snapshot"):
            os.unlink(os.path.join(directory, name))
    os.unlink(tmp_path / "recovery-point-offset-checkpoint")
    store.open()
    assert store.producers() == before
    assert store.put(("a", "next"), pid=1) == store.log().log_end_offset - 1, (
        "the next sequence is accepted"
    )
    store.close()


# -- what others do meanwhile


def test_loop_cleans_until_nothing_is_dirty_and_looks_again_when_woken(tmp_path: Path):
    store = Store(tmp_path)
    store.fill(TP)
    store.fill(OTHER)

    async def scenario() -> None:
        worker = StepWorker()
        cleaner = Cleaner(store.manager, worker, CleanerSettings(backoff_ms=3_600_000))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(cleaner.run())
            await until(lambda: worker.jobs.count("end") == 2 and cleaner.cleaning is None)
            store.put(("k0", "x"))
            store.roll()
            cleaner.wake()
            await until(lambda: worker.jobs.count("end") == 3 and cleaner.cleaning is None)
            task.cancel()

    asyncio.run(scenario())
    assert store.values()["k0"] == "x"
    assert checkpoint(store, tmp_path) == {TP: 13, OTHER: 12}
    store.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the cleaner's task makes it true
        await asyncio.sleep(0.001)


MEANWHILE: dict[str, Callable[[Store], Any]] = {
    "truncated into the cleaned range": lambda store: store.log().truncate_to(3),
    "truncated to nothing": lambda store: store.log().truncate_fully_and_start_at(100),
    "retention": lambda store: delete_first_segment(store),
    "deleted": lambda store: store.manager.delete(TP),
    "directory failed": lambda store: store.manager.failures.fail_directory(
        store.directories[0], "test"
    ),
}


def delete_first_segment(store: Store) -> None:
    log = store.log()
    log.update_config(replace(log.config, cleanup_policy=frozenset({"compact", "delete"})))
    log.delete_records(5)
    assert log.delete_old_segments(store.now_ms) == 1


@pytest.mark.parametrize("step", ["begin", "clean_group"])
@pytest.mark.parametrize("what", MEANWHILE)
def test_round_is_dropped_when_the_log_changes_under_it(tmp_path: Path, what: str, step: str):
    store = Store(tmp_path)
    store.fill()
    log, directory = store.log(), store.log().directory
    worker = StepWorker()
    worker.after = lambda job: MEANWHILE[what](store) if job == step else None
    assert clean(store, worker) is None
    assert "end" not in worker.jobs
    log = store.manager.logs.get(TP, log)
    assert log.cleaned_offset <= 3
    if TP in store.manager.logs:
        assert store.leftovers() == []
        expected = {"retention": list(range(5, 12)), "truncated to nothing": []}.get(
            what, [0, 1, 2]
        )
        assert offsets(store.read()) == expected
        worker.after = lambda job: None
        store.fill(rounds=2)
        assert clean(store, worker) is not None
        assert len(offsets(store.read())) == 4
    assert not os.path.exists(directory) or not any(
        name.endswith(".swap") for name in os.listdir(directory)
    )
    store.crash()


@pytest.mark.parametrize(
    "what", ["truncated into the cleaned range", "truncated to nothing", "retention"]
)
def test_swap_is_taken_back_when_the_log_changes_while_it_is_staged(tmp_path: Path, what: str):
    store = Store(tmp_path)
    store.fill()
    changes = 0

    async def blocking(call: Callable[[], Any]) -> Any:
        nonlocal changes
        result = call()
        if not changes and any(name.endswith(".log.swap") for name in store.files_of()):
            changes += 1
            MEANWHILE[what](store)
        return result

    cleaner = Cleaner(store.manager, StepWorker(), blocking=blocking)
    assert asyncio.run(cleaner.run_once(store.now_ms)) is None
    assert (changes, store.leftovers()) == (1, [])
    before = store.read()
    store.manager.checkpoints.write_all()  # DeleteRecords waits for the log start to be durable
    store.crash()
    store.open()
    assert store.read() == before
    store.close()


def test_abort_stops_the_child_and_leaves_the_log_as_it_was(tmp_path: Path):
    """A throttled round would take hours; the child is killed in the middle of it."""
    store = Store(tmp_path)
    last = store.fill(rounds=4, keys=50)
    before = store.read()

    async def scenario() -> None:
        worker = cleaner_worker()
        cleaner = Cleaner(store.manager, worker, CleanerSettings(io_max_bytes_per_s=10.0))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(cleaner.run_once(store.now_ms))
            await until(lambda: worker.pid is not None)
            cleaner.abort(OTHER)
            assert cleaner.cleaning == TP and not task.done()
            cleaner.abort(TP)
        assert task.result() is None
        assert worker.pid is None
        assert (store.read(), store.leftovers(), cleaner.uncleanable) == (before, [], {})
        cleaner.settings = CleanerSettings()
        assert await cleaner.run_once(store.now_ms) is not None
        await worker.close()

    asyncio.run(scenario())
    assert store.values() == last
    store.close()


@pytest.mark.parametrize("stage", ["map", "group"])
def test_killed_child_leaves_the_log_as_it_was_and_a_later_round_succeeds(
    tmp_path: Path, stage: str
):
    store = Store(tmp_path)
    last = store.fill(rounds=20, keys=20)
    log = store.log()
    before = store.read()
    speed = 10.0
    if stage == "group":
        # Only the last closed segment is dirty: the first walk takes half a second, the second one
        # ten.
        log.cleaned_offset = log.segments[-2].base_offset
        speed = log.size / 10

    async def scenario() -> None:
        worker = cleaner_worker()
        cleaner = Cleaner(
            store.manager, worker, CleanerSettings(io_max_bytes_per_s=speed, io_buffer_bytes=200)
        )
        async with asyncio.TaskGroup() as group:
            task = group.create_task(cleaner.run_once(store.now_ms))
            await until(
                lambda: worker.pid is not None if stage == "map" else bool(store.leftovers())
            )
            os.kill(worker.pid or 0, signal.SIGKILL)
        assert task.result() is None
        assert (store.read(), store.leftovers(), cleaner.uncleanable) == (before, [], {})
        cleaner.settings = CleanerSettings()
        assert await cleaner.run_once(store.now_ms) is not None
        await worker.close()

    asyncio.run(scenario())
    assert store.values() == last
    assert len(store.read()) < len(before)
    store.close()


def test_stopping_in_the_middle_leaves_the_log_as_it_was(tmp_path: Path):
    store = Store(tmp_path)
    last = store.fill(rounds=4, keys=50)

    async def scenario() -> None:
        worker = cleaner_worker()
        cleaner = Cleaner(store.manager, worker, CleanerSettings(io_max_bytes_per_s=10.0))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(cleaner.run())
            await until(lambda: worker.pid is not None)
            task.cancel()
        assert worker.pid is None
        await worker.close()

    asyncio.run(scenario())
    assert store.leftovers() == []
    assert store.values() == last
    store.close()


# -- failures


def damage(path: str) -> None:
    with open(path, "r+b") as file:
        file.seek(70)
        file.write(b"\xff\xff")


def test_damaged_log_is_uncleanable_and_others_continue(tmp_path: Path):
    store = Store(tmp_path)
    store.fill(TP, rounds=5)
    store.fill(OTHER)
    store.put(("extra", "1"), tp=OTHER)
    damage(os.path.join(store.log().directory, "00000000000000000004.log"))

    async def scenario() -> None:
        cleaner = Cleaner(store.manager, StepWorker())
        reports = [await cleaner.run_once(store.now_ms) for _ in range(3)]
        assert [report.tp for report in reports if report] == [OTHER]
        assert list(cleaner.uncleanable) == [TP]
        assert "checksum is wrong" in cleaner.uncleanable[TP]
        store.manager.delete(TP)
        await cleaner.run_once(store.now_ms)
        assert cleaner.uncleanable == {}

    asyncio.run(scenario())
    assert store.manager.offline == {}, "it can still be read"
    store.crash()


class Failing:
    """A worker whose jobs fail as told."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def run(self, function: str, *args: Any) -> Any:
        raise self.error

    async def close(self) -> None:
        pass


def test_child_that_dies_every_time_makes_a_log_uncleanable(tmp_path: Path):
    store = Store(tmp_path)
    store.fill()

    async def scenario() -> None:
        cleaner = Cleaner(store.manager, Failing(WorkerDied("out of memory")))
        for attempt in range(3):
            assert cleaner.uncleanable == {}, attempt
            await cleaner.run_once(store.now_ms)
        assert list(cleaner.uncleanable) == [TP]

    asyncio.run(scenario())
    store.close()


def test_full_disk_stops_the_round_but_not_the_directory(tmp_path: Path):
    store = Store(tmp_path)
    store.fill()
    assert clean(store, Failing(OSError(errno.ENOSPC, "no space"))) is None
    assert store.manager.dirs[str(tmp_path)].online
    assert clean(store) is not None
    store.close()


def test_failed_disk_takes_its_directory_offline(tmp_path: Path):
    store = Store(tmp_path / "one", tmp_path / "two")
    store.log(TP, str(tmp_path / "one"))
    store.log(OTHER, str(tmp_path / "two"))
    store.fill(TP)
    assert clean(store, Failing(OSError(errno.EIO, "bad sector"))) is None
    assert not store.manager.dirs[str(tmp_path / "one")].online
    assert store.manager.dirs[str(tmp_path / "two")].online
    assert list(store.manager.offline) == [TP]
    store.crash()


class FullWhenStaging(RealFiles):
    """No room for the rename that begins a swap, as long as `full` is set."""

    full = True

    def rename(self, old: str, new: str) -> None:
        if self.full and new.endswith(".index.swap"):
            raise OSError(errno.ENOSPC, "no space", new)
        super().rename(old, new)


def test_swap_that_cannot_begin_is_taken_back(tmp_path: Path):
    files = FullWhenStaging()
    store = Store(tmp_path, files=files)
    last = store.fill()
    before = store.read()
    assert clean(store) is None
    assert (store.leftovers(), store.read()) == ([], before)
    files.full = False
    assert clean(store) is not None
    assert store.values() == last
    store.close()


def test_log_whose_first_header_is_damaged_does_not_stop_the_others(tmp_path: Path):
    """max.compaction.lag.ms looks into the segments before a round begins."""
    store = Store(tmp_path, config=replace(COMPACT, max_compaction_lag_ms=HOUR_MS))
    store.fill(TP)
    store.fill(OTHER)
    directory = store.log().directory
    store.close()
    with open(os.path.join(directory, "00000000000000000004.log"), "r+b") as file:
        file.write(bytes(61))
    store.open()

    async def scenario() -> None:
        cleaner = Cleaner(store.manager, StepWorker())
        report = await cleaner.run_once(store.now_ms)
        assert report is not None and report.tp == OTHER
        assert list(cleaner.uncleanable) == [TP]

    asyncio.run(scenario())
    store.crash()


class CheckpointsFail(RealFiles):
    """The cleaner's checkpoint cannot be written."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code

    def write_atomic(self, path: str, data: Any) -> None:
        if path.endswith("cleaner-offset-checkpoint"):
            raise OSError(self.code, os.strerror(self.code), path)
        super().write_atomic(path, data)


def test_checkpoint_that_cannot_be_written_takes_the_directory_offline(tmp_path: Path):
    store = Store(tmp_path, files=CheckpointsFail(errno.EIO))
    store.fill()
    assert clean(store) is None
    assert not store.manager.dirs[str(tmp_path)].online
    store.crash()


def test_checkpoint_on_a_full_disk_keeps_the_directory_online(tmp_path: Path):
    store = Store(tmp_path, files=CheckpointsFail(errno.ENOSPC))
    last = store.fill()
    assert clean(store) is None
    assert store.manager.dirs[str(tmp_path)].online
    assert store.values() == last
    store.crash()
