"""The files and directories of a simulated disk: written state, synced state, and crashes.

After a crash, an unsynced file has any length between the synced and the written one, and each of
its pages is old, new or zero. Of the unsynced changes of a directory a prefix remains. All
randomness comes from the dice of the disk.
"""

from __future__ import annotations

import errno
import os
import random
from typing import NamedTuple

_PAGE = 512  # smaller than a real page, so that small files are torn too


class Inode:
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
            # Most file systems write data in order: only the tail is torn.
            result = bytearray(new[:size] + old[len(new) : size])
        self.data = result
        self.sync()


class _Change(NamedTuple):
    """A change of the entries of a directory: put, remove or rename."""

    kind: str
    name: str
    new_name: str = ""
    node: Inode | Directory | None = None

    def apply(self, entries: dict[str, Inode | Directory]) -> None:
        if self.kind == "put" and self.node is not None:
            entries[self.name] = self.node
        elif self.kind == "remove":
            entries.pop(self.name, None)
        elif self.name in entries:
            entries[self.new_name] = entries.pop(self.name)


class Directory:
    """A directory: its entries, the durable ones, and the changes between the two."""

    def __init__(self) -> None:
        self.entries: dict[str, Inode | Directory] = {}
        self._durable: dict[str, Inode | Directory] = {}
        self._unsynced: list[_Change] = []

    # -- looking up

    def node(self, path: str) -> Inode | Directory:
        """Return the file or directory at a path below this one. Raises FileNotFoundError."""
        node: Inode | Directory = self
        for part in filter(None, path.split("/")):
            if not isinstance(node, Directory) or part not in node.entries:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            node = node.entries[part]
        return node

    def directory(self, path: str) -> Directory:
        node = self.node(path)
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        return node

    def inode(self, path: str) -> Inode:
        node = self.node(path)
        if not isinstance(node, Inode):
            raise IsADirectoryError(errno.EISDIR, "a directory", path)
        return node

    def parent(self, path: str) -> tuple[Directory, str]:
        """Return the parent directory of a path, and its last part."""
        head, name = os.path.split(path)
        return self.directory(head), name

    # -- changing

    def put(self, name: str, node: Inode | Directory) -> None:
        self._change(_Change("put", name, node=node))

    def remove(self, name: str) -> None:
        self._change(_Change("remove", name))

    def rename(self, old: str, new: str) -> None:
        self._change(_Change("rename", old, new))

    def _change(self, change: _Change) -> None:
        change.apply(self.entries)
        self._unsynced.append(change)

    def sync(self) -> None:
        self._durable = dict(self.entries)
        self._unsynced.clear()

    def sync_all(self) -> None:
        """Sync this directory and everything below it."""
        self.sync()
        for node in self.entries.values():
            if isinstance(node, Directory):
                node.sync_all()
            else:
                node.sync()

    def crash(self, dice: random.Random) -> None:
        for change in self._unsynced[: dice.randint(0, len(self._unsynced))]:
            change.apply(self._durable)
        self.entries = dict(self._durable)
        self._unsynced.clear()
        for _, node in sorted(self.entries.items()):
            node.crash(dice)
