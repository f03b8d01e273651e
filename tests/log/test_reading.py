"""Reading: whole batches only, precise bounds, cold data, offsets by time, aborted transactions."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from millstream.core.errors import ApiError, ErrorCode
from millstream.log.config import LogConfig
from millstream.log.errors import ColdRead
from millstream.log.management.host import LogHost
from millstream.log.partition_log import Origin, PartitionLog
from millstream.log.recovery import opening
from millstream.log.segments.open_files import OpenFiles
from millstream.ports.files import RealFiles
from millstream.sim.world.disk import SimDisk
from support.log.world import NOW_MS, TP, append, append_marker, batch, new_log, read_all, split

SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=300)


def filled(directory: object, batches: int = 60, config: LogConfig = SMALL) -> PartitionLog:
    log = new_log(directory, config)
    for number in range(batches):
        append(log, batch(1 + number % 3, size=10 + number % 7))
    log.advance_high_watermark(log.log_end_offset)
    return log


def offsets(
    log: PartitionLog, offset: int, max_bytes: int, upto: int, *, at_least_one: bool = True
) -> list[int]:
    result = log.read(offset, max_bytes, upto=upto, at_least_one=at_least_one)
    if result.slice is None:
        assert result.size == 0
        return []
    return [header.base_offset for header, _ in split(result.slice.read())]


def test_a_read_begins_with_the_batch_that_holds_the_offset(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for _ in range(4):
        append(log, batch(5))
    assert offsets(log, 7, 1, 20) == [5]
    assert offsets(log, 10, 10_000, 20) == [10, 15]


@pytest.mark.parametrize("upto", [0, 1, 4, 5, 9, 10, 19, 20, 99])
def test_no_batch_reaches_the_bound(tmp_path: Path, upto: int) -> None:
    log = new_log(tmp_path)
    for _ in range(4):
        append(log, batch(5))
    assert offsets(log, 0, 10_000, upto) == [base for base in (0, 5, 10, 15) if base + 4 < upto]


def test_only_whole_batches_within_the_limit_or_one_larger(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    size = len(batch(5))
    for _ in range(4):
        append(log, batch(5))
    assert offsets(log, 0, 2 * size, 20) == [0, 5]
    assert offsets(log, 0, 3 * size - 1, 20) == [0, 5]
    assert offsets(log, 0, size - 1, 20) == [0]
    assert offsets(log, 0, size - 1, 20, at_least_one=False) == []
    assert offsets(log, 0, 0, 20, at_least_one=False) == []
    assert offsets(log, 0, 0, 20) == [0]
    assert offsets(log, 3, size, 4) == [], "the first batch reaches the bound"


def test_offsets_outside_the_log_are_out_of_range(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.delete_records(10)
    for offset in (-1, 9, log.log_end_offset + 1):
        with pytest.raises(ApiError) as error:
            log.read(offset, 100, upto=log.log_end_offset)
        assert error.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(log.log_end_offset, 100, upto=log.log_end_offset) == (
        None,
        0,
        log.log_end_offset,
    )


def test_reads_with_any_bounds_agree_with_a_plain_scan(tmp_path: Path) -> None:
    log = filled(tmp_path, 150)
    batches = [(h.base_offset, h.last_offset, len(raw)) for h, raw in read_all(log)]
    dice = random.Random(5)
    for _ in range(500):
        offset, upto = dice.randint(0, log.log_end_offset), dice.randint(0, log.log_end_offset)
        limit = dice.choice((0, 50, 200, 700, 5000))
        first = next((i for i, b in enumerate(batches) if b[1] >= offset), None)
        wanted: list[int] = []
        total = 0
        segment = None
        for base, last, size in batches[first:] if first is not None and offset < upto else ():
            home = max(s.base_offset for s in log.segments if s.base_offset <= base)
            segment = home if segment is None else segment
            if last >= upto or home != segment or (total + size > limit and wanted):
                break
            wanted.append(base)
            total += size
        assert offsets(log, offset, limit, upto) == wanted


def test_gaps_that_compaction_left_are_skipped(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    for offset in (0, 10, 20, 30):
        append(log, batch(2, base_offset=offset, leader_epoch=0), origin=Origin.REPLICATION)
    assert offsets(log, 5, 10_000, 100) == [10, 20, 30]
    assert offsets(log, 12, 1, 100) == [20]
    assert offsets(log, 1, 10_000, 21) == [0, 10]
    log.close()
    again = opening.load(LogHost(RealFiles()), OpenFiles(), log.directory, TP, SMALL, clean=True)
    assert offsets(again, 5, 10_000, 100) == [10, 20, 30]
    assert offsets(again, 12, 1, 100) == [20]


def test_cold_data_is_not_waited_for_unless_asked() -> None:
    disk = SimDisk()
    disk.makedirs("/data")
    log = new_log("/data", SMALL, disk)
    for _ in range(60):
        append(log, batch(2))
    disk.cold = True
    with pytest.raises(ColdRead):
        log.read(0, 100, upto=log.log_end_offset, may_block=False)
    assert log.read(0, 100, upto=log.log_end_offset).size > 0
    tail = log.log_end_offset - 2
    assert log.read(tail, 100, upto=log.log_end_offset, may_block=False).size > 0, (
        "the tail needs no disk"
    )


def test_a_closed_segment_whose_index_is_not_loaded_counts_as_cold(tmp_path: Path) -> None:
    log = filled(tmp_path)
    for segment in log.segments:
        segment.log_file.release(idle=True)
    with pytest.raises(ColdRead):
        log.read(0, 100, upto=log.log_end_offset, may_block=False)
    log.read(0, 100, upto=log.log_end_offset)
    assert log.read(0, 100, upto=log.log_end_offset, may_block=False).size > 0


def test_readers_in_threads_see_whole_batches_while_the_log_changes(tmp_path: Path) -> None:
    log = filled(tmp_path, 50, SMALL)
    failures: list[BaseException] = []
    stop = threading.Event()

    def reader() -> None:
        dice = random.Random(1)
        try:
            while not stop.is_set():
                start, end = log.log_start_offset, log.log_end_offset
                try:
                    result = log.read(dice.randint(start, end), 1000, upto=end)
                except ApiError as error:
                    assert error.code == ErrorCode.OFFSET_OUT_OF_RANGE
                    continue
                if result.slice is not None:
                    split(result.slice.read())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=reader)
    thread.start()
    for number in range(600):
        append(log, batch(2, size=30))
        log.advance_high_watermark(log.log_end_offset)
        if number % 50 == 49:
            log.delete_records(log.log_end_offset - 100)
            log.delete_old_segments(NOW_MS)
    stop.set()
    thread.join()
    assert not failures


class ReadDuringSwap(RealFiles):
    """Lets somebody read at the moment when an old segment is gone and no new one is there yet."""

    def __init__(self) -> None:
        self.reader: threading.Thread | None = None

    def unlink(self, path: str) -> None:
        super().unlink(path)
        if self.reader is not None and path.endswith(".log"):
            reader, self.reader = self.reader, None
            reader.start()
            reader.join(0.2)  # it waits for the end of the swap


def test_reader_that_meets_a_swap_of_compaction_reads_the_new_segments(tmp_path: Path) -> None:
    files = ReadDuringSwap()
    log = new_log(tmp_path, SMALL, files)
    for number in range(20):
        append(log, batch(2, size=40, timestamp=NOW_MS + number))
    log.advance_high_watermark(log.log_end_offset)
    oldest = log.segments[0]
    for kind in (".log", ".index", ".timeindex"):
        path = Path(oldest.path(kind))
        path.with_name(path.name + ".cleaned").write_bytes(path.read_bytes())
    oldest.close()
    read: list[int] = []
    reader = threading.Thread(target=lambda: read.extend(offsets(log, 0, 100, log.log_end_offset)))
    files.reader = reader
    log.replace_segments([0], [0])
    reader.join()
    assert read == [0]


# -- by time


def timed(directory: object, config: LogConfig = SMALL) -> PartitionLog:
    """Three records a batch, a second apart; every fifth batch is late."""
    log = new_log(directory, config)
    for number in range(60):
        late = -50_000 if number % 5 == 4 else 0
        append(log, batch(3, timestamp=NOW_MS + 1000 * number + late, codec=number % 5))
    return log


def first_at(log: PartitionLog, timestamp: int) -> tuple[int, int] | None:
    return log.timestamp_search(timestamp)()


def test_the_first_record_at_or_after_a_time_is_found(tmp_path: Path) -> None:
    log = timed(
        tmp_path,
        LogConfig(
            segment_bytes=1500, index_interval_bytes=300, message_timestamp_after_max_ms=10**9
        ),
    )
    records = []
    for number in range(60):
        late = -50_000 if number % 5 == 4 else 0
        records += [(NOW_MS + 1000 * number + late + n, 3 * number + n) for n in range(3)]
    for timestamp in range(NOW_MS - 60_000, NOW_MS + 62_000, 777):
        wanted = next((r for r in records if r[0] >= timestamp), None)
        assert first_at(log, timestamp) == wanted


def test_a_search_by_time_respects_the_log_start(tmp_path: Path) -> None:
    log = timed(tmp_path, LogConfig(message_timestamp_after_max_ms=10**9))
    log.advance_high_watermark(log.log_end_offset)
    log.delete_records(7)
    assert first_at(log, 0) == (NOW_MS + 2001, 7)


def test_the_latest_record_is_found_wherever_it_is(tmp_path: Path) -> None:
    log = timed(tmp_path, LogConfig(segment_bytes=1500, message_timestamp_after_max_ms=10**9))
    assert log.timestamp_search(None)() == (NOW_MS + 58_002, 58 * 3 + 2)
    log.close()
    again = opening.load(LogHost(RealFiles()), OpenFiles(), log.directory, TP, SMALL, clean=True)
    assert again.timestamp_search(None)() == (NOW_MS + 58_002, 58 * 3 + 2)


def test_log_append_time_is_what_a_search_compares(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(message_timestamp_type="LogAppendTime"))
    for later in (0, 100, 200):
        log.append(batch(2, timestamp=1), leader_epoch=0, now_ms=NOW_MS + later)
    assert first_at(log, NOW_MS + 50) == (NOW_MS + 100, 2)


def test_an_empty_log_has_no_times(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    assert log.timestamp_search(None)() is None
    assert first_at(log, 0) is None


# -- transactions


def test_aborted_transactions_of_a_range_are_listed_by_first_offset(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(segment_bytes=250))
    append(log, batch(2, producer_id=1, epoch=0, sequence=0, transactional=True))  # 0, 1
    append(log, batch(2, producer_id=2, epoch=0, sequence=0, transactional=True))  # 2, 3
    append_marker(log, 2, 0, commit=False)  # 4
    append(log, batch(2))  # 5, 6
    append_marker(log, 1, 0, commit=False)  # 7
    append(log, batch(1, producer_id=3, epoch=0, sequence=0, transactional=True))  # 8
    append_marker(log, 3, 0, commit=True)  # 9
    assert len(log.segments) > 2
    assert log.aborted_transactions(0, 10) == [(1, 0), (2, 2)]
    assert log.aborted_transactions(0, 1) == [(1, 0)]
    assert log.aborted_transactions(5, 6) == [(1, 0)]
    assert log.aborted_transactions(8, 10) == []


def test_the_last_stable_offset_waits_for_decision_and_replication(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, batch(2))
    append(log, batch(2, producer_id=1, epoch=0, sequence=0, transactional=True))
    append(log, batch(2))
    log.advance_high_watermark(6)
    assert log.last_stable_offset == 2
    append_marker(log, 1, 0, commit=True)
    assert log.last_stable_offset == 2
    log.advance_high_watermark(7)
    assert log.last_stable_offset == 7


def test_the_high_watermark_only_grows_and_never_passes_the_end(tmp_path: Path) -> None:
    log = filled(tmp_path, 3)
    end = log.log_end_offset
    assert log.high_watermark == end
    assert not log.advance_high_watermark(end + 5)
    assert not log.advance_high_watermark(1)
    assert log.high_watermark == end
