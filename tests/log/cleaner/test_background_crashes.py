"""The process or the machine dies at any step of a cleaning: nothing is lost, and cleaning goes on
after the restart.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millstream.ports.files import File, RealFiles
from millstream.sim.world.disk import SimDisk
from millstream.wire.records.batch import Record, parse_header
from support.log.cleaner_store import COMPACT, TP, Store, clean, dies_at, offsets

CONFIG = replace(COMPACT, index_interval_bytes=1)
COPIED = ("rename", "unlink", "sync_dir", "write_bytes", "write_atomic", "sync_file")


class CopyingFiles(RealFiles):
    """Copies the whole data directory after every change of it, once told to: what a death there
    would leave.
    """

    def __init__(self, source: Path, target: Path) -> None:
        self.source, self.target = source, target
        self.copies: list[tuple[str, Path]] = []
        self.copying = False

    def copy(self, what: str) -> None:
        if self.copying:
            path = self.target / str(len(self.copies))
            shutil.copytree(self.source, path)
            self.copies.append((what, path))

    def open(self, path: str, *, create: bool = False) -> File:
        file = super().open(path, create=create)
        if create:
            self.copy(f"open {path}")
        return file

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in COPIED:
            return found

        def then_copy(*args: Any) -> None:
            found(*args)
            self.copy(f"{name} {args[0]}")

        return then_copy


def write_log(store: Store) -> None:
    """Segments that will be joined, segments that will be split, transactions, tombstones and
    producers.
    """
    for number in range(4):
        store.put(*((f"k{key}", f"{number}-{key}") for key in range(6)))
        store.put((f"t{number}", "x"), pid=1, txn=True)
        store.end_transaction(1, commit=number % 2 == 0)
        store.put((f"k{number}", None), pid=2)
        store.roll()
    store.log().update_config(replace(store.config, segment_bytes=500))
    store.put(("active", "1"))
    store.log().flush()


def check(
    store: Store,
    original: dict[int, Record],
    expected: dict[str, str | None],
    ends: tuple[int, int],
) -> None:
    assert store.manager.offline == {}
    log = store.log()
    assert (log.log_start_offset, log.log_end_offset) == ends
    records = store.read()
    assert offsets(records) == sorted(set(offsets(records)))
    assert all(record == original[record.offset] for record in records)
    assert store.values(committed=True) == expected
    assert store.leftovers() == []
    for offset in offsets(records):
        found = log.read(offset, 1, upto=log.log_end_offset, at_least_one=True)
        assert found.slice is not None
        header = parse_header(found.slice.read())
        assert header.base_offset <= offset <= header.last_offset, "the index leads there"


def test_process_that_dies_at_any_step_of_a_cleaning_loses_nothing(tmp_path: Path):
    source = tmp_path / "data"
    files = CopyingFiles(source, tmp_path / "copies")
    store = Store(source, config=CONFIG, files=files)
    write_log(store)
    original = {record.offset: record for record in store.read()}
    expected, producers = store.values(committed=True), store.producers()
    ends = (store.log().log_start_offset, store.log().log_end_offset)
    files.copying = True
    assert clean(store) is not None
    files.copying = False
    cleaned = offsets(store.read())
    assert len(cleaned) < len(original)
    store.crash()
    steps = {what.split()[0] + " " + what.rpartition(".")[2] for what, _ in files.copies}
    assert {"rename cleaned", "rename swap", "rename log", "rename index"} <= steps, (
        "every kind of step was copied"
    )
    for what, path in files.copies:
        restarted = Store(path, config=CONFIG)
        check(restarted, original, expected, ends)
        assert restarted.producers() == producers, what
        restarted.log().update_config(replace(CONFIG, segment_bytes=500))
        clean(restarted)
        check(restarted, original, expected, ends)
        assert set(offsets(restarted.read())) <= set(original)
        restarted.crash()


@pytest.mark.parametrize("machine", [True, False], ids=["machine", "process"])
def test_death_at_any_step_on_a_simulated_disk_loses_nothing(machine: bool):
    step, died = 0, True
    while died:
        step += 1
        disk = SimDisk(seed=step)
        store = Store("/data", config=CONFIG, files=disk)
        write_log(store)
        store.manager.checkpoints.write_all()
        original = {record.offset: record for record in store.read()}
        expected, producers = store.values(committed=True), store.producers()
        ends = (store.log().log_start_offset, store.log().log_end_offset)
        died = dies_at(store, disk, step)
        if machine:
            disk.crash()
        else:
            disk.kill()
        store.open()
        check(store, original, expected, ends)
        assert store.producers() == producers
        store.log().update_config(replace(CONFIG, segment_bytes=500))
        clean(store)
        check(store, original, expected, ends)
        assert TP in store.manager.logs
    assert step > 60, "the cleaning has that many steps"
