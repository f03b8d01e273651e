"""The errors of the log: a failed disk, and damaged flushed data."""

from __future__ import annotations

import errno

from millstream.core.errors import ApiError, ErrorCode

_FULL = (errno.ENOSPC, errno.EDQUOT)
_TOO_MANY_OPEN = (errno.EMFILE, errno.ENFILE)


class DamagedIndex(OSError):
    """An index that does not match its checksum, and cannot be rebuilt while the log is in use."""


# Errors of a single file while the disk works.
_ONE_FILE = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    DamagedIndex,
)


def concerns_one_file(error: OSError) -> bool:
    """Return whether a file is damaged, and not the disk."""
    return isinstance(error, _ONE_FILE)


class StorageError(ApiError):
    """The disk failed under a partition.

    If it will work again (`temporary`: a full disk, too many open files) the append is rejected but
    the directory stays in service. A file that was removed, damaged or made unreadable (`damaged`)
    takes only its partition offline.
    """

    def __init__(self, directory: str, action: str, cause: OSError | None = None) -> None:
        reason = f"{action} in {directory}: {cause}" if cause else f"{action} in {directory}"
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, reason)
        self.directory = directory
        self.temporary = cause is not None and cause.errno in (*_FULL, *_TOO_MANY_OPEN)
        self.full = cause is not None and cause.errno in _FULL
        self.damaged = isinstance(cause, _ONE_FILE)


def too_many_open(error: OSError) -> bool:
    """Return whether the limit of open files, of the process or the machine, is reached."""
    return error.errno in _TOO_MANY_OPEN


class DamagedBatch(ApiError):
    """A batch that must not be served: it fails its checksum, or its offset is wrong."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(
            ErrorCode.CORRUPT_MESSAGE, f"{path} is corrupt at byte {position}: {reason}"
        )
        self.path = path
        self.position = position


class CorruptLog(Exception):
    """Flushed data is damaged or missing. The partition stays offline until an operator acts."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class CorruptFile(Exception):
    """A checkpoint, index or snapshot that cannot be read. All of these can be rebuilt."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")


class ColdRead(Exception):
    """The read would wait for the disk: repeat it in a thread, with may_block=True."""
