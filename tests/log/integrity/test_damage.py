"""Damaged files of a partition: indexes are rebuilt, damaged batches are refused, nothing wrong is
served.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.log.config import LogConfig
from millstream.log.directories import file_names
from millstream.log.errors import ColdRead, CorruptLog, DamagedBatch, StorageError
from millstream.log.flush.job import unsaved_checksums
from millstream.log.integrity.checksums import Checksums
from millstream.log.management.events import IgnoredEvents, LogEvents
from millstream.log.management.host import LogHost
from millstream.log.partition_log import PartitionLog
from millstream.log.recovery import opening
from millstream.log.segments.open_files import OpenFiles
from millstream.ports.files import RealFiles
from support.log.world import (
    NOW_MS,
    TP,
    append,
    append_marker,
    batch,
    manager,
    new_log,
    read_all,
    split,
)

SMALL = LogConfig(segment_bytes=1500, index_interval_bytes=200)
BASE_OFFSET = 7  # the last byte of a batch's base offset
RECORD = 75

Damage = Callable[[Path], object]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Damage] = {
    "flipped": lambda path: flip(path, 12),
    "version": lambda path: flip(path, 0),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "missing": lambda path: path.unlink(),
    "garbage": lambda path: path.write_bytes(b"\xa5" * 100),
    "longer": lambda path: path.write_bytes(path.read_bytes() + bytes(34)),
}


def filled(directory: Path) -> PartitionLog:
    """A log of several segments, each with an aborted transaction."""
    log = new_log(directory, SMALL)
    for number in range(12):
        append(log, batch(1, producer_id=4, epoch=0, sequence=2 * number, transactional=True))
        append(log, batch(1, producer_id=4, epoch=0, sequence=2 * number + 1, transactional=True))
        append_marker(log, 4, 0, commit=number % 3 == 0)
        append(log, batch(2, size=40, timestamp=NOW_MS + 1000 * number))
    assert len(log.segments) > 3
    return log


def opened(
    log: PartitionLog, *, clean: bool, verify_reads: bool = True, log_start: int = 0
) -> PartitionLog:
    return opening.load(
        LogHost(RealFiles()),
        OpenFiles(),
        log.directory,
        TP,
        SMALL,
        clean=clean,
        recovery_point=log.log_end_offset,
        now_ms=NOW_MS,
        verify_reads=verify_reads,
        log_start=log_start,
    )


def file_of(log: PartitionLog, kind: str, number: int = 1) -> Path:
    return Path(log.segments[number].path(kind))


# ---- indexes ----


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("number", [0, 1, -1])
def test_damaged_transaction_index_is_rebuilt(
    tmp_path: Path, damage: str, clean: bool, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = filled(tmp_path)
    log.close()
    aborted, path = (
        log.aborted_transactions(0, log.log_end_offset),
        file_of(log, ".txnindex", number),
    )
    good = path.read_bytes()
    DAMAGES[damage](path)
    with caplog.at_level(logging.WARNING):
        again = opened(log, clean=clean)
    assert again.aborted_transactions(0, again.log_end_offset) == aborted
    assert path.read_bytes() == good
    assert clean or damage != "longer" or number == -1 or ".txnindex" in caplog.text
    assert damage == "longer" or ".txnindex" in caplog.text


@pytest.mark.parametrize("kind", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_offset_and_time_indexes_are_rebuilt(
    tmp_path: Path, kind: str, damage: str
) -> None:
    log = filled(tmp_path)
    log.close()
    batches, times = (
        [raw for _, raw in read_all(log)],
        [log.timestamp_search(t)() for t in (None, NOW_MS)],
    )
    for number in range(len(log.segments)):
        path = file_of(log, kind, number)
        if path.stat().st_size > 12:
            DAMAGES[damage](path)
    again = opened(log, clean=True)
    assert [again.timestamp_search(t)() for t in (None, NOW_MS)] == times
    assert [raw for _, raw in read_all(again)] == batches
    for offset in range(again.log_end_offset):
        result = again.read(offset, 1, upto=again.log_end_offset)
        assert result.slice is not None and result.end_offset > offset


def test_flipped_timestamp_of_time_index_does_not_decide_about_retention(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    path = file_of(log, ".timeindex", 0)
    data = bytearray(path.read_bytes())
    data[-12:-8] = bytes(4)
    path.write_bytes(data)
    assert opened(log, clean=True).segments[0].largest_timestamp() >= NOW_MS


def test_directory_without_checksums_is_opened_and_gets_them(tmp_path: Path) -> None:
    """As one of Apache Kafka, or of an earlier version."""
    log = filled(tmp_path)
    log.close()
    checksums = Path(log.directory, file_names.INDEX_CHECKSUMS)
    good = checksums.read_bytes()
    checksums.unlink()
    again = opened(log, clean=True)
    assert again.aborted_transactions(0, 100) == log.aborted_transactions(0, 100)
    again.close()
    assert b".txnindex" in checksums.read_bytes()
    assert len(checksums.read_bytes()) <= len(good)


def test_checksums_are_not_written_again_where_nothing_changed(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    checksums = Path(log.directory, file_names.INDEX_CHECKSUMS)
    os.utime(checksums, (1, 1))
    opened(log, clean=True).close()
    assert checksums.stat().st_mtime == 1


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing", "garbage"])
def test_lost_topic_id_is_restored(tmp_path: Path, damage: str) -> None:
    log = filled(tmp_path)
    log.close()
    path = Path(log.directory, file_names.PARTITION_METADATA)
    good = path.read_bytes()
    {**DAMAGES, "flipped": lambda path: flip(path, 30)}[damage](path)
    assert opened(log, clean=True).topic_id == log.topic_id
    assert path.read_bytes() == good


# ---- batches ----


def offsets_served(log: PartitionLog) -> tuple[list[int], list[int]]:
    """(offsets of the batches that are served, offsets at which a read is refused), from start to
    end.
    """
    served, refused, offset = [], [], log.log_start_offset
    while offset < log.log_end_offset:
        try:
            result = log.read(offset, 200, upto=log.log_end_offset)
        except ApiError as error:
            assert error.code is ErrorCode.CORRUPT_MESSAGE
            refused.append(offset)
            offset += 1
            continue
        assert result.slice is not None
        headers = [header for header, _ in split(result.slice.read())]
        served += [header.base_offset for header in headers]
        offset = headers[-1].next_offset
    return served, refused


@pytest.mark.parametrize("byte", [BASE_OFFSET, RECORD], ids=["base offset", "record"])
@pytest.mark.parametrize("number", [0, 1, -1])
def test_damaged_batch_is_refused_and_all_others_are_served(
    tmp_path: Path, byte: int, number: int
) -> None:
    log = filled(tmp_path)
    log.close()
    batches = [(header, segment) for segment in log.segments for _, header in segment.batches()]
    places = list(log.segments[number].batches())
    position, bad = places[len(places) // 2]
    flip(file_of(log, ".log", number), position + byte)
    served, refused = offsets_served(opened(log, clean=True))
    expected = [header.base_offset for header, _ in batches]
    assert served == [offset for offset in expected if offset in served], "nothing out of place"
    assert bad.base_offset in refused
    # A wrong base offset also casts doubt on the batches beside it.
    assert len(expected) - len(served) <= (3 if byte == BASE_OFFSET else 1)
    wrong = opened(log, clean=True, verify_reads=False)
    assert offsets_served(wrong)[1] == []


def test_batches_are_verified_once_and_in_a_thread(tmp_path: Path) -> None:
    log = filled(tmp_path)
    append(log, batch(1))
    assert log.read(0, 100, upto=9, may_block=False).slice is not None, (
        "what was just appended is not"
    )
    log.close()
    again = opened(log, clean=True)
    with pytest.raises(ColdRead):
        again.read(0, 300, upto=9, may_block=False)
    again.read(0, 300, upto=9)
    assert again.read(0, 300, upto=9, may_block=False).slice is not None


def test_missing_segment_takes_partition_offline_until_loss_is_accepted(tmp_path: Path) -> None:
    for number in (0, 1):
        log = filled(tmp_path / str(number))
        log.close()
        file_of(log, ".log", number).unlink()
        for clean in (True, False):
            with pytest.raises(CorruptLog, match=r"\.log had been flushed and is missing"):
                opened(log, clean=clean)
        Path(log.directory, file_names.ACCEPT_LOSS).touch()
        opened(log, clean=False)


def test_last_segment_of_the_checksums_may_be_deleted(tmp_path: Path) -> None:
    """Killed then, the log has segments that `index-checksums` does not tell of."""
    log = filled(tmp_path)
    checksums = unsaved_checksums(log)
    assert checksums is not None
    bases = [segment.base_offset for segment in log.segments]
    listed = Checksums({base: checksums.segments[base] for base in bases[:2]})
    sizes = {segment.base_offset: partial(int, segment.size) for segment in log.segments[2:]}
    assert listed.missing(sizes, first=bases[2]) == []
    assert listed.missing(sizes, first=bases[2] - 1) == [bases[1]]


@pytest.mark.parametrize("kept", [0.5, 0.0])
def test_end_of_closed_segment_that_is_missing_is_noticed(tmp_path: Path, kept: float) -> None:
    """Also where it ends between two batches: readers must not skip to the next segment."""
    log = filled(tmp_path)
    log.close()
    places = list(log.segments[1].batches())
    position, header = places[int(len(places) * kept)]
    path = file_of(log, ".log")
    path.write_bytes(path.read_bytes()[:position])
    again = opened(log, clean=True)
    with pytest.raises(DamagedBatch, match="the file ends here"):
        again.read(header.base_offset, 1000, upto=again.log_end_offset)
    with pytest.raises(DamagedBatch):
        for timestamp in range(NOW_MS, NOW_MS + 12_000, 1000):
            found = again.timestamp_search(timestamp)()
            assert found is None or found[0] < timestamp + 1000


@pytest.mark.parametrize("number", [3, -1], ids=["in the middle", "at the end"])
def test_unflushed_batch_with_a_lost_offset_is_truncated(tmp_path: Path, number: int) -> None:
    log = new_log(tmp_path)
    for fill in range(6):
        append(log, batch(1, fill=b"%d" % fill))
    log.close(clean=False)
    position, header = list(log.segments[0].batches())[number]
    flip(file_of(log, ".log", 0), position + 5)  # far ahead
    again = opening.load(
        LogHost(RealFiles()),
        OpenFiles(),
        log.directory,
        TP,
        LogConfig(),
        clean=False,
        now_ms=NOW_MS,
    )
    assert again.log_end_offset == header.base_offset


def test_damaged_swap_takes_partition_offline_and_removes_nothing(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    path = file_of(log, ".log", 0)
    swap = path.with_name(path.name + file_names.SWAP)
    swap.write_bytes(path.read_bytes())
    flip(swap, RECORD)
    before = {name.name: name.read_bytes() for name in Path(log.directory).iterdir()}
    with pytest.raises(CorruptLog, match="this segment of an interrupted compaction is damaged"):
        opened(log, clean=False)
    assert {name.name: name.read_bytes() for name in Path(log.directory).iterdir()} == before


# ---- what the manager makes of it ----

OTHER = TopicPartition("other", 0)


def two_logs(tmp_path: Path):  # type: ignore[no-untyped-def]
    from uuid import UUID

    logs = manager(RealFiles(), [str(tmp_path / "data")], config=SMALL)
    for number, tp in enumerate((TP, OTHER)):
        log = logs.create(tp, UUID(int=number + 1))
        for sequence in range(20):
            append(log, batch(1, producer_id=4, epoch=0, sequence=sequence, transactional=True))
            append_marker(log, 4, 0, commit=False)
    return logs


def reopened(tmp_path: Path, logs, events: LogEvents | None = None):  # type: ignore[no-untyped-def]
    logs.close(broker_epoch=1)
    return manager(RealFiles(), [str(tmp_path / "data")], config=SMALL, events=events)


@pytest.mark.parametrize(
    "name", ["00000000000000000000.log", "leader-epoch-checkpoint", "index-checksums"]
)
def test_unreadable_file_takes_only_its_partition_offline(tmp_path: Path, name: str) -> None:
    logs = two_logs(tmp_path)
    logs.close(broker_epoch=1)
    path = tmp_path / "data" / str(TP) / name
    path.unlink()
    path.mkdir()
    logs = manager(RealFiles(), [str(tmp_path / "data")], config=SMALL)
    if TP in logs.logs:
        with pytest.raises(StorageError):
            logs.logs[TP].read(0, 100, upto=10)
    assert list(logs.logs) == [OTHER]
    assert list(logs.offline) == [TP]
    assert len(logs.online_dirs()) == 1
    logs.close(broker_epoch=None)


def test_transaction_index_that_rots_under_the_broker_costs_its_partition(tmp_path: Path) -> None:
    logs = reopened(tmp_path, two_logs(tmp_path))
    flip(file_of(logs.logs[TP], ".txnindex", 0), 12)
    with pytest.raises(StorageError, match="a restart rebuilds it"):
        logs.logs[TP].aborted_transactions(0, 40)
    assert list(logs.logs) == [OTHER]
    assert logs.logs[OTHER].aborted_transactions(0, 40)
    logs = reopened(tmp_path, logs)
    assert len(logs.logs[TP].aborted_transactions(0, 40)) == 20
    logs.close(broker_epoch=1)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["alone", "another replica in sync"])
def test_replica_with_damage_goes_offline_if_another_is_in_sync(
    tmp_path: Path, elsewhere: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Events(IgnoredEvents):
        def has_better_replica(self, tp: TopicPartition) -> bool:
            return elsewhere

    logs = reopened(tmp_path, two_logs(tmp_path), Events())
    flip(file_of(logs.logs[TP], ".log", 0), RECORD)
    log = logs.logs[TP]
    for _ in range(3):
        with pytest.raises(ApiError):
            log.read(0, 100, upto=10)
    assert (TP in logs.offline) is elsewhere
    assert logs.damage.partitions() == {TP}
    assert logs.damage.count == 1, "told once"
    assert str(TP) in caplog.text
    assert logs.logs[OTHER].read(0, 100, upto=10).slice is not None
    logs.close(broker_epoch=None)


@pytest.mark.parametrize(
    ("damage", "clean"),
    # After a kill the file may be newer than its checksum, so that one alone proves nothing.
    [
        ("flipped", True),
        ("missing", True),
        ("missing", False),
        ("garbage", True),
        ("garbage", False),
    ],
)
def test_damaged_leader_epochs_are_read_from_the_batches(
    tmp_path: Path, damage: str, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Below the recovery point, too. Without them a consumer is told nothing of a truncation."""
    log = new_log(tmp_path, SMALL)
    for epoch in (0, 3, 7, 12):
        append(log, batch(5, size=100), leader_epoch=epoch)
    log.close()
    before = log.epochs.entries()
    assert [epoch for epoch, _start in before] == [0, 3, 7, 12]
    path = Path(log.directory, file_names.LEADER_EPOCHS)
    if damage == "flipped":
        flip(path, 4)
    else:
        DAMAGES[damage](path)
    with caplog.at_level(logging.WARNING):
        again = opened(log, clean=clean)
    assert again.epochs.entries() == before
    assert file_names.LEADER_EPOCHS in caplog.text
