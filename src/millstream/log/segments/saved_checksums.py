"""The file `index-checksums` of a log, and whether it is up to date."""

from __future__ import annotations

from millstream.log.directories import file_names
from millstream.log.integrity.checksums import ChecksumFile, Checksums, SegmentSums, Small, Sum
from millstream.log.segments.segment import Segment
from millstream.ports.files import Files


class SavedChecksums:
    """Remembers the checksums that were written last."""

    __slots__ = ("_saved", "file")

    def __init__(self, files: Files) -> None:
        self.file = ChecksumFile(files)
        self._saved: tuple[object, SegmentSums | None] | None = None

    def unsaved(
        self, segments: list[Segment], generation: int, small: Small, *, closing: bool
    ) -> Checksums | None:
        """Return the contents that the file should have, or None if it has them.

        `small` has the sums of the files beside the segments. The offset and time index of the
        active segment grow all the time: until the log is closed, the part flushed with the last
        change of another file is enough.
        """
        if self.file.suspended:
            return None
        active = segments[-1]
        active_sums = active.index_files.sums
        sums = {
            segment.base_offset: sums for segment in segments if (sums := _sums(segment, active))
        }
        aborted = active_sums and active_sums[file_names.TRANSACTION_INDEX]
        closed = {
            base: of_segment for base, of_segment in sums.items() if base != active.base_offset
        }
        key = (generation, self.file.version, active.base_offset, closed, aborted, small)
        saved = self._saved
        if saved is not None and saved[0] == key and (not closing or saved[1] == active_sums):
            return None
        self._saved = (key, active_sums)
        return Checksums(sums, small)

    def not_saved(self) -> None:
        """Note that the contents of `unsaved` did not reach the file, or no longer apply."""
        self._saved = None

    def resume(self) -> None:
        """Write the file again, after a swap of segments."""
        self._saved = None
        self.file.resume()


def _sums(segment: Segment, active: Segment) -> SegmentSums | None:
    known = segment.index_files.sums
    if known is None or file_names.LOG in known:
        return known
    sums = {file_names.LOG: Sum(segment.size, 0), **known}
    if segment is not active:
        segment.index_files.sums = sums
    return sums
