"""How the log fails: a disk that failed, and a log whose flushed data is damaged."""

from __future__ import annotations

import errno

from millstream.core.errors import ApiError, ErrorCode

_FULL = (errno.ENOSPC, errno.EDQUOT)
_TOO_MANY_OPEN = (errno.EMFILE, errno.ENFILE)


class DamagedIndex(OSError):
    """An index that does not match its checksum, and cannot be rebuilt while the log is in use."""


# What goes wrong with one file while the disk works.
_ONE_FILE = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, DamagedIndex)


def concerns_one_file(error: OSError) -> bool:
    """Whether the error says that a file is damaged, and not that the disk is."""
    return isinstance(error, _ONE_FILE)


class StorageError(ApiError):
    """The disk failed under a partition. Where it will work again (`passing`: a full disk, too many open files) the
    append is refused but the directory stays in service. A file that was removed, damaged or made unreadable
    (`damaged`) costs only its partition."""

    def __init__(self, directory: str, what: str, cause: OSError | None = None) -> None:
        reason = f"{what} in {directory}: {cause}" if cause else f"{what} in {directory}"
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, reason)
        self.directory = directory
        self.passing = cause is not None and cause.errno in (*_FULL, *_TOO_MANY_OPEN)
        self.full = cause is not None and cause.errno in _FULL
        self.damaged = isinstance(cause, _ONE_FILE)


def too_many_open(error: OSError) -> bool:
    """The limit of open files is reached, of the process or of the machine."""
    return error.errno in _TOO_MANY_OPEN


class DamagedBatch(ApiError):
    """A batch that must not be served: it fails its checksum, or is not where its offset belongs."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, f"{path} is corrupt at byte {position}: {reason}")
        self.path = path
        self.position = position


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
