"""Truncations, and swaps of compacted segments, that a full disk must not leave half done.

Cutting a log takes several steps: segments go, a file is shortened, indexes are written, producers found anew. Where the disk fails in
between, files and memory no longer agree, and whatever was appended next would lie behind a gap. So the log refuses everything until
the cut is done; housekeeping tries it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from millstream.core.errors import ApiError
from millstream.log.errors import StorageError

if TYPE_CHECKING:
    from millstream.log.partition_log import PartitionLog


class Unfinished(NamedTuple):
    """A cut that may be done again from its beginning, however far it came, and why it did not come to its end."""

    cut: Callable[[], None]
    what: str
    reason: StorageError


def do(log: PartitionLog, cut: Callable[[], None], *, what: str = "cannot truncate") -> None:
    """Raises StorageError, and the log refuses everything, where the cut does not come to its end."""
    if log.failed is not None:
        raise log.failed
    try:
        cut()
    except (OSError, ApiError) as error:
        reason = _reason(log, what, error)
        # Else the directory is offline by now, or a cut that this one consists of is noted already.
        if log.failed is None:
            log.failed = reason
            log.unfinished_cut = Unfinished(cut, what, reason)
            log.host.cut_is_unfinished(log)
        raise reason from error


def _reason(log: PartitionLog, what: str, error: OSError | ApiError) -> StorageError:
    if isinstance(error, StorageError):
        return error
    if isinstance(error, OSError):
        return log.failure(what, error)
    # A damaged batch: what is known of its producers would be less than what is in the log.
    damage = StorageError(log.log_dir, f"{what} {log.tp}: {error.message}")
    damage.damaged = True
    log.host.storage_failed(log, damage)
    return damage


def finish(log: PartitionLog) -> bool:
    """What is left of the last one, and whether anything was; raises StorageError where the disk does not take it yet."""
    left = log.unfinished_cut
    if left is None or log.failed is not left.reason:  # offline for another reason
        return False
    log.failed = log.unfinished_cut = None
    do(log, left.cut, what=left.what)
    return True
