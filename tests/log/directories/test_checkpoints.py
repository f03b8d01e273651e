"""The small text files: Kafka's formats in and out, and clear words about damaged ones."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from millstream.core.types import TopicPartition
from millstream.log.directories import checkpoints, file_names
from millstream.log.errors import CorruptFile
from millstream.ports.files import RealFiles

FILES = RealFiles()


def test_an_offset_checkpoint_is_written_and_read_as_kafka_does(tmp_path: Path) -> None:
    path = str(tmp_path / file_names.RECOVERY_POINTS)
    offsets = {TopicPartition("orders", 0): 17, TopicPartition("with.dots-and_more", 12): 0}
    checkpoints.write_offsets(FILES, path, offsets)
    *lines, seal = Path(path).read_text().splitlines()
    assert lines == ["0", "3", "orders 0 17", "with.dots-and_more 12 0"]
    assert seal.startswith("#crc32c 0 ")  # three columns, as Kafka expects them
    assert checkpoints.read_offsets(FILES, path) == offsets
    kafkas = "0\n2\norders 0 17\nwith.dots-and_more 12 0\n"
    Path(path).write_text(kafkas)
    assert checkpoints.read_offsets(FILES, path) == offsets


def test_changed_digit_of_checkpoint_is_detected(tmp_path: Path) -> None:
    path = tmp_path / file_names.RECOVERY_POINTS
    checkpoints.write_offsets(FILES, str(path), {TopicPartition("orders", 0): 17})
    path.write_text(path.read_text().replace("17", "19"))
    with pytest.raises(CorruptFile, match="does not match its checksum"):
        checkpoints.read_offsets(FILES, str(path))


def test_a_missing_or_empty_checkpoint_has_no_entries(tmp_path: Path) -> None:
    assert checkpoints.read_offsets(FILES, str(tmp_path / "nothing")) == {}
    (tmp_path / "empty").touch()  # as Kafka makes them at its start
    assert checkpoints.read_offsets(FILES, str(tmp_path / "empty")) == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("\n", "version line"),
        ("0\n", "version line"),
        ("7\n0\n", "version 7"),
        ("0\n2\norders 0 1\n", "1 entries"),
        ("0\n1\norders 0\n", "line 3"),
        ("0\n1\norders 0 x\n", "line 3"),
        ("0\n2\norders 0 1\norders one 2\n", "line 4"),
    ],
)
def test_damaged_checkpoint_is_reported_with_its_line(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.write_text(text)
    with pytest.raises(CorruptFile, match=reason) as told:
        checkpoints.read_offsets(FILES, str(path))
    assert str(path) in str(told.value)


def test_partition_metadata_is_kafkas() -> None:
    topic_id = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
    data = checkpoints.format_partition_metadata(topic_id)
    assert data == b"version: 0\ntopic_id: ABEiM0RVZneImaq7zN3u_w"
    assert checkpoints.parse_partition_metadata(data, "x") == topic_id


@pytest.mark.parametrize(
    "data",
    [
        b"version: 1\ntopic_id: ABEiM0RVZneImaq7zN3u_w",
        b"version: 0\n",
        b"version: 0\ntopic_id: short",
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        b"\xff\xfe",
    ],
)
def test_damaged_partition_metadata_is_reported(data: bytes) -> None:
    with pytest.raises(CorruptFile):
        checkpoints.parse_partition_metadata(data, "x")


def test_ids_have_kafkas_form() -> None:
    for value in (uuid.UUID(int=0), uuid.UUID(int=2**128 - 1), uuid.uuid4()):
        text = checkpoints.encode_uuid(value)
        assert len(text) == 22
        assert checkpoints.decode_uuid(text) == value


def test_meta_properties_are_a_java_properties_file(tmp_path: Path) -> None:
    path = str(tmp_path / "meta.properties")
    assert checkpoints.read_meta_properties(FILES, path) == {}
    fields = {"version": "1", "cluster.id": "abc", "node.id": "3", "directory.id": "xyz"}
    checkpoints.write_meta_properties(FILES, path, fields)
    assert checkpoints.read_meta_properties(FILES, path) == fields
    Path(path).write_text("#Wed Jan 01 00:00:00 UTC 2025\nversion=1\nnode.id=3\ncluster.id=abc=d\n")
    assert checkpoints.read_meta_properties(FILES, path)["cluster.id"] == "abc=d"
    Path(path).write_text("version=9\n")
    with pytest.raises(CorruptFile, match="version '9'"):
        checkpoints.read_meta_properties(FILES, path)


def test_the_clean_shutdown_marker_carries_the_broker_epoch(tmp_path: Path) -> None:
    path = str(tmp_path / ".kafka_cleanshutdown")
    assert checkpoints.read_clean_shutdown(FILES, path) is None
    checkpoints.write_clean_shutdown(FILES, path, 42)
    assert Path(path).read_text() == '{"version":0,"brokerEpoch":42}'
    assert checkpoints.read_clean_shutdown(FILES, path) == 42
    Path(path).write_text("")  # as Kafka before 3.7 left it
    assert checkpoints.read_clean_shutdown(FILES, path) == -1


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("orders-0", (("orders", 0), "")),
        ("a-b-c-12", (("a-b-c", 12), "")),
        ("orders-0.0123abcd-delete", (("orders", 0), "delete")),
        ("orders-3.0123abcd-future", (("orders", 3), "future")),
        ("a.b-3.0123abcd-stray", (("a.b", 3), "stray")),
        ("orders", None),
        ("orders-x", None),
        ("__cluster_metadata-0", None),
        ("remote-log-index-cache", None),
    ],
)
def test_directory_names_say_whose_they_are(name: str, parsed: object) -> None:
    assert file_names.parse_directory(name) == parsed


def test_names_of_doomed_directories_fit_a_file_system() -> None:
    tp = TopicPartition("t" * 249, 123)
    name = file_names.directory_name(tp, "delete")
    assert len(name) == 255
    assert name.endswith("-delete")
    assert file_names.directory_name(tp, "delete") != name
    assert file_names.directory_name(tp) == str(tp)
