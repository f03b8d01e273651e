"""Truncations, and swaps of compacted segments, which a full disk must not leave half done.

They take several steps: segments go, a file is shortened, indexes are written, the producers are
read again. If the disk fails in between, files and memory no longer agree, and the next append
would follow a gap. So the log rejects everything until the change is complete; housekeeping retries
it.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.core.errors import ApiError
from millstream.log.cleaner.swap import stage_swap
from millstream.log.errors import StorageError
from millstream.log.producers.replay import rebuild_producers
from millstream.log.state import LogState


class SegmentChange:
    """A change of the segments that may run again from its start, however far it came."""

    action = "cannot truncate"

    def __init__(self, log: LogState) -> None:
        self._log = log
        self.reason: StorageError | None = None  # why it is unfinished

    def run(self) -> None:
        """Apply the change.

        If the disk fails, raise StorageError and let the log reject everything.
        """
        log = self._log
        if log.failed is not None:
            raise log.failed
        try:
            self._apply()
        except (OSError, ApiError) as error:
            self.reason = self._reason(error)
            # Else the directory is offline by now, or a change inside this one is noted already.
            if log.failed is None:
                log.failed = self.reason
                log.unfinished = self
                log.host.truncation_unfinished(log)
            raise self.reason from error

    def _apply(self) -> None:
        raise NotImplementedError

    def _reason(self, error: OSError | ApiError) -> StorageError:
        log = self._log
        if isinstance(error, StorageError):
            return error
        if isinstance(error, OSError):
            return log.failure(self.action, error)
        # A damaged batch: the state of its producers would be less than what is in the log.
        damage = StorageError(log.log_dir, f"{self.action} {log.tp}: {error.message}")
        damage.damaged = True
        log.host.storage_failed(log, damage)
        return damage

    def _lower_offsets(self, offset: int, log_start: int | None = None) -> None:
        log = self._log
        log.flushes.interrupt()
        log.recovery_point = min(log.recovery_point, offset)
        log.cleaned_offset = min(log.cleaned_offset, offset)
        if log_start is not None:
            log.recovery_point, log.log_start_offset = offset, log_start
        log.log_start_offset = min(log.log_start_offset, offset)
        log.set_flush_at()
        log.log_end_offset = offset  # from now on, so that no reader relies on what is about to go
        log.high_watermark = min(log.high_watermark, offset)
        log.epochs.truncate_end(offset)
        log.host.before_truncation(log, offset, everything=log_start is not None)

    def _continue_at(self, offset: int, now_ms: int) -> None:
        log, segment_list = self._log, self._log.segment_list
        log.flushes.begin_segment(segment_list.active.size)
        segment_list.snapshots = rebuild_producers(
            log.files, log.directory, segment_list.segments, segment_list.snapshots, log.producer_state,
            end=offset, expired_before_ms=now_ms - log.producer_expiration_ms,
        )  # fmt: skip
        log.producer_state.on_high_watermark(log.high_watermark)


class Truncation(SegmentChange):
    """Drops everything at or after an offset. A batch that holds the offset goes whole."""

    def __init__(self, log: LogState, offset: int, now_ms: int) -> None:
        super().__init__(log)
        self._offset = offset
        self._now_ms = now_ms

    def _apply(self) -> None:
        log, offset = self._log, self._offset
        end = log.segment_list.end_if_truncated(offset)
        if end is None or end < log.log_start_offset:
            # Nothing that can be read is left.
            truncate_fully(log, min(offset, log.log_start_offset), None, self._now_ms)
        else:
            _PartialTruncation(log, offset, end, self._now_ms).run()


class _PartialTruncation(SegmentChange):
    """A truncation that leaves records: the log ends with the last batch before the offset."""

    def __init__(self, log: LogState, offset: int, end: int, now_ms: int) -> None:
        super().__init__(log)
        self._offset = offset
        self._end = end
        self._now_ms = now_ms

    def _apply(self) -> None:
        self._lower_offsets(self._end)
        self._log.segment_list.truncate(self._offset, self._end)
        self._continue_at(self._end, self._now_ms)


class _FullTruncation(SegmentChange):
    """Drops everything; the log continues at an offset."""

    def __init__(self, log: LogState, offset: int, log_start: int | None, now_ms: int) -> None:
        super().__init__(log)
        self._offset = offset
        self._log_start = offset if log_start is None else log_start
        self._now_ms = now_ms

    def _apply(self) -> None:
        self._lower_offsets(self._offset, self._log_start)
        self._log.epochs.clear()
        self._log.segment_list.start_over(self._offset, self._now_ms)
        self._continue_at(self._offset, self._now_ms)


class SegmentSwap(SegmentChange):
    """Puts cleaned segments (`.cleaned`, or `.swap` after `stage_swap`) in the place of old ones.

    Half done, it would remove old files that are still read, and the next start would put new ones
    in the place of whatever exists by then.
    """

    action = "cannot swap in compacted segments of"

    def __init__(self, log: LogState, new: Sequence[int], old: set[int]) -> None:
        super().__init__(log)
        self._new = new
        self._old = old

    def _apply(self) -> None:
        log, checksum_file = self._log, self._log.segment_list.checksums.file
        checksum_file.suspend()
        stage_swap(log.files, log.directory, self._new, checksum_file)
        log.segment_list.swap(self._new, self._old)
        log.host.flush_wanted(log)


def truncate_fully(log: LogState, offset: int, log_start: int | None, now_ms: int) -> None:
    """Drop everything; the log continues at the offset. Waits for the disk."""
    log.host.check_truncation(log, offset)
    _FullTruncation(log, offset, log_start, now_ms).run()


def finish(log: LogState) -> bool:
    """Complete the change that the disk interrupted. Return whether there was one.

    Raises StorageError if the disk rejects it again.
    """
    change = log.unfinished
    if change is None or log.failed is not change.reason:  # offline for another reason
        return False
    log.failed = log.unfinished = None
    change.run()
    return True
