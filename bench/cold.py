"""Makes segment files cold: written back to the disk, then dropped from the page cache."""

import os
from pathlib import Path

PAGE = 4096
RWF_NOWAIT = getattr(os, "RWF_NOWAIT", None)


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
