"""The page cache around a measurement: memory kept ready for writing, segment files made cold for reading.

On a virtual machine a page that the guest has not used for seconds may have been given back to the host (free page
reporting), and the first write to it costs ten to fifty times the copy. That would be charged to every peer that
writes files and to none that does not. A broker in service recycles pages of its own; here the bench holds some.
"""

import os
from pathlib import Path

import psutil  # type: ignore[import-untyped]

PAGE = 4096
CHUNK = 1 << 20
MOST_OF_AVAILABLE = 0.25
RWF_NOWAIT = getattr(os, "RWF_NOWAIT", None)


class Ballast:
    """Page cache that is in use until a measurement needs it: what was just released is what the kernel hands out
    next. It must be the pages of a file: anonymous memory let go of was seen not to become page cache at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd: int | None = None
        self._chunks = 0

    def hold(self, megabytes: float) -> None:
        """As much as asked, within reason for this machine."""
        most = int(psutil.virtual_memory().available * MOST_OF_AVAILABLE)
        self._chunks = min(int(megabytes * 1e6), most) // CHUNK
        self.restore()

    def restore(self) -> None:
        """Take back what others have just let go of, before the host gets it."""
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

    def forget(self) -> None:
        """Nothing more to be kept: the scenario is over."""
        self._chunks = 0
        self.release()


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
