"""A simulated disk behind the `Files` port.

`kill()` is the death of the process: everything written stays, because the page cache survives.
`crash()` is the death of the machine: unsynced data may stay, vanish or be torn (`file_tree.py`).
Everything random comes from one seed. `fault` may let any operation fail, also in the middle of a
write.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence

from millstream.ports.files import Buffer, File, Lock
from millstream.sim.world.file_tree import Directory, Inode

Fault = Callable[[str, str], OSError | None]


def no_fault(operation: str, path: str) -> OSError | None:
    """The fault of a healthy disk: never."""
    return None


def no_space(path: str = "") -> OSError:
    return OSError(errno.ENOSPC, "no space left on device", path)


def io_error(path: str = "") -> OSError:
    return OSError(errno.EIO, "input/output error", path)


def check(fault: Fault, operation: str, path: str) -> None:
    """Raise the fault of an operation, if it has one."""
    error = fault(operation, path)
    if error is not None:
        raise error


class SimFile:
    """An open file of the simulated disk."""

    def __init__(self, disk: SimDisk, path: str, inode: Inode) -> None:
        self.path = path
        self.size = len(inode.data)
        self._disk = disk
        self._inode = inode

    def append(self, views: Sequence[Buffer]) -> None:
        data = b"".join(views)
        error = self._disk.fault("append", self.path)
        if error is not None:
            self._fail_in_the_middle(data)
            raise error
        self._inode.data[self.size :] = data
        self._inode.modified_ms = self._disk.now_ms
        self.size += len(data)

    def _fail_in_the_middle(self, data: bytes) -> None:
        """Write a part of the data. Usually it can be truncated again, but even that may fail."""
        part = self._disk.dice.randint(0, len(data))
        self._inode.data[self.size :] = data[:part]
        if self._disk.fault("undo append", self.path) is None:
            del self._inode.data[self.size :]

    def pread(self, position: int, n: int) -> bytes:
        check(self._disk.fault, "read", self.path)
        return bytes(self._inode.data[position : position + n])

    def pread_nowait(self, position: int, n: int) -> bytes | bytearray | None:
        return None if self._disk.cold else self.pread(position, n)

    def truncate(self, size: int) -> None:
        check(self._disk.fault, "truncate", self.path)
        data = self._inode.data
        if len(data) > size:
            del data[size:]
        else:
            data.extend(bytes(size - len(data)))
        self.size = size

    def sync(self) -> None:
        check(self._disk.fault, "sync", self.path)
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
    """Implements `Files` in memory. `cold`: nothing is in the page cache."""

    def __init__(self, seed: int = 0) -> None:
        self.dice = random.Random(seed)
        self.root = Directory()
        self.locks: set[str] = set()
        self.now_ms = 0
        self.cold = False
        self.boots = 1
        self.fault: Fault = no_fault

    # -- deaths

    def kill(self) -> None:
        """Let the process die: written data stays."""
        self.locks.clear()

    def crash(self) -> None:
        """Let the machine die: unsynced data may stay, vanish, or be torn."""
        self.locks.clear()
        self.boots += 1
        self.root.crash(self.dice)

    # -- the port

    def open(self, path: str, *, create: bool = False) -> File:
        check(self.fault, "open", path)
        parent, name = self.root.parent(path)
        if name not in parent.entries and create:
            check(self.fault, "create", path)
            parent.put(name, Inode())
        return SimFile(self, path, self.root.inode(path))

    def listdir(self, path: str) -> list[str]:
        check(self.fault, "listdir", path)
        return list(self.root.directory(path).entries)

    def exists(self, path: str) -> bool:
        try:
            self.root.node(path)
        except FileNotFoundError:
            return False
        return True

    def is_dir(self, path: str) -> bool:
        return self.exists(path) and isinstance(self.root.node(path), Directory)

    def size(self, path: str) -> int:
        return len(self.root.inode(path).data)

    def modified_ms(self, path: str) -> int:
        return self.root.inode(path).modified_ms

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self.root.inode(path).modified_ms = modified_ms

    def rename(self, old: str, new: str) -> None:
        check(self.fault, "rename", old)
        parent, name = self.root.parent(old)
        self.root.node(old)
        target, new_name = self.root.parent(new)
        if parent is target:
            parent.rename(name, new_name)
        else:
            target.put(new_name, parent.entries[name])
            parent.remove(name)

    def unlink(self, path: str) -> None:
        check(self.fault, "unlink", path)
        self.root.inode(path)
        parent, name = self.root.parent(path)
        parent.remove(name)

    def rmtree(self, path: str) -> None:
        check(self.fault, "unlink", path)
        self.root.directory(path)
        parent, name = self.root.parent(path)
        parent.remove(name)

    def makedirs(self, path: str) -> None:
        check(self.fault, "makedirs", path)
        node = self.root
        for part in filter(None, path.split("/")):
            if part not in node.entries:
                node.put(part, Directory())
            child = node.entries[part]
            if not isinstance(child, Directory):
                raise FileExistsError(errno.EEXIST, "a file is in the way", path)
            node = child

    def sync_dir(self, path: str) -> None:
        check(self.fault, "sync", path)
        self.root.directory(path).sync()

    def sync_file(self, path: str) -> None:
        check(self.fault, "sync", path)
        self.root.inode(path).sync()

    def sync_all(self, path: str) -> bool:
        check(self.fault, "sync", path)
        self.root.sync_all()
        return True

    def read_bytes(self, path: str) -> bytes:
        check(self.fault, "read", path)
        return bytes(self.root.inode(path).data)

    def read_end(self, path: str, n: int) -> bytes:
        return self.read_bytes(path)[-n:]

    def write_bytes(self, path: str, data: Buffer) -> None:
        check(self.fault, "write", path)
        parent, name = self.root.parent(path)
        if name not in parent.entries:
            parent.put(name, Inode())
        inode = self.root.inode(path)
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
    """The disk as one process sees it. After `unmount`, tasks that outlive it cannot touch it."""

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
