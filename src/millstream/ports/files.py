"""The disk as the log sees it: a Protocol, its implementation, and slices of files for readers.

All disk access of the log goes through `Files`, so that a simulated disk can replace it and lose
unsynced data. A `File` owns a descriptor that is closed with the last reference: a slow reader may
hold a `FileSlice` of a segment that was deleted long ago. Appends write at the known end of the
file. Bytes that a failed write left behind are truncated, or else overwritten by the next append.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

Buffer = bytes | bytearray | memoryview

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_RWF_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
_NO_NOWAIT = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_IOV_MAX = 1024


class File(Protocol):
    """An open append-only file with random reads. `size` counts successfully appended bytes."""

    path: str
    size: int

    def append(self, views: Sequence[Buffer]) -> None:
        """Write all views at the end. On failure, truncate to the old size and raise OSError."""

    def pread(self, position: int, n: int) -> bytes:
        """Read up to n bytes (fewer only at the end of the file); may wait for the disk."""

    def pread_nowait(self, position: int, n: int) -> bytes | bytearray | None:
        """Like pread, but return None if some of the bytes are not in memory."""

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make the contents durable; blocks, so call it in a thread."""

    def start_writeback(self, position: int, n: int) -> None:
        """Hint to the kernel to start writing these bytes; may block, so call it in a thread."""

    def close(self) -> None: ...


class Lock(Protocol):
    """A held lock on a directory."""

    def release(self) -> None: ...


@runtime_checkable
class Files(Protocol):
    """The operations on paths.

    A created, renamed or removed name is durable only after `sync_dir` of its parent directory.
    """

    def open(self, path: str, *, create: bool = False) -> File: ...
    def listdir(self, path: str) -> list[str]: ...
    def exists(self, path: str) -> bool: ...
    def is_dir(self, path: str) -> bool: ...
    def size(self, path: str) -> int: ...
    def modified_ms(self, path: str) -> int: ...
    def set_modified_ms(self, path: str, modified_ms: int) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def rmtree(self, path: str) -> None: ...
    def makedirs(self, path: str) -> None: ...
    def sync_dir(self, path: str) -> None: ...
    def sync_file(self, path: str) -> None: ...
    def sync_all(self, path: str) -> bool: ...
    def read_bytes(self, path: str) -> bytes: ...
    def read_end(self, path: str, n: int) -> bytes: ...
    def write_bytes(self, path: str, data: Buffer) -> None: ...
    def write_atomic(self, path: str, data: Buffer) -> None: ...
    def lock(self, path: str) -> Lock | None: ...
    def space(self, path: str) -> tuple[int, int]: ...
    def free_bytes(self, path: str) -> int: ...
    def boot_id(self) -> str: ...


class FileSlice:
    """A range of a file, for a response that is sent later. It keeps the file open."""

    __slots__ = ("file", "length", "position")

    def __init__(self, file: File, position: int, length: int) -> None:
        self.file = file
        self.position = position
        self.length = length

    def read_nowait(self, skip: int = 0, n: int | None = None) -> bytes | bytearray | None:
        """Read bytes of the slice, or return None if that would wait for the disk."""
        return self.file.pread_nowait(self.position + skip, self._count(skip, n))

    def read(self, skip: int = 0, n: int | None = None) -> bytes:
        return self.file.pread(self.position + skip, self._count(skip, n))

    def _count(self, skip: int, n: int | None) -> int:
        left = self.length - skip
        return left if n is None or n > left else n

    def __repr__(self) -> str:
        return f"FileSlice({self.file.path}, {self.position}, {self.length})"


class RealFile:
    """A file of the operating system."""

    __slots__ = ("__weakref__", "_fd", "path", "size")

    # Shared by all files; disabled by the first file system that does not support it.
    nowait_works = _RWF_NOWAIT != 0

    def __init__(self, path: str, *, create: bool = False) -> None:
        self._fd = -1
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self._fd = os.open(path, flags, 0o644)
        self.path = path
        self.size = os.fstat(self._fd).st_size

    def fileno(self) -> int:
        """Return the descriptor, for sendfile."""
        return self._fd

    def append(self, views: Sequence[Buffer]) -> None:
        total = sum(map(len, views))
        try:
            written = os.pwritev(self._fd, views[:_IOV_MAX], self.size)
            if written != total:
                self._write_rest(b"".join(views), written)
        except OSError:
            self._undo_append()
            raise
        self.size += total

    def _write_rest(self, data: bytes, written: int) -> None:
        view = memoryview(data)
        while written < len(data):
            written += os.pwrite(self._fd, view[written:], self.size + written)

    def _undo_append(self) -> None:
        try:
            os.ftruncate(self._fd, self.size)
        except OSError:
            # The caller raises the error of the append. The next append overwrites these bytes.
            pass

    def pread(self, position: int, n: int) -> bytes:
        return os.pread(self._fd, n, position)

    def pread_nowait(self, position: int, n: int) -> bytes | bytearray | None:
        if not RealFile.nowait_works:
            return os.pread(self._fd, n, position)
        buffer = bytearray(n)
        try:
            count = os.preadv(self._fd, (buffer,), position, _RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _NO_NOWAIT:
                raise
            RealFile.nowait_works = False
            return os.pread(self._fd, n, position)
        if count < n:
            if position + count < self.size:
                return None
            del buffer[count:]
        return buffer

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self.size = size

    def sync(self) -> None:
        _sync_fd(self._fd)

    def start_writeback(self, position: int, n: int) -> None:
        _sync_file_range(self._fd, position, n)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RealFile({self.path}, size={self.size})"


class RealLock:
    """An exclusive lock on a file.

    A POSIX lock, which Apache Kafka also takes, and a flock, which works within this process too.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealFiles:
    """The file system of this machine."""

    def open(self, path: str, *, create: bool = False) -> File:
        return RealFile(path, create=create)

    def listdir(self, path: str) -> list[str]:
        return os.listdir(path)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rmtree(self, path: str) -> None:
        shutil.rmtree(path)

    def makedirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_file(self, path: str) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            _sync_fd(fd)
        finally:
            os.close(fd)

    def sync_all(self, path: str) -> bool:
        """Sync the whole file system of a path, which is faster than syncing thousands of files.

        Return False if the platform has no such call.
        """
        libc = _load_libc()
        if not hasattr(libc, "syncfs"):
            return False
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if libc.syncfs(fd) != 0:
                raise OSError(errno.EIO, "cannot sync the file system", path)
        finally:
            os.close(fd)
        return True

    def read_bytes(self, path: str) -> bytes:
        with open(path, "rb", buffering=0) as file:
            return file.readall()

    def read_end(self, path: str, n: int) -> bytes:
        """Return the last n bytes, or all of a shorter file."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, n, max(0, os.fstat(fd).st_size - n))
        finally:
            os.close(fd)

    def write_bytes(self, path: str, data: Buffer) -> None:
        """Replace the contents, not durably and not atomically."""
        with open(path, "wb", buffering=0) as file:
            _write_all(file.fileno(), data)

    def write_atomic(self, path: str, data: Buffer) -> None:
        """Replace the contents; a crash leaves either the old or the new contents."""
        temporary = path + ".tmp"
        with open(temporary, "wb", buffering=0) as file:
            _write_all(file.fileno(), data)
            _sync_fd(file.fileno())
        os.rename(temporary, path)
        self.sync_dir(os.path.dirname(path) or ".")

    def lock(self, path: str) -> Lock | None:
        """Take the lock, or return None if it is held elsewhere."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return None
            raise
        return RealLock(fd)

    def space(self, path: str) -> tuple[int, int]:
        """Return (total, usable) bytes of the file system."""
        stat = os.statvfs(path)
        return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize

    def free_bytes(self, path: str) -> int:
        return self.space(path)[1]

    def boot_id(self) -> str:
        """Return an id that changes at every boot of the machine, or "" if unknown.

        A boot may lose data that was written but not synced before it.
        """
        try:
            with open(_BOOT_ID) as file:
                return file.read().strip()
        except OSError:
            return ""


def _write_all(fd: int, data: Buffer) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


if sys.platform == "darwin":

    def _sync_fd(fd: int) -> None:
        # On macOS, fsync alone leaves data in the drive's cache.
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)

else:

    def _sync_fd(fd: int) -> None:
        os.fdatasync(fd)


_libc: Any = None


def _load_libc() -> Any:
    """Return the C library on Linux, for calls that Python lacks.

    It is loaded on first use, because importing ctypes is slow.
    """
    global _libc
    if _libc is None and sys.platform.startswith("linux"):
        import ctypes

        _libc = ctypes.CDLL(None, use_errno=True)
        if hasattr(_libc, "sync_file_range"):
            _libc.sync_file_range.argtypes = (
                ctypes.c_int,
                ctypes.c_int64,
                ctypes.c_int64,
                ctypes.c_uint,
            )
    return _libc


def _sync_file_range(fd: int, position: int, n: int) -> None:
    """Start writeback on Linux; do nothing on other systems."""
    libc = _load_libc()
    if hasattr(libc, "sync_file_range"):
        # 2 is SYNC_FILE_RANGE_WRITE. It is only a hint, so errors are ignored.
        libc.sync_file_range(fd, position, n, 2)
