"""Opening logs after anything: torn tails, missing and damaged files, flushed data that is gone,
swaps cut short.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.log.config import LogConfig
from millstream.log.directories import file_names
from millstream.log.errors import CorruptLog
from millstream.log.management.host import LogHost
from millstream.log.partition_log import PartitionLog
from millstream.log.recovery import opening
from millstream.log.segments.open_files import OpenFiles
from millstream.log.segments.transaction_index import ENTRY_SIZE
from millstream.ports.files import RealFiles
from support.log.world import NOW_MS, TP, append, append_marker, batch, new_log, read_all

SMALL = LogConfig(segment_bytes=1500, index_interval_bytes=200)


def opened(
    log: PartitionLog | str,
    *,
    clean: bool = False,
    power_lost: bool = False,
    recovery_point: int = 0,
    log_start: int = 0,
    config: LogConfig = SMALL,
) -> PartitionLog:
    directory = log if isinstance(log, str) else log.directory
    return opening.load(
        LogHost(RealFiles()),
        OpenFiles(),
        directory,
        TP,
        config,
        clean=clean,
        power_lost=power_lost,
        recovery_point=recovery_point,
        log_start=log_start,
        now_ms=NOW_MS,
    )


def filled(directory: Path, batches: int = 40) -> PartitionLog:
    log = new_log(directory, SMALL)
    for number in range(batches):
        append(
            log,
            batch(2, size=20, producer_id=3, epoch=0, sequence=2 * number),
            leader_epoch=number // 10,
        )
    append(log, batch(1, producer_id=4, epoch=0, sequence=0, transactional=True), leader_epoch=9)
    append_marker(log, 4, 0, commit=False, leader_epoch=9)
    append(log, batch(1, producer_id=5, epoch=0, sequence=0, transactional=True), leader_epoch=9)
    return log


def facts(log: PartitionLog) -> dict[str, object]:
    """Everything that has to be found again."""
    return {
        "batches": [raw for _, raw in read_all(log)],
        "end": log.log_end_offset,
        "producers": sorted(log.producer_state.snapshot()),
        "undecided": log.producer_state.first_undecided_offset,
        "aborted": log.aborted_transactions(0, log.log_end_offset),
        "epochs": log.epochs.entries(),
        "topic": log.topic_id,
        "times": log.timestamp_search(None)(),
    }


def files_of(log: PartitionLog, kind: str) -> list[str]:
    return sorted(name for name in os.listdir(log.directory) if name.endswith(kind))


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_is_found_as_it_was_left(tmp_path: Path, clean: bool) -> None:
    log = filled(tmp_path)
    before = facts(log)
    assert len(log.segments) > 3
    if clean:
        log.close()
    again = opened(log, clean=clean)
    assert facts(again) == before
    assert again.recovery_point == (again.log_end_offset if clean else 0)


def test_a_cleanly_closed_log_is_opened_with_a_few_small_reads(tmp_path: Path) -> None:
    log = filled(tmp_path, 200)
    log.close()
    reads: list[str] = []

    class Counting(RealFiles):
        def open(self, path: str, *, create: bool = False):  # type: ignore[no-untyped-def]
            reads.append(path)
            return super().open(path, create=create)

        def read_bytes(self, path: str) -> bytes:
            reads.append(path)
            return super().read_bytes(path)

    again = opening.load(LogHost(Counting()), OpenFiles(), log.directory, TP, SMALL, clean=True)
    assert again.log_end_offset == log.log_end_offset
    assert len(reads) <= 7
    assert not [
        path for path in reads if path.endswith(".log") and "00000000000000000000.log" in path
    ]


@pytest.mark.parametrize("torn", [1, 12, 61, 100])
def test_torn_last_batch_is_truncated_and_logged(
    tmp_path: Path, torn: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = filled(tmp_path)
    whole = facts(log)["batches"]
    path = log.segments[-1].path(file_names.LOG)
    with open(path, "ab") as file:
        file.write(bytes(batch(2, size=50, base_offset=log.log_end_offset))[:torn])
    with caplog.at_level(logging.WARNING):
        again = opened(log)
    assert facts(again)["batches"] == whole
    assert path in caplog.text
    assert f"{torn} bytes dropped" in caplog.text
    assert not files_of(again, ".cut-0")
    append(again, batch(1), leader_epoch=10)
    assert opened(again).log_end_offset == again.log_end_offset


def test_zeros_at_the_end_are_truncated(tmp_path: Path) -> None:
    log = filled(tmp_path)
    whole = facts(log)["batches"]
    with open(log.segments[-1].path(file_names.LOG), "ab") as file:
        file.write(bytes(5000))
    assert facts(opened(log))["batches"] == whole


def test_corrupt_unflushed_batch_truncates_the_log_and_keeps_a_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = filled(tmp_path)
    batches = read_all(log)
    victim = log.segments[1]
    position, header = list(victim.batches())[1]
    with open(victim.path(file_names.LOG), "r+b") as file:
        file.seek(position + 80)
        file.write(b"\xff\xff\xff")
    with caplog.at_level(logging.WARNING):
        again = opened(log)
    assert again.log_end_offset == header.base_offset
    assert [raw for _, raw in read_all(again)] == [
        raw for h, raw in batches if h.last_offset < header.base_offset
    ]
    assert len(again.segments) == 2
    cut = sorted(name for name in os.listdir(log.directory) if ".cut-" in name)
    assert cut[0].endswith(f".cut-{position}")
    assert len(cut) == 1 + len(log.segments) - 2
    assert "does not match its checksum" in caplog.text
    assert "dropped" in caplog.text
    assert again.producer_state.producers[3].last_offset < header.base_offset
    assert again.epochs.latest <= 9


def test_a_lost_end_of_a_segment_that_has_a_successor_is_no_gap_in_the_log(tmp_path: Path) -> None:
    log = filled(tmp_path)
    victim = log.segments[1]
    position, header = list(victim.batches())[-1]
    os.truncate(victim.path(file_names.LOG), position)
    again = opened(log)
    assert again.log_end_offset == header.base_offset
    assert len(again.segments) == 2


@pytest.mark.parametrize("left", [0, 1])
def test_the_lost_end_of_a_segment_of_a_compacted_topic_is_no_gap_either(
    tmp_path: Path, left: int
) -> None:
    """Where the power was lost: a replica with a hole would pass for a whole one. The leader has
    what is cut.
    """
    log = filled(tmp_path)
    victim = log.segments[1]
    position, header = list(victim.batches())[left]
    os.truncate(victim.path(file_names.LOG), position)
    again = opened(
        log, config=replace(SMALL, cleanup_policy=frozenset({"compact"})), power_lost=True
    )
    assert again.log_end_offset == header.base_offset
    assert len(again.segments) == 2


def test_gaps_that_a_leader_has_compacted_stay_when_only_the_process_died(tmp_path: Path) -> None:
    log = filled(tmp_path)
    victim = log.segments[1]
    position, _header = list(victim.batches())[-1]
    os.truncate(victim.path(file_names.LOG), position)
    again = opened(log, config=replace(SMALL, cleanup_policy=frozenset({"compact"})))
    assert again.log_end_offset == log.log_end_offset
    assert len(again.segments) == len(log.segments)


def damage_first_segment(log: PartitionLog) -> str:
    path = log.segments[0].path(file_names.LOG)
    with open(path, "r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff\xff")
    return path


def test_damage_in_flushed_data_keeps_the_partition_offline_and_every_byte(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    path = damage_first_segment(log)
    os.unlink(log.segments[0].path(file_names.OFFSET_INDEX))
    sizes = {
        name: os.stat(os.path.join(log.directory, name)).st_size for name in files_of(log, ".log")
    }
    for clean in (True, False):
        with pytest.raises(CorruptLog, match="checksum") as told:
            opened(log, clean=clean, recovery_point=log.log_end_offset)
        assert path in str(told.value)
    assert {
        n: os.stat(os.path.join(log.directory, n)).st_size for n in files_of(log, ".log")
    } == sizes


def test_log_shorter_than_recovery_point_stays_offline(
    tmp_path: Path,
) -> None:
    log = filled(tmp_path)
    end = log.log_end_offset
    log.close()
    last = log.segments[-1]
    position, header = list(last.batches())[-1]
    os.truncate(last.path(file_names.LOG), position)
    with pytest.raises(CorruptLog, match=f"flushed up to {end}") as told:
        opened(log, recovery_point=end)
    marker = os.path.join(log.directory, file_names.ACCEPT_LOSS)
    assert marker in str(told.value)
    Path(marker).touch()
    again = opened(log, recovery_point=end)
    assert again.log_end_offset == header.base_offset
    assert not os.path.exists(marker)


def test_a_log_whose_segments_are_gone_stays_offline(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    for name in files_of(log, ".log"):
        os.unlink(os.path.join(log.directory, name))
    with pytest.raises(CorruptLog, match="had been flushed and is missing"):
        opened(log, recovery_point=log.log_end_offset)
    os.unlink(Path(log.directory, file_names.INDEX_CHECKSUMS))
    with pytest.raises(CorruptLog, match="records are missing"):
        opened(log, recovery_point=log.log_end_offset)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "kinds", [(".index",), (".timeindex",), (".index", ".timeindex", ".txnindex"), (".snapshot",)]
)
def test_missing_indexes_and_snapshots_are_rebuilt(
    tmp_path: Path, clean: bool, kinds: tuple[str, ...]
) -> None:
    log = filled(tmp_path)
    before = facts(log)
    if clean:
        log.close()
    kept = {
        name: Path(log.directory, name).read_bytes()
        for kind in kinds[:2]
        for name in files_of(log, kind)
    }
    for kind in kinds:
        for name in files_of(log, kind):
            os.unlink(os.path.join(log.directory, name))
    again = opened(log, clean=clean and kinds != (".snapshot",))
    assert facts(again) == before
    again.close()
    if clean and kinds != (".snapshot",):
        assert {name: Path(log.directory, name).read_bytes() for name in kept} == kept


@pytest.mark.parametrize(
    "kind", [".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint"]
)
def test_damaged_side_files_are_rebuilt_after_an_unclean_stop(tmp_path: Path, kind: str) -> None:
    log = filled(tmp_path)
    before = facts(log)
    log.flush()
    for name in files_of(log, kind):
        Path(log.directory, name).write_bytes(b"\x01garbage" * 7)
    again = opened(log, recovery_point=0)
    assert facts(again) == before


def test_a_missing_leader_epoch_checkpoint_is_rebuilt_from_the_batches(tmp_path: Path) -> None:
    log = filled(tmp_path)
    before = log.epochs.entries()
    log.flush()
    os.unlink(os.path.join(log.directory, file_names.LEADER_EPOCHS))
    assert opened(log).epochs.entries() == before


def test_stale_epochs_and_snapshots_beyond_the_end_are_dropped(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.flush()
    Path(log.directory, file_names.LEADER_EPOCHS).write_bytes(
        log.epochs.encode().replace(b"0\n5\n", b"0\n6\n") + b"50 99999\n"
    )
    Path(log.directory, "00000000000000099999.snapshot").write_bytes(b"")
    again = opened(log)
    assert again.epochs.entries() == log.epochs.entries()
    assert "00000000000000099999.snapshot" not in os.listdir(log.directory)


def test_orphaned_indexes_are_removed(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    orphan = Path(log.directory, "00000000000000077777.index")
    orphan.write_bytes(bytes(8))
    opened(log, clean=True)
    assert not orphan.exists()


def test_the_log_start_is_kept_and_never_before_the_first_segment(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    assert opened(log, clean=True, log_start=17).log_start_offset == 17
    os.unlink(log.segments[0].path(file_names.LOG))
    os.unlink(Path(log.directory, file_names.INDEX_CHECKSUMS))  # which tell what is missing
    assert opened(log, clean=True, log_start=3).log_start_offset == log.segments[1].base_offset


def test_log_that_ends_before_its_start_continues_at_its_start(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    again = opened(log, log_start=5000)
    assert (again.log_start_offset, again.log_end_offset) == (5000, 5000)
    assert append(again, batch(1)).base_offset == 5000


def test_topic_id_is_read_and_an_unreadable_one_is_reported(tmp_path: Path) -> None:
    log = filled(tmp_path, 1)
    log.close()
    path = Path(log.directory, file_names.PARTITION_METADATA)
    assert opened(log, clean=True).topic_id == uuid.UUID(int=7)
    os.unlink(Path(log.directory, file_names.INDEX_CHECKSUMS))  # which know it, too
    path.write_bytes(b"")
    assert opened(log, clean=True).topic_id is None
    path.write_bytes(b"version: 0\ntopic_id: nonsense")
    with pytest.raises(CorruptLog, match="topic_id"):
        opened(log, clean=True)


def test_recovery_begins_at_the_recovery_point(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.flush()
    flushed = log.recovery_point
    append(log, batch(2), leader_epoch=9)
    before = facts(log)
    # Damage below the recovery point is not looked at: only what was not flushed is suspect.
    path = log.segments[-1].path(file_names.LOG)
    first = next(log.segments[-1].batches())[1]
    with open(path, "r+b") as file:
        file.seek(70)
        original = file.read(1)
        file.seek(70)
        file.write(bytes([original[0] ^ 1]))
    assert first.last_offset < flushed
    again = opened(log, recovery_point=flushed)
    assert again.log_end_offset == log.log_end_offset
    assert sorted(again.producer_state.snapshot()) == before["producers"]


def test_batch_with_a_lost_offset_is_truncated(tmp_path: Path) -> None:
    """A power cut took the few bytes of it that shared a sector with what had been flushed. Its
    checksum does not cover them, and its offset seems to lie below the recovery point.
    """
    log = filled(tmp_path)
    log.flush()
    flushed, position = log.recovery_point, log.segments[-1].size
    for _ in range(3):
        append(log, batch(2), leader_epoch=9)
    path = log.segments[-1].path(file_names.LOG)
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(bytes(8))
    again = opened(log, recovery_point=flushed, power_lost=True)
    assert again.log_end_offset == flushed
    assert read_all(again)[-1][0].next_offset == flushed


# -- interrupted compaction


def cleaned_copy(log: PartitionLog, suffix: str) -> tuple[int, Callable[[], list[int]]]:
    """The second and third segment merged into one, as compaction leaves it; its base, and how to
    read the bases.
    """
    one, two = log.segments[1], log.segments[2]
    data = Path(one.path(file_names.LOG)).read_bytes() + Path(two.path(file_names.LOG)).read_bytes()
    stem = os.path.join(log.directory, file_names.segment_name(one.base_offset))
    Path(stem + file_names.LOG + suffix).write_bytes(data)
    Path(stem + file_names.OFFSET_INDEX + suffix).write_bytes(b"")
    Path(stem + file_names.TIME_INDEX + suffix).write_bytes(b"")
    return one.base_offset, lambda: [
        file_names.segment_base(n) or 0 for n in files_of(log, file_names.LOG)
    ]


def test_a_swap_that_was_staged_is_completed(tmp_path: Path) -> None:
    log = filled(tmp_path)
    before = facts(log)
    log.close()
    base, bases = cleaned_copy(log, file_names.SWAP)
    again = opened(log, clean=True)
    assert facts(again) == before
    assert base in bases()
    assert log.segments[2].base_offset not in bases()
    assert not files_of(log, file_names.SWAP)


def test_cleaning_that_was_not_staged_is_forgotten(tmp_path: Path) -> None:
    log = filled(tmp_path)
    before = facts(log)
    log.close()
    _, bases = cleaned_copy(log, file_names.CLEANED)
    again = opened(log, clean=True)
    assert facts(again) == before
    assert log.segments[2].base_offset in bases()
    assert not files_of(log, file_names.CLEANED)


def test_a_half_staged_swap_is_forgotten(tmp_path: Path) -> None:
    log = filled(tmp_path)
    before = facts(log)
    log.close()
    base, bases = cleaned_copy(log, file_names.SWAP)
    stem = os.path.join(log.directory, file_names.segment_name(base))
    os.rename(stem + ".index.swap", stem + ".index.cleaned")
    again = opened(log, clean=True)
    assert facts(again) == before
    assert log.segments[2].base_offset in bases()


def test_files_marked_as_deleted_are_removed(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    Path(log.directory, "00000000000000000000.log.deleted").write_bytes(b"x")
    opened(log, clean=True)
    assert not files_of(log, ".deleted")


def test_zeros_in_place_of_an_aborted_transaction_are_none(tmp_path: Path) -> None:
    """What a power cut leaves of an entry that was not synced. Readers would skip what the first
    producer of all has committed.
    """
    log = new_log(tmp_path, SMALL)

    def abort(sequence: int) -> None:
        append(log, batch(1, producer_id=4, epoch=0, sequence=sequence, transactional=True))
        append_marker(log, 4, 0, commit=False)

    abort(0)
    append(log, batch(2, size=200))
    append(log, batch(2, size=200))
    log.flush()
    flushed = log.log_end_offset
    abort(1)
    before = facts(log)
    log.close(clean=False)
    path = log.segments[0].path(file_names.TRANSACTION_INDEX)
    with open(path, "r+b") as file:
        file.seek(ENTRY_SIZE)
        file.write(bytes(ENTRY_SIZE))
    again = opened(log, recovery_point=flushed)
    assert facts(again) == before
    assert os.path.getsize(path) == 2 * ENTRY_SIZE
    again.close(clean=False)
