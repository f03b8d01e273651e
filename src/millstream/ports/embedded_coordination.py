"""The coordination tree of a single broker: a journal in one file, nothing to start.

Each line is a checksum and one multi as JSON, fsynced before it counts. The last line may be torn by a crash and is then
dropped; anything else that does not read is told and refused, because guessing would forget topics. The journal
is rewritten as one line when it is opened and whenever it has grown well beyond what it holds.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import zlib
from collections import defaultdict
from collections.abc import Sequence

from millstream.ports.coordination import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    NodeExists,
    NoNode,
    Put,
    Write,
)
from millstream.ports.files import File, Files

log = logging.getLogger("millstream.store")

_REWRITE_AT = 4 * 1024 * 1024


_REMEDY = (
    "restore the file from a backup, or move it away to rebuild the topics from the partition directories "
    "(topic settings are then lost)"
)


class CorruptStore(Exception):
    """The journal cannot be read; the message says where."""


class EmbeddedCoordination:
    """Implements ``Coordination`` on one file."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._nodes: dict[str, tuple[bytes, int]] = {}
        # A deletion takes what is below with it, and must not look through every other node to find it.
        self._children: defaultdict[str, set[str]] = defaultdict(set)
        self._file: File | None = None
        self._lock = asyncio.Lock()
        self._snapshot_size = 0

    async def load(self) -> dict[str, bytes]:
        if self._file is None:
            self._open()
        return {path: data for path, (data, _) in self._nodes.items()}

    def _open(self) -> None:
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
                # The first line was written whole and then renamed into place: no crash tears it.
                if number > 1 and _is_torn(line, lines[number:]):
                    return
                raise CorruptStore(f"{self._path}, line {number}: the checksum does not match; {_REMEDY}")
            for path, data in entries:
                self._apply(path, data)

    def _apply(self, path: str, data: bytes | None) -> None:
        if data is None:
            self._remove(path)
            self._children[_parent(path)].discard(path)
        elif path in self._nodes:
            self._nodes[path] = (data, self._nodes[path][1] + 1)
        else:
            self._nodes[path] = (data, 0)
            self._know(path)

    def _know(self, path: str) -> None:
        """Makes a path known to those above it, which need not be nodes themselves."""
        while path and path not in (siblings := self._children[_parent(path)]):
            siblings.add(path)
            path = _parent(path)

    def _remove(self, path: str) -> None:
        self._nodes.pop(path, None)
        for child in self._children.pop(path, ()):
            self._remove(child)

    def _rewrite(self) -> None:
        line = _encode_line([(path, data) for path, (data, _) in self._nodes.items()])
        self._files.write_atomic(self._path, line)
        self._file = self._files.open(self._path)
        self._snapshot_size = self._file.size

    def _shorten(self) -> None:
        """What was written is in the journal already: where it cannot be rewritten, it goes on as it is."""
        try:
            self._rewrite()
        except OSError as error:
            log.warning("the metadata store %s cannot be rewritten and grows on: %s", self._path, error)
            # Either the old file or the new one, and both hold the same.
            self._file = self._files.open(self._path)
            self._snapshot_size = self._file.size

    async def multi(self, writes: Sequence[Write]) -> None:
        async with self._lock:
            entries = self._check(writes)
            if not entries:
                return
            assert self._file is not None, "load() comes first"
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._persist, _encode_line(entries))
            for path, data in entries:
                self._apply(path, data)
            if self._file.size > _REWRITE_AT + 2 * self._snapshot_size:
                await loop.run_in_executor(None, self._shorten)

    def _persist(self, line: bytes) -> None:
        assert self._file is not None
        before = self._file.size
        self._file.append([line])
        try:
            self._file.sync()
        except OSError:
            # Refused, so it must not come back at the next start either.
            self._file.truncate(before)
            raise

    def _check(self, writes: Sequence[Write]) -> list[tuple[str, bytes | None]]:
        """What the writes change; raises before anything is changed."""
        made: set[str] = set()
        entries: list[tuple[str, bytes | None]] = []
        for write in writes:
            exists = write.path in self._nodes or write.path in made
            if isinstance(write, Check):
                self._check_version(write)
            elif isinstance(write, Create):
                if exists:
                    raise NodeExists(write.path)
                made.add(write.path)
                entries.append((write.path, write.data))
            elif isinstance(write, Put):
                made.add(write.path)
                entries.append((write.path, write.data))
            elif isinstance(write, Delete):
                entries.append((write.path, None))
        return entries

    def _check_version(self, write: Check) -> None:
        node = self._nodes.get(write.path)
        if node is None:
            raise NoNode(write.path)
        if write.version not in (ANY_VERSION, node[1]):
            raise BadVersion(write.path)

    async def close(self) -> None:
        async with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _encode_line(entries: list[tuple[str, bytes | None]]) -> bytes:
    rows = [[path, None if data is None else _text(data)] for path, data in entries]
    body = json.dumps(rows, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _decode_line(line: bytes) -> list[tuple[str, bytes | None]] | None:
    """The entries, or None where the line is damaged."""
    checksum, _, body = line.partition(b" ")
    if len(checksum) != 8 or b"%08x" % zlib.crc32(body) != checksum:
        return None
    return [(path, None if text is None else _data(text)) for path, text in json.loads(body)]


def _is_torn(line: bytes, after: list[bytes]) -> bool:
    """Whether a damaged line is the trace of a write that a crash ended: it is the last one, and lacks its newline or has
    zeros where a page did not reach the disk. JSON has none."""
    return not after or (after == [b""] and b"\x00" in line)


def _text(data: bytes) -> str:
    """Nodes are JSON and stay readable in the file; anything else is kept in base64."""
    try:
        return "=" + data.decode()
    except UnicodeDecodeError:
        return "#" + base64.b64encode(data).decode()


def _data(text: str) -> bytes:
    return text[1:].encode() if text[0] == "=" else base64.b64decode(text[1:])
