"""A simulated disk behind the `Files` port: what was written, what was synced, and what a crash makes of the rest.

`kill()` is the death of the process: everything written stays (the page cache survives). `crash()` is the death of the
machine: of an unsynced file any length between the synced and the written one may remain, with pages of it old, new or
zero; of the unsynced creations, renames and removals of a directory a prefix remains. Everything random comes from
one seed. `fault` may make any operation fail, in the middle of a write too.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence

from millstream.ports.files import Buffer, File, Lock

_PAGE = 512  # smaller than a real page, so that small files tear too

Fault = Callable[[str, str], OSError | None]


def sound(operation: str, path: str) -> OSError | None:
    """A disk that never fails."""
    return None


class _Inode:
    """The contents of a file."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""
        self.modified_ms = 0

    def sync(self) -> None:
        self.synced = bytes(self.data)

    def crash(self, dice: random.Random) -> None:
        old, new = self.synced, bytes(self.data)
        if old == new:
            return
        size = dice.choice(
            (len(old), len(new), dice.randint(min(len(old), len(new)), max(len(old), len(new))))
        )
        result = bytearray(size)
        for start in range(0, size, _PAGE):
            end = min(start + _PAGE, size)
            source = old if dice.random() < 0.3 else new
            page = source[start:end]
            result[start : start + len(page)] = page
        if dice.random() < 0.5:
            # Most file systems write data in order: a plain torn tail.
            result = bytearray(new[:size] + old[len(new) : size])
        self.data = result
        self.sync()


class _Dir:
    """A directory: its entries, those that are durable, and the operations between the two."""

    def __init__(self) -> None:
        self.entries: dict[str, _Inode | _Dir] = {}
        self.durable: dict[str, _Inode | _Dir] = {}
        self.pending: list[tuple[str, str, str, _Inode | _Dir | None]] = []

    def put(self, name: str, node: _Inode | _Dir) -> None:
        self._do(("put", name, "", node))

    def remove(self, name: str) -> None:
        self._do(("remove", name, "", None))

    def rename(self, old: str, new: str) -> None:
        self._do(("rename", old, new, None))

    def _do(self, operation: tuple[str, str, str, _Inode | _Dir | None]) -> None:
        _apply(self.entries, operation)
        self.pending.append(operation)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.pending.clear()

    def sync_all(self) -> None:
        self.sync()
        for node in self.entries.values():
            if isinstance(node, _Dir):
                node.sync_all()
            else:
                node.sync()

    def crash(self, dice: random.Random) -> None:
        for operation in self.pending[: dice.randint(0, len(self.pending))]:
            _apply(self.durable, operation)
        self.entries = dict(self.durable)
        self.pending.clear()
        for _, node in sorted(self.entries.items()):
            node.crash(dice)


def _apply(entries: dict[str, _Inode | _Dir], operation: tuple[str, str, str, _Inode | _Dir | None]) -> None:
    kind, name, new, node = operation
    if kind == "put" and node is not None:
        entries[name] = node
    elif kind == "remove":
        entries.pop(name, None)
    elif name in entries:
        entries[new] = entries.pop(name)


class SimFile:
    """An open file of the simulated disk."""

    def __init__(self, disk: SimDisk, path: str, inode: _Inode) -> None:
        self.path = path
        self.size = len(inode.data)
        self._disk = disk
        self._inode = inode

    def append(self, views: Sequence[Buffer]) -> None:
        data = b"".join(views)
        fault = self._disk.faulty("append", self.path)
        if fault is not None:
            self._fail_in_the_middle(data)
            raise fault
        self._inode.data[self.size :] = data
        self._inode.modified_ms = self._disk.now_ms
        self.size += len(data)

    def _fail_in_the_middle(self, data: bytes) -> None:
        """Part of it is written; mostly it can be cut away again, sometimes not even that."""
        part = self._disk.dice.randint(0, len(data))
        self._inode.data[self.size :] = data[:part]
        if self._disk.faulty("cut back", self.path) is None:
            del self._inode.data[self.size :]

    def pread(self, position: int, n: int) -> bytes:
        self._disk.check("read", self.path)
        return bytes(self._inode.data[position : position + n])

    def pread_nowait(self, position: int, n: int) -> bytes | bytearray | None:
        return None if self._disk.cold else self.pread(position, n)

    def truncate(self, size: int) -> None:
        self._disk.check("truncate", self.path)
        data = self._inode.data
        if len(data) > size:
            del data[size:]
        else:
            data.extend(bytes(size - len(data)))
        self.size = size

    def sync(self) -> None:
        self._disk.check("sync", self.path)
        self._inode.sync()

    def start_writeback(self, position: int, n: int) -> None:
        pass

    def close(self) -> None:
        pass


class SimLock:
    """A lock that the death of its process releases."""

    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


class SimDisk:
    """Implements `Files` in memory."""

    def __init__(self, seed: int = 0) -> None:
        self.dice = random.Random(seed)
        self.root = _Dir()
        self.locks: set[str] = set()
        self.now_ms = 0
        self.cold = False
        self.boots = 1
        self.fault: Fault = sound

    # -- dying

    def kill(self) -> None:
        """The process dies: what was written stays."""
        self.locks.clear()

    def crash(self) -> None:
        """The machine dies: what was not synced may stay, go, or be torn."""
        self.locks.clear()
        self.boots += 1
        self.root.crash(self.dice)

    def faulty(self, operation: str, path: str) -> OSError | None:
        return self.fault(operation, path)

    def check(self, operation: str, path: str) -> None:
        fault = self.fault(operation, path)
        if fault is not None:
            raise fault

    # -- looking up

    def _node(self, path: str) -> _Inode | _Dir:
        node: _Inode | _Dir = self.root
        for part in filter(None, path.split("/")):
            if not isinstance(node, _Dir) or part not in node.entries:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            node = node.entries[part]
        return node

    def _dir(self, path: str) -> _Dir:
        node = self._node(path)
        if not isinstance(node, _Dir):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        return node

    def _inode(self, path: str) -> _Inode:
        node = self._node(path)
        if not isinstance(node, _Inode):
            raise IsADirectoryError(errno.EISDIR, "a directory", path)
        return node

    def _parent(self, path: str) -> tuple[_Dir, str]:
        head, name = os.path.split(path)
        return self._dir(head), name

    # -- the port

    def open(self, path: str, *, create: bool = False) -> File:
        self.check("open", path)
        parent, name = self._parent(path)
        if name not in parent.entries and create:
            self.check("create", path)
            parent.put(name, _Inode())
        return SimFile(self, path, self._inode(path))

    def listdir(self, path: str) -> list[str]:
        self.check("listdir", path)
        return list(self._dir(path).entries)

    def exists(self, path: str) -> bool:
        try:
            self._node(path)
        except FileNotFoundError:
            return False
        return True

    def is_dir(self, path: str) -> bool:
        return self.exists(path) and isinstance(self._node(path), _Dir)

    def size(self, path: str) -> int:
        return len(self._inode(path).data)

    def modified_ms(self, path: str) -> int:
        return self._inode(path).modified_ms

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self._inode(path).modified_ms = modified_ms

    def rename(self, old: str, new: str) -> None:
        self.check("rename", old)
        parent, name = self._parent(old)
        self._node(old)
        target, new_name = self._parent(new)
        if parent is target:
            parent.rename(name, new_name)
        else:
            target.put(new_name, parent.entries[name])
            parent.remove(name)

    def unlink(self, path: str) -> None:
        self.check("unlink", path)
        self._inode(path)
        parent, name = self._parent(path)
        parent.remove(name)

    def rmtree(self, path: str) -> None:
        self.check("unlink", path)
        self._dir(path)
        parent, name = self._parent(path)
        parent.remove(name)

    def makedirs(self, path: str) -> None:
        self.check("makedirs", path)
        node = self.root
        for part in filter(None, path.split("/")):
            if part not in node.entries:
                node.put(part, _Dir())
            child = node.entries[part]
            if not isinstance(child, _Dir):
                raise FileExistsError(errno.EEXIST, "a file is in the way", path)
            node = child

    def sync_dir(self, path: str) -> None:
        self.check("sync", path)
        self._dir(path).sync()

    def sync_file(self, path: str) -> None:
        self.check("sync", path)
        self._inode(path).sync()

    def sync_all(self, path: str) -> bool:
        self.check("sync", path)
        self.root.sync_all()
        return True

    def read_bytes(self, path: str) -> bytes:
        self.check("read", path)
        return bytes(self._inode(path).data)

    def read_end(self, path: str, n: int) -> bytes:
        return self.read_bytes(path)[-n:]

    def write_bytes(self, path: str, data: Buffer) -> None:
        self.check("write", path)
        parent, name = self._parent(path)
        if name not in parent.entries:
            parent.put(name, _Inode())
        inode = self._inode(path)
        inode.data = bytearray(data)
        inode.modified_ms = self.now_ms

    def write_atomic(self, path: str, data: Buffer) -> None:
        temporary = path + ".tmp"
        self.write_bytes(temporary, data)
        self.sync_file(temporary)
        self.rename(temporary, path)
        self.sync_dir(os.path.dirname(path))

    def lock(self, path: str) -> Lock | None:
        if path in self.locks:
            return None
        self.open(path, create=True)
        self.locks.add(path)
        return SimLock(self, path)

    def space(self, path: str) -> tuple[int, int]:
        return 1 << 40, 1 << 39

    def free_bytes(self, path: str) -> int:
        return self.space(path)[1]

    def boot_id(self) -> str:
        return f"boot {self.boots}"


class MountedDisk(SimDisk):
    """The disk as one process sees it. After ``unmount`` nothing that is left of the process can touch it."""

    def __init__(self, disk: SimDisk, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.dice, self.root, self.locks, self.boots = disk.dice, disk.root, disk.locks, disk.boots
        self.cold = False
        self.fault = lambda operation, path: disk.fault(operation, path)

    @property
    def now_ms(self) -> int:  # type: ignore[override]
        return self._now_ms()

    def unmount(self) -> None:
        def gone(operation: str, path: str) -> OSError | None:
            raise io_error(path)

        self.fault = gone


def no_space(path: str = "") -> OSError:
    return OSError(errno.ENOSPC, "no space left on device", path)


def io_error(path: str = "") -> OSError:
    return OSError(errno.EIO, "input/output error", path)
