"""The journal of a single broker: what was acknowledged survives, what is damaged is told, nothing
is guessed.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.ports import embedded_coordination
from millstream.ports.coordination import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    Put,
    Write,
)
from millstream.ports.embedded_coordination import CorruptStore, EmbeddedCoordination
from millstream.ports.files import Files, RealFiles
from millstream.sim.world.disk import SimDisk, io_error, no_space

PATH = "/data/millstream.store"


def healthy(operation: str, path: str) -> OSError | None:
    return None


def disk_with_directory(seed: int = 0) -> SimDisk:
    disk = SimDisk(seed)
    disk.makedirs("/data")
    disk.sync_dir("/")
    return disk


async def opened(files: Files, path: str = PATH) -> EmbeddedCoordination:
    store = EmbeddedCoordination(files, path)
    await store.load()
    return store


def contents(files: Files, path: str = PATH) -> dict[str, bytes]:
    """What a broker would find that opened the store now."""

    async def load() -> dict[str, bytes]:
        store = EmbeddedCoordination(files, path)
        found = await store.load()
        await store.close()
        return {path: node.data for path, node in found.items() if node.data}

    return asyncio.run(load())


def write(files: Files, *multis: list[Write], path: str = PATH) -> None:
    async def run() -> None:
        store = await opened(files, path)
        for writes in multis:
            await store.multi(writes)
        await store.close()

    asyncio.run(run())


def test_nodes_are_there_after_a_restart_whatever_they_hold() -> None:
    disk = disk_with_directory()
    write(
        disk, [Put("/a", b'{"x":1}'), Create("/b", b"\xff\x00binary")], [Put("/a", "é\n".encode())]
    )
    assert contents(disk) == {"/a": "é\n".encode(), "/b": b"\xff\x00binary"}


def test_a_deletion_takes_everything_below() -> None:
    disk = disk_with_directory()
    write(disk, [Put("/t/a", b"1"), Put("/t/a/p/0", b"2"), Put("/t/ab", b"3")], [Delete("/t/a")])
    assert contents(disk) == {"/t/ab": b"3"}


@pytest.mark.parametrize(
    ("writes", "error"),
    [
        ([Put("/new", b""), Create("/a", b"")], NodeExists),
        ([Put("/new", b""), Check("/missing", ANY_VERSION)], NoNode),
        ([Put("/new", b""), Check("/a", 7)], BadVersion),
        ([Create("/new", b""), Create("/new", b"")], NodeExists),
    ],
)
def test_a_multi_is_all_or_nothing(writes: list[Write], error: type[Exception]) -> None:
    disk = disk_with_directory()
    write(disk, [Put("/a", b"1")])
    with pytest.raises(error):
        write(disk, writes)
    assert contents(disk) == {"/a": b"1"}


def test_versions_count_up_and_are_checked() -> None:
    disk = disk_with_directory()

    async def run() -> None:
        store = await opened(disk)
        await store.multi([Put("/a", b"1")])
        await store.multi([Check("/a", 0), Put("/a", b"2")])
        with pytest.raises(BadVersion):
            await store.multi([Check("/a", 0), Put("/a", b"3")])
        await store.close()

    asyncio.run(run())
    assert contents(disk) == {"/a": b"2"}


def nodes_after_a_restart(files: Files, path: str = PATH) -> dict[str, Node]:
    return asyncio.run(_nodes(files, path))


async def _nodes(files: Files, path: str) -> dict[str, Node]:
    store = await opened(files, path)
    try:
        return await store.load()
    finally:
        await store.close()


def test_versions_go_on_after_a_restart() -> None:
    disk = disk_with_directory()
    write(disk, [Put("/a/b", b"1")], [Put("/a/b", b"2")], [Put("/a/b", b"3"), Put("/c", b"1")])
    wanted = {"/a": Node(b"", 0, 0), "/a/b": Node(b"3", 2, 0), "/c": Node(b"1", 0, 0)}
    assert nodes_after_a_restart(disk) == wanted
    assert nodes_after_a_restart(disk) == wanted  # from the one line that the restart before wrote
    write(disk, [Check("/a/b", 2), Put("/a/b", b"4")], [Put("/a", b"")])
    found = nodes_after_a_restart(disk)
    assert (found["/a/b"].version, found["/a"].version) == (3, 1)


def test_ephemeral_nodes_end_with_the_process_and_leave_their_parents() -> None:
    disk = disk_with_directory()
    write(
        disk,
        [Create("/ids/1", b"me", ephemeral=True), Put("/lasting", b"1")],
        [Put("/ids/1", b"still me")],
        [Create("/alone/2", b"me", ephemeral=True)],
        [Delete("/ids/1"), Create("/ids/1", b"lasts")],
        [Delete("/ids/1"), Create("/ids/1", b"me again", ephemeral=True)],
    )
    assert set(nodes_after_a_restart(disk)) == {"/ids", "/lasting", "/alone"}


def test_a_store_written_before_there_were_versions_in_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "store"
    lines = [b'[["/a/b","=1"],["/c","=x"]]', b'[["/a/b","=2"]]', b'[["/c",null]]']
    path.write_bytes(b"".join(b"%08x %s\n" % (zlib.crc32(line), line) for line in lines))
    assert nodes_after_a_restart(RealFiles(), str(path)) == {
        "/a": Node(b"", 0, 0),
        "/a/b": Node(b"2", 1, 0),
    }


def test_a_torn_last_line_is_dropped_wherever_it_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "store"
    write(RealFiles(), [Put("/a", b"1")], path=str(path))
    whole = path.read_bytes()
    journal = whole + b'deadbeef [["/c","=333"]]'
    for cut in range(len(whole), len(journal) + 1):
        path.write_bytes(journal[:cut])
        assert contents(RealFiles(), str(path)) == {"/a": b"1"}


def test_a_damaged_line_is_told_with_its_number_and_the_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "store"
    write(RealFiles(), [Put("/a", b"2")], [Put("/b", b"3")], path=str(path))
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 3 and b"=2" in lines[1]
    damaged = lines[0] + lines[1].replace(b"=2", b"=7") + lines[2]
    path.write_bytes(damaged)
    with pytest.raises(CorruptStore, match=rf"{path}, line 2: .*restore"):
        contents(RealFiles(), str(path))
    assert path.read_bytes() == damaged


@pytest.mark.parametrize(
    "damage", [lambda data: b"", lambda data: data[:-2], lambda data: b"\x07" * 100]
)
def test_a_damaged_snapshot_is_told_because_no_crash_tears_it(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "store"
    write(RealFiles(), [Put("/a", b"1")], path=str(path))
    contents(RealFiles(), str(path))  # rewritten as one line
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    with pytest.raises(CorruptStore, match=r"store.*restore"):
        contents(RealFiles(), str(path))
    assert path.read_bytes() == damaged


def test_a_journal_that_has_grown_is_rewritten_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embedded_coordination, "_REWRITE_AT", 2_000)
    disk = disk_with_directory()
    write(disk, *([Put("/counter", b"%d" % n), Put(f"/n{n % 7}", b"x" * 50)] for n in range(200)))
    assert disk.size(PATH) < 4_000
    assert contents(disk)["/counter"] == b"199"


def test_a_rewrite_that_fails_costs_nothing_but_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """The change is in the journal already: it is acknowledged, and later ones go on."""
    monkeypatch.setattr(embedded_coordination, "_REWRITE_AT", 500)
    disk = disk_with_directory()

    async def run() -> None:
        store = await opened(disk)
        disk.fault = lambda op, path: no_space(path) if path.endswith(".tmp") else None
        for n in range(50):
            await store.multi([Put(f"/n{n}", b"x" * 40)])
        disk.fault = healthy
        for n in range(50, 100):
            await store.multi([Put(f"/n{n}", b"x" * 40)])
        await store.close()

    asyncio.run(run())
    disk.kill()
    assert set(contents(disk)) == {f"/n{n}" for n in range(100)}


@pytest.mark.parametrize("operation", ["append", "sync"])
def test_a_write_that_fails_is_refused_and_stays_undone(operation: str) -> None:
    disk = disk_with_directory()

    async def run() -> None:
        store = await opened(disk)
        await store.multi([Put("/a", b"1")])
        disk.fault = lambda op, path: io_error(path) if op == operation else None
        with pytest.raises(OSError, match="input/output error"):
            await store.multi([Put("/b", b"2"), Delete("/a")])
        disk.fault = healthy
        assert {path: node.data for path, node in (await store.load()).items()} == {"/a": b"1"}
        await store.multi([Put("/c", b"3")])
        await store.close()

    asyncio.run(run())
    assert contents(disk) == {"/a": b"1", "/c": b"3"}


@pytest.mark.parametrize("seed", range(60))
def test_what_was_acknowledged_survives_the_death_of_the_machine(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails at a random operation, then the machine dies: everything acknowledged is
    there, and of the one change under way all or nothing.
    """
    monkeypatch.setattr(embedded_coordination, "_REWRITE_AT", 600)
    dice = random.Random(seed)
    disk = disk_with_directory(seed)
    known: dict[str, bytes] = {}
    for _ in range(4):
        known = crash_during_writes(disk, dice, known)
        known = contents_after_crash(disk, known)


def crash_during_writes(
    disk: SimDisk, dice: random.Random, known: dict[str, bytes]
) -> dict[str, bytes]:
    left = dice.randrange(5, 60)

    def fault(op: str, path: str) -> OSError | None:
        nonlocal left
        left -= 1
        return io_error(path) if left < 0 else None

    async def run() -> None:
        store = await opened(disk)
        disk.fault = fault
        for _ in range(30):
            n = dice.randrange(1000)
            await store.multi([Put(f"/n{n}", b"%d" % n * 20), Put("/last", b"%d" % n)])
            known.update({f"/n{n}": b"%d" % n * 20, "/last": b"%d" % n})

    try:
        asyncio.run(run())
    except OSError:
        pass
    disk.fault = healthy
    disk.crash()
    return known


def contents_after_crash(disk: SimDisk, known: dict[str, bytes]) -> dict[str, bytes]:
    found = contents(disk)
    extra = {path for path in found if path not in known}
    assert {path: found.get(path) for path in known if path != "/last"} == {
        path: data for path, data in known.items() if path != "/last"
    }
    if extra:  # the change that was under way: then all of it
        (path,) = extra
        assert found["/last"] == path.removeprefix("/n").encode() or path == "/last"
    return found
