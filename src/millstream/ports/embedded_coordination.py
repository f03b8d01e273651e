"""The coordination tree of a single broker: a journal in one file, and a session that never ends.

Each line is a checksum and one multi as JSON. A multi is applied only after its line is fsynced. A
crash may leave the last line torn; it is then dropped. Any other unreadable line is an error,
because guessing would lose topics.

The journal is rewritten as a single line when it is opened, and again when it has grown well beyond
the size of its contents. Rows of that line also carry the node's version. Ephemeral nodes live as
long as the process and are never written.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from millstream.ports.coordination import (
    ANY_VERSION,
    BadVersion,
    Cancel,
    Check,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    Put,
    SessionState,
    Write,
)
from millstream.ports.files import File, Files

log = logging.getLogger("millstream.store")

_REWRITE_AT = 4 * 1024 * 1024


_REMEDY = (
    "restore the file from a backup, or move it away to rebuild the topics from the partition directories "
    "(topic settings are then lost)"
)


STORE_FILE = "millstream.store"
# A marker file beside a store that is being migrated to ZooKeeper, or has been. It names the
# target.
MIGRATION_FILE = "millstream.moved"


class CorruptStore(Exception):
    """The journal cannot be read; the message names the line."""


class _Entry(NamedTuple):
    """The effect of one write on one node.

    Data None deletes the node and everything below it. ``version`` is set in snapshots only.
    """

    path: str
    data: bytes | None
    ephemeral: bool = False
    version: int | None = None


class EmbeddedCoordination:
    """Implements ``Coordination`` on one file."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._nodes: dict[str, Node] = {}
        self._ephemeral: set[str] = set()
        # A deletion removes all descendants, and must not search every other node to find them.
        self._children: defaultdict[str, set[str]] = defaultdict(set)
        self._watches: defaultdict[str, list[Callable[[], None]]] = defaultdict(list)
        self._touched: set[str] = set()
        self._file: File | None = None
        self._lock = asyncio.Lock()
        self._snapshot_size = 0

    # ---- the session, always connected ----

    @property
    def session(self) -> SessionState:
        return SessionState.CONNECTED

    def on_session(self, callback: Callable[[SessionState], None]) -> Cancel:
        return lambda: None

    # ---- reading ----

    async def load(self) -> dict[str, Node]:
        self._open()
        return dict(self._nodes)

    async def get(self, path: str) -> Node | None:
        self._open()
        return self._nodes.get(path)

    async def children(self, path: str) -> dict[str, Node]:
        self._open()
        below = self._children.get(path.rstrip("/"), ())
        return {child.rpartition("/")[2]: self._nodes[child] for child in below}

    def watch(self, path: str, callback: Callable[[], None]) -> Cancel:
        callbacks = self._watches[path]
        callbacks.append(callback)

        def cancel() -> None:
            if callback in callbacks:
                callbacks.remove(callback)

        return cancel

    # ---- the journal ----

    def _open(self) -> None:
        if self._file is not None:
            return
        if self._files.exists(self._path):
            self._replay(self._files.read_bytes(self._path))
        self._rewrite()

    def _replay(self, journal: bytes) -> None:
        if not journal:
            raise CorruptStore(f"{self._path} is empty; {_REMEDY}")
        lines = journal.split(b"\n")
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            entries = _decode_line(line)
            if entries is None:
                # A crash cannot tear the first line: it is written to a file that is then renamed.
                if number > 1 and _is_torn(line, lines[number:]):
                    log.warning(
                        "%s, line %d is incomplete: dropped a write that a crash interrupted",
                        self._path,
                        number,
                    )
                    return
                raise CorruptStore(
                    f"{self._path}, line {number}: the checksum does not match; {_REMEDY}"
                )
            for entry in entries:
                self._apply(entry)

    def _rewrite(self) -> None:
        self._files.write_atomic(self._path, _encode_line(self._snapshot()))
        self._file = self._files.open(self._path)
        self._snapshot_size = self._file.size

    def _snapshot(self) -> list[_Entry]:
        """Return every persistent node, except parents that are created automatically."""
        return [
            _Entry(path, node.data, version=node.version)
            for path, node in self._nodes.items()
            if path not in self._ephemeral
            and (node.data or node.version or not self._has_persistent_child(path))
        ]

    def _has_persistent_child(self, path: str) -> bool:
        return any(child not in self._ephemeral for child in self._children.get(path, ()))

    def _compact(self) -> None:
        """Rewrite the journal; if that fails, continue with the long one, which is complete."""
        try:
            self._rewrite()
        except OSError as error:
            log.warning(
                "the metadata store %s cannot be compacted and keeps growing: %s", self._path, error
            )
            # This is either the old file or the new one; both have the same contents.
            self._file = self._files.open(self._path)
            self._snapshot_size = self._file.size

    def _persist(self, line: bytes) -> None:
        assert self._file is not None
        before = self._file.size
        self._file.append([line])
        try:
            self._file.sync()
        except OSError:
            # The write is rejected, so it must not reappear at the next startup.
            self._file.truncate(before)
            raise

    # ---- the tree ----

    def _apply(self, entry: _Entry) -> None:
        path = entry.path
        if entry.data is None:
            self._remove(path)
            self._children[_parent(path)].discard(path)
            self._touched.add(_parent(path))
            return
        old = self._nodes.get(path)
        if old is None:
            self._insert(path)
        version = entry.version
        if version is None:
            version = 0 if old is None else old.version + 1
        self._nodes[path] = Node(entry.data, version, 0)
        if entry.ephemeral:
            self._ephemeral.add(path)
        self._touched.add(path)

    def _insert(self, path: str) -> None:
        """Insert an empty node into the tree, with its missing parents."""
        above = _parent(path)
        if above and above not in self._nodes:
            self._insert(above)
        self._nodes[path] = Node(b"", 0, 0)
        self._children[above].add(path)
        self._touched |= {path, above}

    def _remove(self, path: str) -> None:
        if self._nodes.pop(path, None) is not None:
            self._touched.add(path)
        self._ephemeral.discard(path)
        for child in self._children.pop(path, ()):
            self._remove(child)

    def _notify_watches(self) -> None:
        """Schedule the callbacks of watches on touched paths, once each."""
        touched, self._touched = self._touched, set()
        loop = asyncio.get_running_loop()
        for path in self._watches.keys() & {path or "/" for path in touched}:
            for callback in self._watches[path]:
                loop.call_soon(self._call, path, callback)

    def _call(self, path: str, callback: Callable[[], None]) -> None:
        # The watch may have been cancelled since the call was scheduled.
        if callback in self._watches[path]:
            callback()

    # ---- writing ----

    async def multi(self, writes: Sequence[Write]) -> None:
        async with self._lock:
            self._open()
            entries = self._plan(writes)
            persistent = [entry for entry in entries if not entry.ephemeral]
            loop = asyncio.get_running_loop()
            if persistent:
                await loop.run_in_executor(None, self._persist, _encode_line(persistent))
            self._touched.clear()
            for entry in entries:
                self._apply(entry)
            self._notify_watches()
            assert self._file is not None
            if self._file.size > _REWRITE_AT + 2 * self._snapshot_size:
                await loop.run_in_executor(None, self._compact)

    def _plan(self, writes: Sequence[Write]) -> list[_Entry]:
        """Return the changes that the writes make; raise before anything is changed."""
        for write in writes:
            if isinstance(write, Check):
                self._check_version(write)
        plan = _Plan(self._nodes, self._ephemeral)
        for write in writes:
            plan.add(write)
        return plan.entries

    def _check_version(self, write: Check) -> None:
        node = self._nodes.get(write.path)
        if node is None:
            raise NoNode(write.path)
        if write.version not in (ANY_VERSION, node.version):
            raise BadVersion(write.path)

    async def close(self) -> None:
        async with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None
                self._nodes.clear()
                self._children.clear()
                self._ephemeral.clear()


class _Plan:
    """The writes of one multi. Each write sees the effects of the writes before it."""

    def __init__(self, nodes: dict[str, Node], ephemeral: set[str]) -> None:
        self._nodes = nodes
        self._ephemeral = ephemeral
        # By path, the number of the last entry that created or deleted it.
        self._created: dict[str, int] = {}
        self._deleted: dict[str, int] = {}
        self.entries: list[_Entry] = []

    def add(self, write: Write) -> None:
        if isinstance(write, Create):
            if self._exists(write.path):
                raise NodeExists(write.path)
            self._set(write.path, write.data, write.ephemeral)
        elif isinstance(write, Put):
            self._set(write.path, write.data, self._is_ephemeral(write.path))
        elif isinstance(write, Delete):
            self.entries.append(_Entry(write.path, None, self._is_ephemeral(write.path)))
            self._deleted[write.path] = len(self.entries)

    def _set(self, path: str, data: bytes, ephemeral: bool) -> None:
        self._create_parents(_parent(path), explicitly=ephemeral)
        self.entries.append(_Entry(path, data, ephemeral))
        self._created[path] = len(self.entries)

    def _create_parents(self, path: str, *, explicitly: bool) -> None:
        """Plan the missing parents of a node.

        Replaying a persistent node creates its parents automatically. An ephemeral node is not in
        the journal, so its parents need entries.
        """
        if not path or self._exists(path):
            return
        self._create_parents(_parent(path), explicitly=explicitly)
        if explicitly:
            self.entries.append(_Entry(path, b""))
        # Without an entry of its parents, the entry that follows creates them.
        self._created[path] = len(self.entries) + (not explicitly)

    def _exists(self, path: str) -> bool:
        deleted = self._last_deletion(path) if self._deleted else 0
        return self._created.get(path, 0) > deleted or (path in self._nodes and not deleted)

    def _last_deletion(self, path: str) -> int:
        """Return the number of the last deletion of the node or an ancestor, or 0."""
        last = 0
        while path:
            last = max(last, self._deleted.get(path, 0))
            path = _parent(path)
        return last

    def _is_ephemeral(self, path: str) -> bool:
        if not self._exists(path):
            return False
        number = self._created.get(path, 0)
        return path in self._ephemeral if not number else self.entries[number - 1].ephemeral


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _encode_line(entries: list[_Entry]) -> bytes:
    rows = [_row(entry) for entry in entries]
    body = json.dumps(rows, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _row(entry: _Entry) -> list[str | int | None]:
    text = None if entry.data is None else _text(entry.data)
    return [entry.path, text, entry.version] if entry.version else [entry.path, text]


def _decode_line(line: bytes) -> list[_Entry] | None:
    """Return the entries, or None if the line is damaged."""
    checksum, _, body = line.partition(b" ")
    if len(checksum) != 8 or b"%08x" % zlib.crc32(body) != checksum:
        return None
    return [
        _Entry(path, None if text is None else _data(text), version=version[0] if version else None)
        for path, text, *version in json.loads(body)
    ]


def _is_torn(line: bytes, after: list[bytes]) -> bool:
    """Return whether a damaged line comes from a write that a crash interrupted.

    It is then the last line, and either lacks its newline or has zero bytes where a page did not
    reach the disk. JSON has no zero bytes.
    """
    return not after or (after == [b""] and b"\x00" in line)


def _text(data: bytes) -> str:
    """Return the data as text: readable if it is UTF-8 (nodes are JSON), else in base64."""
    try:
        return "=" + data.decode()
    except UnicodeDecodeError:
        return "#" + base64.b64encode(data).decode()


def _data(text: str) -> bytes:
    return text[1:].encode() if text[0] == "=" else base64.b64decode(text[1:])
