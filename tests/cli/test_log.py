"""``millstream log dump`` on the files of a broker that runs."""

from __future__ import annotations

import json
from pathlib import Path

from millstream.client import Admin, Producer


def test_segments_and_indexes_are_dumped(broker, quick_command):
    running = broker()
    with Admin(running.bootstrap) as admin:
        admin.topics.create("orders", partitions=1)
    with Producer(running.bootstrap, compression="zstd") as producer:
        for number in range(10):
            producer.send(
                "orders", b"value-%d\xff" % number, key=f"key-{number}", headers={"h": "1"}
            )
    directory = running.data_dir / "orders-0"
    segment = directory / "00000000000000000000.log"

    shallow = quick_command("log", "dump", str(segment))
    assert (shallow.returncode, shallow.stderr) == (0, "")
    assert shallow.stdout.startswith(f"Dumping {segment}\nLog starting offset: 0\n")
    assert "baseOffset: 0 " in shallow.stdout and "compresscodec: zstd" in shallow.stdout
    assert "key-3" not in shallow.stdout

    deep = quick_command("log", "dump", "--deep", str(segment))
    assert (deep.returncode, deep.stderr) == (0, "")
    assert all(f"key-{number}" in deep.stdout for number in range(10))

    whole = quick_command("log", "dump", str(directory))
    assert (whole.returncode, whole.stderr) == (0, "")
    for name in ("partition.metadata", segment.name):
        assert f"Dumping {directory / name}\n" in whole.stdout


def test_data_directory_is_dumped_with_its_partitions_in_order(broker, quick_command):
    running = broker()
    with Admin(running.bootstrap) as admin:
        admin.topics.create("orders", partitions=11)
    with Producer(running.bootstrap) as producer:
        producer.send("orders", b"here", partition=10)
    shown = quick_command("log", "dump", "--deep", str(running.data_dir))
    assert (shown.returncode, shown.stderr) == (0, "")
    dumped = [
        line.removeprefix("Dumping ")
        for line in shown.stdout.splitlines()
        if line.startswith("Dumping ")
    ]
    segments = [
        Path(path).parent.name for path in dumped if path.endswith(".log") and "orders-" in path
    ]
    assert segments == [f"orders-{number}" for number in range(11)]
    assert str(running.data_dir / "meta.properties") in dumped
    assert "here" in shown.stdout


def test_json_has_what_the_lines_have(broker, quick_command):
    running = broker()
    with Producer(running.bootstrap) as producer:
        producer.send(
            "orders", b"value\xff", key="key", headers={"h": "1"}, timestamp_ms=1_700_000_000_000
        )
    directory = running.data_dir / "orders-0"
    ran = quick_command("log", "dump", "--deep", "--format", "json", str(directory))
    assert (ran.returncode, ran.stderr) == (0, "")
    rows = json.loads(ran.stdout)
    segment = str(directory / "00000000000000000000.log")
    (batch,) = [row for row in rows if row["type"] == "batch"]
    assert (batch["file"], batch["base_offset"], batch["count"], batch["valid"]) == (
        segment,
        0,
        1,
        True,
    )
    (record,) = [row for row in rows if row["type"] == "record"]
    assert record == {
        "file": segment,
        "type": "record",
        "offset": 0,
        "timestamp": 1_700_000_000_000,
        "timestamp_type": "CreateTime",
        "sequence": 0,
        "headers": [["h", "1"]],
        "key": "key",
        "value": {"base64": "dmFsdWX/"},
    }
    text = quick_command(
        "log", "dump", "--format", "json", str(running.data_dir / "meta.properties")
    )
    assert "version=1" in [row["text"] for row in json.loads(text.stdout)]
    (metadata,) = [row for row in rows if row["type"] == "partition_metadata"]
    assert len(metadata["topic_id"]) == 22


def test_damage_is_in_the_json_too(quick_command, tmp_path):
    damaged = tmp_path / "00000000000000000000.index"
    damaged.write_bytes(bytes([0, 0, 0, 9, 0, 0, 0, 3]) + b"torn")
    ran = quick_command("log", "dump", "--format", "json", str(damaged))
    entry, fault = json.loads(ran.stdout)
    assert entry == {"file": str(damaged), "type": "offset_index", "offset": 9, "position": 3}
    assert fault["type"] == "fault" and fault["message"].startswith("corrupt: 12 bytes")
    assert ran.returncode == 1 and ran.stderr.startswith(f"error: {damaged}: corrupt: 12 bytes")


def test_damage_is_shown_and_not_a_stack_trace(quick_command, tmp_path):
    damaged = tmp_path / "partition.metadata"
    damaged.write_bytes(b"\xff\xfe")
    ran = quick_command("log", "dump", str(damaged))
    assert ran.stdout.startswith(f"Dumping {damaged}\n") and "corrupt" in ran.stdout
    assert ran.returncode == 1 and ran.stderr.startswith(f"error: {damaged}: corrupt: ")
    assert ran.stderr.count("\n") == 1


def test_what_is_wrong_is_told_in_one_line_after_all_that_can_be_read(quick_command, tmp_path):
    """Several files: the first fault in full, the others counted."""
    stem = "00000000000000000000"
    (tmp_path / f"{stem}.snapshot").write_bytes(b"no snapshot at all")
    (tmp_path / f"{stem}.index").write_bytes(bytes([0, 0, 0, 9, 0, 0, 0, 3]) + b"torn")
    (tmp_path / "notes.txt").write_text("hello")

    alone = quick_command("log", "dump", str(tmp_path / "notes.txt"))
    said = f"error: {tmp_path / 'notes.txt'}: not a known file of a log\n"
    assert (alone.returncode, alone.stderr) == (1, said)

    snapshot = quick_command("log", "dump", str(tmp_path / f"{stem}.snapshot"))
    assert snapshot.returncode == 1
    assert snapshot.stderr.startswith(f"error: {tmp_path / stem}.snapshot: corrupt: version ")

    both = quick_command("log", "dump", str(tmp_path))
    assert both.returncode == 1
    assert "offset: 9 position: 3\n" in both.stdout
    assert both.stderr == (
        f"error: {tmp_path / stem}.index: corrupt: 12 bytes are not a multiple of the entry size 8"
        " (and 1 more, see above)\n"
    )


def test_verify_tells_good_files_from_damaged_ones(broker, quick_command):
    running = broker()
    with Admin(running.bootstrap) as admin:
        admin.topics.create("orders", partitions=1)
    with Producer(running.bootstrap) as producer:
        for number in range(10):
            producer.send("orders", f"value-{number}")
            producer.flush()
    good = quick_command("log", "verify", str(running.data_dir))
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.endswith(": none damaged\n")

    segment = running.data_dir / "orders-0" / "00000000000000000000.log"
    damaged = bytearray(segment.read_bytes())
    damaged[70] ^= 1
    segment.write_bytes(damaged)
    found = quick_command("log", "verify", str(running.data_dir))
    assert found.returncode == 1
    assert (
        f"{segment}: at byte 0: the batch at offset 0 does not match its checksum\n" in found.stdout
    )
    rows = quick_command("log", "verify", "--format", "json", str(segment.parent))
    assert [row["file"] for row in json.loads(rows.stdout)] == [str(segment)]
