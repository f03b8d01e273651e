"""The page cache around a measurement: memory kept ready for writing, segments made cold for
reading.

On a virtual machine a page that the guest has not used for seconds may have been returned to the
host (free page reporting). The first write to it then costs ten to fifty times the copy. That would
be charged to every peer that writes files, and to no other. A broker in production reuses its
pages; here the bench keeps some in use.
"""

import os
from pathlib import Path

import psutil  # type: ignore[import-untyped]

PAGE = 4096
CHUNK = 1 << 20
MAX_SHARE_OF_AVAILABLE = 0.25
RWF_NOWAIT = getattr(os, "RWF_NOWAIT", None)


class Ballast:
    """Page cache that stays in use until a measurement needs it.

    The kernel hands out pages first that were just released. They must be pages of a file:
    anonymous memory was not reused as page cache at once after its release.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd: int | None = None
        self._chunks = 0

    def hold(self, megabytes: float) -> None:
        """Hold ``megabytes``, limited by the memory of this machine."""
        limit = int(psutil.virtual_memory().available * MAX_SHARE_OF_AVAILABLE)
        self._chunks = min(int(megabytes * 1e6), limit) // CHUNK
        self.restore()

    def restore(self) -> None:
        """Take back pages that others have just released, before the host gets them."""
        if self._fd is None and self._chunks:
            path, block = self._folder / "ballast", bytes(CHUNK)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.unlink(path)
            for _ in range(self._chunks):
                os.write(self._fd, block)

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def drop(self) -> None:
        """Hold nothing any more, at the end of a scenario."""
        self._chunks = 0
        self.release()


def drop_cached(folder: Path) -> float:
    """Evict every segment below the folder; return the share of probed pages that are cold."""
    cold = probed = 0
    for path in sorted(folder.rglob("*.log")):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            cold_pages, pages = _probe(fd)
            cold, probed = cold + cold_pages, probed + pages
        finally:
            os.close(fd)
    return cold / probed if probed else 0.0


def _probe(fd: int, samples: int = 16) -> tuple[int, int]:
    """Probe pages with RWF_NOWAIT, which fails instead of waiting for the disk."""
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
    except OSError:  # a file system without RWF_NOWAIT: unknown
        return False
