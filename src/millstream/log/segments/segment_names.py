"""The names of the files of a segment."""

from __future__ import annotations

import os

from millstream.log.directories import file_names
from millstream.ports.files import Files


class SegmentNames:
    """The files of one base offset. `suffix` is empty except while files are swapped or deleted."""

    __slots__ = ("base_offset", "directory", "suffix")

    def __init__(self, directory: str, base_offset: int) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.suffix = ""

    def path(self, kind: str) -> str:
        return os.path.join(
            self.directory, file_names.segment_name(self.base_offset) + kind + self.suffix
        )

    def paths(self) -> list[str]:
        """Return the path of the .log file, then those of the indexes."""
        return [self.path(kind) for kind in file_names.SEGMENT_FILES]

    def rename(self, files: Files, suffix: str) -> None:
        """Give all files another suffix.

        Indexes that do not exist are skipped. May run again after a failure.
        """
        old = self.suffix
        stem = os.path.join(self.directory, file_names.segment_name(self.base_offset))
        # The .log first: indexes without one are removed at the next start.
        for kind in file_names.SEGMENT_FILES:
            try:
                files.rename(stem + kind + old, stem + kind + suffix)
            except FileNotFoundError:
                if kind == file_names.LOG and not files.exists(stem + kind + suffix):
                    raise
        self.suffix = suffix

    def __repr__(self) -> str:
        return f"Segment({self.path(file_names.LOG)})"
