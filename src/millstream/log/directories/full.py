"""Data directories whose disk is full.

A nearly full disk takes small writes and rejects large ones. So one rejected write marks a
directory, and only several successful probes in a row, with some space to spare, clear it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from typing import Final

from millstream.ports.files import Files

logger = logging.getLogger("millstream.log.full_directories")

PROBE: Final = "space.probe"
_PROBE_BYTES: Final = 64 << 10
_PROBES: Final = 3
_SPARE_BYTES: Final = 64 << 20
_SPARE_SHARE: Final = 50  # of a small disk, this fraction is enough


class FullDirectories:
    """The directories that are full now. For the loop's thread, except `has_space`."""

    def __init__(self, files: Files, on_change: Callable[[], None] = lambda: None) -> None:
        self._files = files
        self._on_change = on_change
        self._probes: dict[str, int] = {}  # successful ones in a row

    @property
    def paths(self) -> Collection[str]:
        return self._probes.keys()

    def write_rejected(self, path: str) -> None:
        """Record that a write failed for lack of space."""
        new = path not in self._probes
        self._probes[path] = 0
        if new:
            logger.warning("the data directory %s is full", path)
            self._on_change()

    def probed(self, path: str, *, space: bool) -> None:
        """Record the outcome of a probe."""
        if path not in self._probes:
            return
        self._probes[path] = self._probes[path] + 1 if space else 0
        if self._probes[path] >= _PROBES:
            self.forget(path)
            logger.info("the data directory %s has space again", path)

    def forget(self, path: str) -> None:
        """Remove a directory that has space again, or is offline."""
        if self._probes.pop(path, None) is not None:
            self._on_change()

    def has_space(self, path: str) -> bool:
        """Return whether the disk takes writes, with space to spare. Waits for the disk."""
        probe = os.path.join(path, PROBE)
        try:
            total, usable = self._files.space(path)
            if usable < min(_SPARE_BYTES, total // _SPARE_SHARE):
                return False
            try:
                self._files.write_bytes(probe, bytes(_PROBE_BYTES))
            finally:
                if self._files.exists(probe):
                    self._files.unlink(probe)
        except OSError:
            return False
        return True
