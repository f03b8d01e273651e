"""The page cache around a measurement: memory kept ready for writing, segment files made cold for reading.

On a virtual machine a page that the guest has not used for seconds may have been given back to the host (free page
reporting), and the first write to it costs ten to fifty times the copy. That would be charged to every peer that
writes files and to none that does not. A broker in service recycles pages of its own; here the bench holds some.
"""

import mmap
import os
from pathlib import Path

import psutil  # type: ignore[import-untyped]

PAGE = 4096
CHUNK = 1 << 20
MOST_OF_AVAILABLE = 0.25
RWF_NOWAIT = getattr(os, "RWF_NOWAIT", None)


class Ballast:
    """Memory that is in use until a measurement needs it: what was just released is what the kernel hands out next."""

    def __init__(self) -> None:
        self._held: mmap.mmap | None = None
        self._size = 0

    def hold(self, megabytes: float) -> None:
        """At least as much as asked, within reason for this machine."""
        most = int(psutil.virtual_memory().available * MOST_OF_AVAILABLE)
        self._size = max(self._size, min(int(megabytes * 1e6), most) // CHUNK * CHUNK)
        self.restore()

    def restore(self) -> None:
        """Take back what others have just let go of, before the host gets it."""
        if self._size and (self._held is None or len(self._held) < self._size):
            self.release()
            self._held = mmap.mmap(-1, self._size)
            block = b"\1" * CHUNK
            for position in range(0, self._size, CHUNK):
                self._held[position : position + CHUNK] = block

    def release(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None


def drop_cached(folder: Path) -> float:
    """Drop every segment below the folder; returns the share of probed pages that are really cold (1.0 = all)."""
    cold = probed = 0
    for path in sorted(folder.rglob("*.log")):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            found, of = _probe(fd)
            cold, probed = cold + found, probed + of
        finally:
            os.close(fd)
    return cold / probed if probed else 0.0


def _probe(fd: int, samples: int = 16) -> tuple[int, int]:
    """Ask some pages with RWF_NOWAIT, which refuses to wait for the disk (and does not read ahead)."""
    size = os.fstat(fd).st_size
    if RWF_NOWAIT is None or size < PAGE:
        return 0, 0
    step = max(PAGE, size // samples // PAGE * PAGE)
    positions = range(0, size - PAGE, step)
    return sum(_is_cold(fd, position) for position in positions), len(positions)


def _is_cold(fd: int, position: int) -> bool:
    try:
        return os.preadv(fd, [bytearray(PAGE)], position, RWF_NOWAIT or 0) == 0
    except BlockingIOError:
        return True
    except OSError:  # a file system without RWF_NOWAIT cannot tell
        return False
