"""The background scrub, and `millstream log verify`, which does the same without a broker."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.log.config import LogConfig
from millstream.log.directories import file_names
from millstream.log.integrity.scrubber import Scrubber, ScrubSettings
from millstream.log.integrity.verify_files import Report, verify
from millstream.log.management.manager import LogManager
from millstream.ports.files import RealFiles
from support.log.world import TP, append, append_marker, batch, manager

SMALL = LogConfig(segment_bytes=1500, index_interval_bytes=200)
RECORD = 75


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory with one log of several segments, cleanly closed."""
    logs = manager(RealFiles(), [str(tmp_path / "data")], config=SMALL)
    log = logs.create(TP, uuid.UUID(int=7))
    for number in range(20):
        append(log, batch(1, producer_id=4, epoch=0, sequence=number, transactional=True))
        append_marker(log, 4, 0, commit=number % 2 == 0)
        append(log, batch(2, size=50))
    assert len(log.segments) > 3
    logs.close(broker_epoch=1)
    return tmp_path / "data"


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def scrubbed(logs: LogManager) -> Scrubber:
    async def blocking(call: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(None, call)

    scrubber = Scrubber(logs, lambda: ScrubSettings(1 << 40, 1.0), blocking)
    asyncio.run(scrubber.scrub())
    return scrubber


def segment(data: Path, kind: str, number: int) -> Path:
    return sorted((data / str(TP)).glob(f"*{kind}"))[number]


def test_scrub_of_good_logs_verifies_all_segments(data: Path) -> None:
    logs = manager(RealFiles(), [str(data)], config=SMALL)
    append(logs.logs[TP], batch(1))
    counters = scrubbed(logs).counters
    segments = logs.logs[TP].segments
    assert (counters.rounds, counters.segments) == (1, len(segments))
    assert counters.bytes_verified == sum(segment.size for segment in segments)
    assert counters.damaged == 0
    logs.close(broker_epoch=1)


def test_scrub_finds_damage_in_the_active_segment(data: Path) -> None:
    """A quiet topic has all of its records there, for as long as log.roll.hours."""
    logs = manager(RealFiles(), [str(data)], config=SMALL)
    flip(segment(data, ".log", -1), RECORD)
    assert scrubbed(logs).counters.damaged_batches == 1
    assert logs.damage.partitions() == {TP}
    logs.close(broker_epoch=None)


def test_scrub_finds_a_missing_segment(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    logs = manager(RealFiles(), [str(data)], config=SMALL)
    missing = segment(data, ".log", 1)
    missing.unlink()
    counters = scrubbed(logs).counters
    assert (counters.missing_segments, counters.damaged_batches) == (1, 0)
    assert f"{missing} cannot be read" in caplog.text
    assert counters.segments == len(logs.logs[TP].segments), "it goes on behind it"
    logs.close(broker_epoch=None)


def test_scrub_does_not_miss_the_files_of_a_deleted_partition(data: Path) -> None:
    logs = manager(RealFiles(), [str(data)], config=SMALL)

    async def blocking(call: Callable[[], None]) -> None:
        if TP in logs.logs:
            logs.delete(TP)
        call()

    scrubber = Scrubber(logs, lambda: ScrubSettings(1 << 40, 1.0), blocking)
    asyncio.run(scrubber.scrub())
    assert TP not in logs.logs
    assert scrubber.counters.damaged == 0
    logs.close(broker_epoch=None)


def test_scrub_is_not_deceived_by_a_truncation(data: Path) -> None:
    """A follower truncates its log while its active segment is read."""
    logs = manager(RealFiles(), [str(data)], config=SMALL)
    log = logs.logs[TP]
    end = log.log_end_offset

    async def blocking(call: Callable[[], None]) -> None:
        if scrubber.counters.segments == len(log.segments) and log.log_end_offset == end:
            log.truncate_to(end - 2)
        call()

    scrubber = Scrubber(logs, lambda: ScrubSettings(1 << 40, 1.0), blocking)
    asyncio.run(scrubber.scrub())
    assert log.log_end_offset == end - 2
    assert scrubber.counters.damaged == 0
    logs.close(broker_epoch=None)


@pytest.mark.parametrize("byte", [7, RECORD], ids=["base offset", "record"])
def test_scrub_finds_damage_in_unread_records(
    data: Path, byte: int, caplog: pytest.LogCaptureFixture
) -> None:
    logs = manager(RealFiles(), [str(data)], config=SMALL)
    flip(segment(data, ".log", 1), byte)
    flip(segment(data, ".txnindex", 2), 12)
    counters = scrubbed(logs).counters
    assert counters.damaged_batches == 1
    assert counters.damaged_indexes == 1
    assert logs.damage.partitions() == {TP}
    assert segment(data, ".log", 1).name in caplog.text
    assert segment(data, ".txnindex", 2).name in caplog.text
    assert TP in logs.logs, "it goes on serving what is good"
    logs.close(broker_epoch=None)


def findings(path: Path) -> list[tuple[str, str]]:
    return [(Path(finding.path).name, finding.reason) for finding in verify(str(path), Report())]


def test_verify_finds_nothing_wrong_with_a_good_directory(data: Path) -> None:
    report = Report()
    assert list(verify(str(data), report)) == []
    assert (report.partitions, report.batches, report.damaged) == (1, 60, 0)
    assert list(verify(str(data / str(TP)), Report())) == []


@pytest.mark.parametrize("without_checksums", [False, True])
@pytest.mark.parametrize(
    ("kind", "damage", "reason"),
    [
        (".log", lambda path: flip(path, RECORD), "checksum"),
        (".log", lambda path: flip(path, 7), "between its neighbours"),
        (".log", lambda path: flip(path, 3), "between its neighbours"),
        (".log", lambda path: path.write_bytes(b"\xa5" * 500), "magic"),
        (".index", lambda path: flip(path, 7), "checksum|no batch begins"),
        (".txnindex", lambda path: path.unlink(), "checksum|lacks the transaction"),
        (".txnindex", lambda path: flip(path, 1), "checksum|version"),
        (".snapshot", lambda path: flip(path, 9), "checksum"),
    ],
)
def test_verify_names_the_damaged_file(
    data: Path, kind: str, damage: Callable[[Path], object], reason: str, without_checksums: bool
) -> None:
    import re

    path = segment(data, kind, 1)
    damage(path)
    if without_checksums:
        (data / str(TP) / file_names.INDEX_CHECKSUMS).unlink()
    found = findings(data)
    assert any(name == path.name and re.search(reason, text) for name, text in found), found


def test_verify_finds_a_missing_segment_and_small_files(data: Path) -> None:
    segment(data, ".log", 1).unlink()
    flip(data / "recovery-point-offset-checkpoint", 6)
    flip(data / str(TP) / file_names.PARTITION_METADATA, 30)
    named = [name for name, _ in findings(data)]
    assert "recovery-point-offset-checkpoint" in named
    assert file_names.PARTITION_METADATA in named
    assert any(name.endswith(".log") for name in named)
