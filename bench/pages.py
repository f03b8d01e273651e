"""The page cache before a measurement: memory made ready for writing, segment files made cold for reading.

On a virtual machine a page that the guest has not used for seconds may have been given back to the host (free page
reporting), and the first write to it costs ten times the copy. That would be charged to every peer that writes files
and to none that does not. A broker in service recycles pages of its own, so the pages are touched first, for all peers.
"""

import os
from pathlib import Path

PAGE = 4096
CHUNK = 1 << 20
RWF_NOWAIT = getattr(os, "RWF_NOWAIT", None)


def touch(folder: Path, megabytes: float) -> None:
    """Write as much to a file and remove it at once: the pages that it had are the next ones to be used."""
    path, block = folder / "touched", bytes(CHUNK)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.unlink(path)
        for _ in range(int(megabytes * 1e6 / CHUNK) + 1):
            os.write(fd, block)
    finally:
        os.close(fd)


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
