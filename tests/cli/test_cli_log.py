"""``millstream log dump`` on the files of a broker that runs."""

from __future__ import annotations

from millstream.client import Admin, Producer


def test_segments_and_indexes_are_dumped(broker, command):
    running = broker()
    with Admin(running.bootstrap) as admin:
        admin.topics.create("orders", partitions=1)
    with Producer(running.bootstrap, compression="zstd") as producer:
        for number in range(10):
            producer.send("orders", b"value-%d\xff" % number, key=f"key-{number}", headers={"h": "1"})
    directory = running.data_dir / "orders-0"
    segment = directory / "00000000000000000000.log"

    shallow = command("log", "dump", str(segment), text=True)
    assert (shallow.returncode, shallow.stderr) == (0, "")
    assert shallow.stdout.startswith(f"Dumping {segment}\nLog starting offset: 0\n")
    assert "baseOffset: 0 " in shallow.stdout and "compresscodec: zstd" in shallow.stdout
    assert "key-3" not in shallow.stdout

    deep = command("log", "dump", "--deep", str(segment), text=True)
    assert (deep.returncode, deep.stderr) == (0, "")
    assert all(f"key-{number}" in deep.stdout for number in range(10))

    whole = command("log", "dump", str(directory), text=True)
    assert (whole.returncode, whole.stderr) == (0, "")
    for name in ("partition.metadata", segment.name):
        assert f"Dumping {directory / name}\n" in whole.stdout


def test_damage_is_shown_and_not_a_stack_trace(command, tmp_path):
    damaged = tmp_path / "partition.metadata"
    damaged.write_bytes(b"\xff\xfe")
    ran = command("log", "dump", str(damaged), text=True)
    assert ran.stdout.startswith(f"Dumping {damaged}\n") and "corrupt" in ran.stdout
    assert ran.returncode == 1 and ran.stderr.startswith(f"error: {damaged}: corrupt: ")
    assert ran.stderr.count("\n") == 1


def test_what_is_wrong_is_told_in_one_line_after_all_that_can_be_read(command, tmp_path):
    """Several files: the first fault in full, the others counted."""
    stem = "00000000000000000000"
    (tmp_path / f"{stem}.snapshot").write_bytes(b"no snapshot at all")
    (tmp_path / f"{stem}.index").write_bytes(bytes([0, 0, 0, 9, 0, 0, 0, 3]) + b"torn")
    (tmp_path / "notes.txt").write_text("hello")

    alone = command("log", "dump", str(tmp_path / "notes.txt"), text=True)
    said = f"error: {tmp_path / 'notes.txt'}: not a file of a log that is known here\n"
    assert (alone.returncode, alone.stderr) == (1, said)

    snapshot = command("log", "dump", str(tmp_path / f"{stem}.snapshot"), text=True)
    assert snapshot.returncode == 1
    assert snapshot.stderr.startswith(f"error: {tmp_path / stem}.snapshot: corrupt: version ")

    both = command("log", "dump", str(tmp_path), text=True)
    assert both.returncode == 1
    assert "offset: 9 position: 3\n" in both.stdout
    assert both.stderr == (
        f"error: {tmp_path / stem}.index: corrupt: 12 bytes are no multiple of an entry's 8"
        " (and 1 more, see above)\n"
    )
