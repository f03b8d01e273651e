"""The dump of every kind of file, in the words of Kafka's DumpLogSegments."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from millstream.log.config import LogConfig
from millstream.log.directories.checkpoints import format_sealed
from millstream.log.dump import Fault, dump
from millstream.log.partition_log import PartitionLog
from millstream.wire.records.batch import Record, build_batch
from support.log.world import NOW_MS, append, append_marker, batch, new_log


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    made = new_log(tmp_path, LogConfig(index_interval_bytes=100))
    record = Record(0, NOW_MS, b"key", "wert ä".encode(), (("trace", b"1"), ("other", None)))
    append(
        made,
        memoryview(bytearray(build_batch([record, Record(1, NOW_MS + 1, None, None)], codec=3))),
    )
    append(made, batch(3, size=40, producer_id=7, epoch=2, sequence=5), leader_epoch=1)
    append(made, batch(1, producer_id=8, epoch=0, sequence=0, transactional=True), leader_epoch=1)
    append_marker(made, 8, 0, commit=False, coordinator_epoch=4, leader_epoch=1)
    made.close()
    return made


def lines(log: PartitionLog, name: str, *, deep: bool = False) -> list[str]:
    head, *rest = dump(f"{log.directory}/{name}", deep=deep)
    assert head == f"Dumping {log.directory}/{name}"
    return rest


STEM = "00000000000000000000"


def test_batches_are_described_by_their_headers(log: PartitionLog) -> None:
    said = lines(log, f"{STEM}.log")
    assert said[0] == "Log starting offset: 0"
    assert len(said) == 5
    assert said[1].startswith(
        "baseOffset: 0 lastOffset: 1 count: 2 baseSequence: -1 lastSequence: -1 producerId: -1 producerEpoch: -1"
        " partitionLeaderEpoch: 0 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty"
        f" position: 0 CreateTime: {NOW_MS + 1} size: "
    )
    assert " magic: 2 compresscodec: lz4 crc: " in said[1]
    assert all(line.endswith("isvalid: true") for line in said[1:])
    assert (
        "baseSequence: 5 lastSequence: 7 producerId: 7 producerEpoch: 2 partitionLeaderEpoch: 1"
        in said[2]
    )
    assert "isTransactional: true isControl: true" in said[4]


def test_records_are_shown_on_demand(log: PartitionLog) -> None:
    said = [line for line in lines(log, f"{STEM}.log", deep=True) if line.startswith("| ")]
    assert said[0] == (
        f"| offset: 0 CreateTime: {NOW_MS} keySize: 3 valueSize: 7 sequence: -1 headerKeys: [trace,other]"
        " key: key payload: wert ä"
    )
    assert (
        said[1]
        == f"| offset: 1 CreateTime: {NOW_MS + 1} keySize: -1 valueSize: -1 sequence: -1 headerKeys: []"
    )
    assert " sequence: 6 " in said[3]
    assert said[-1].endswith("endTxnMarker: ABORT coordinatorEpoch: 4")


def test_indexes_snapshots_and_text_files_are_shown(log: PartitionLog) -> None:
    assert all(
        line.startswith("offset: ") and " position: " in line
        for line in lines(log, f"{STEM}.index")
    )
    assert lines(log, f"{STEM}.index")
    assert lines(log, f"{STEM}.timeindex")[-1] == f"timestamp: {NOW_MS + 2} offset: 4"
    assert lines(log, f"{STEM}.txnindex") == [
        "version: 0 producerId: 8 firstOffset: 5 lastOffset: 6 lastStableOffset: 7"
    ]
    (seven, eight) = lines(log, "00000000000000000007.snapshot")
    assert seven == (
        "producerId: 7 producerEpoch: 2 coordinatorEpoch: -1 currentTxnFirstOffset: OptionalLong.empty"
        f" lastTimestamp: {NOW_MS + 2} firstSequence: 5 lastSequence: 7 lastOffset: 4 offsetDelta: 2"
        f" timestamp: {NOW_MS + 2}"
    )
    assert eight.startswith("producerId: 8 producerEpoch: 0 coordinatorEpoch: 4")
    assert lines(log, "leader-epoch-checkpoint") == [
        "epoch: 0 startOffset: 0",
        "epoch: 1 startOffset: 2",
    ]
    assert lines(log, "partition.metadata") == ["version: 0 topic_id: AAAAAAAAAAAAAAAAAAAABw"]


def test_seal_of_a_checkpoint_is_not_shown_as_a_partition(tmp_path: Path) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.write_bytes(format_sealed(["orders 0 12", "orders 1 3"]))
    assert [*dump(str(path))][1:] == [
        "topic: orders partition: 0 offset: 12",
        "topic: orders partition: 1 offset: 3",
    ]
    assert [*dump(str(path))][-1].fields == {
        "type": "checkpoint",
        "topic": "orders",
        "partition": 1,
        "offset": 3,
    }
    path.write_bytes(path.read_bytes().replace(b"12", b"13"))
    assert "does not match its checksum" in [*dump(str(path))][1]


def test_a_directory_is_dumped_file_by_file(log: PartitionLog) -> None:
    heads = [line.rpartition("/")[2] for line in dump(log.directory) if line.startswith("Dumping ")]
    assert heads == [
        "leader-epoch-checkpoint",
        "partition.metadata",
        f"{STEM}.index",
        f"{STEM}.log",
        f"{STEM}.timeindex",
        f"{STEM}.txnindex",
        "00000000000000000007.snapshot",
    ]


def test_damage_is_reported_and_the_dump_continues(log: PartitionLog) -> None:
    path = Path(log.directory, f"{STEM}.log")
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data + b"\0" * 70)
    said = lines(log, f"{STEM}.log", deep=True)
    assert said[1].endswith("isvalid: false")
    assert said[-1].startswith("70 invalid bytes at the end")
    path.write_bytes(data[:-5])
    assert "bytes of a batch of" in lines(log, f"{STEM}.log")[-1]
    Path(log.directory, f"{STEM}.index").write_bytes(bytes([0, 0, 0, 9, 0, 0, 0, 3]))
    assert (
        lines(log, f"{STEM}.index")[-1]
        == "mismatch: offset 9 at position 3, where the log has no batch"
    )
    Path(log.directory, "leader-epoch-checkpoint").write_bytes(b"0\n7\n")
    assert "corrupt" in lines(log, "leader-epoch-checkpoint")[0]
    Path(log.directory, "00000000000000000007.snapshot").write_bytes(b"xx")
    assert "corrupt" in lines(log, "00000000000000000007.snapshot")[0]


def test_other_files_are_not_guessed_at(log: PartitionLog) -> None:
    Path(log.directory, "notes.txt").write_text("hello")
    assert lines(log, "notes.txt") == ["not a known file of a log"]
    with pytest.raises(FileNotFoundError):
        list(dump(f"{log.directory}/{STEM}1.log"))


def faults(path: Path) -> list[str]:
    return [
        str(line) for line in dump(str(path)) if isinstance(line, Fault) and line.file == str(path)
    ]


def test_sound_files_have_no_faults(log: PartitionLog) -> None:
    assert [line for line in dump(log.directory, deep=True) if isinstance(line, Fault)] == []


@pytest.mark.parametrize(
    ("kind", "entry_size"), [("index", 8), ("timeindex", 12), ("txnindex", 34)]
)
def test_torn_index_entry_is_reported_after_the_entries(
    log: PartitionLog, kind: str, entry_size: int
) -> None:
    path = Path(log.directory, f"{STEM}.{kind}")
    sound = list(dump(str(path)))
    size = len(path.read_bytes()) + 5
    path.write_bytes(path.read_bytes() + b"\1" * 5)
    assert list(dump(str(path)))[: len(sound)] == sound
    assert faults(path) == [
        f"corrupt: {size} bytes are not a multiple of the entry size {entry_size}"
    ]


@pytest.mark.parametrize("kind", ["index", "timeindex", "txnindex"])
def test_index_of_random_bytes_is_reported_without_a_log(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"{STEM}.{kind}"
    path.write_bytes(random.Random(5).randbytes(8 * 12 * 17))
    assert any(line.startswith("corrupt: ") for line in faults(path))


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_space_set_aside_in_an_index_is_no_fault(log: PartitionLog, kind: str) -> None:
    path = Path(log.directory, f"{STEM}.{kind}")
    sound = list(dump(str(path)))
    path.write_bytes(path.read_bytes() + bytes(8 * 12 * 10))
    assert list(dump(str(path))) == sound and faults(path) == []


def test_a_wrong_checksum_is_a_fault(log: PartitionLog) -> None:
    path = Path(log.directory, f"{STEM}.log")
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    assert faults(path) == ["corrupt: the checksum of the batch at position 0 is wrong"]


def test_directory_without_logs_is_reported(tmp_path: Path) -> None:
    assert faults(tmp_path) == ["no log files in this directory or below it"]
