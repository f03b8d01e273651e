"""How the log fails: a disk that failed, and a log whose flushed data is damaged."""

from __future__ import annotations

import errno

from millstream.core.errors import ApiError, ErrorCode

_FULL = (errno.ENOSPC, errno.EDQUOT)


class StorageError(ApiError):
    """The disk failed under a partition. A full disk (`full`) refuses the append but leaves the directory in service;
    a file that somebody removed (`missing`) costs only its partition."""

    def __init__(self, directory: str, what: str, cause: OSError | None = None) -> None:
        reason = f"{what} in {directory}: {cause}" if cause else f"{what} in {directory}"
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, reason)
        self.directory = directory
        self.full = cause is not None and cause.errno in _FULL
        self.missing = isinstance(cause, FileNotFoundError)


class CorruptLog(Exception):
    """Data that was flushed is damaged or missing: the partition stays offline until somebody looks at it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class CorruptFile(Exception):
    """A checkpoint, index or snapshot that cannot be read; all of these can be rebuilt."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")


class ColdRead(Exception):
    """The read would wait for the disk: do it again in a thread, with may_block=True."""
