"""Replaces segments by compacted ones, so that a crash at any step loses nothing.

Compaction writes `<base>.*.cleaned` and syncs them. All are renamed to `.swap`, highest base first,
and the directory is synced: from then on the new files count. Then the old files are removed, and
`.swap` files get their final names. After a crash, `.cleaned` files are dropped, and so are `.swap`
files at or above the lowest of them (the first step was not finished). Other `.swap` files are
complete: the segments that they replace are removed first.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Final

from millstream.log.cleaner.segment_writer import scan_batches
from millstream.log.directories import file_names
from millstream.log.errors import CorruptLog
from millstream.log.integrity.checksums import ChecksumFile
from millstream.log.segments.open_files import OpenFiles
from millstream.log.segments.segment import Segment
from millstream.ports.files import Files
from millstream.wire.records.batch import CorruptBatch

_READ_BYTES: Final = 1 << 20

logger = logging.getLogger("millstream.log.swapping")


def stage_swap(
    files: Files, directory: str, bases: Iterable[int], checksums: ChecksumFile | None = None
) -> None:
    """Rename `.cleaned` to `.swap`, durably. Waits for the disk.

    May run in a thread, ahead of the swap itself. `checksums` of the old segments, which are
    suspended, are removed first.
    """
    staged = False
    if checksums is not None:
        checksums.remove(directory)
    for base in sorted(bases, reverse=True):
        stem = os.path.join(directory, file_names.segment_name(base))
        for kind in file_names.SEGMENT_FILES:
            try:
                files.rename(stem + kind + file_names.CLEANED, stem + kind + file_names.SWAP)
                staged = True
            except FileNotFoundError:
                pass  # no such index, or already staged
    if staged:
        files.sync_dir(directory)


def finish_interrupted(
    files: Files, pool: OpenFiles, directory: str, names: list[str]
) -> list[str]:
    """Clean up after a crash. `names` are all files of the directory; return those that remain."""
    if not any(
        name.endswith((file_names.DELETED, file_names.CLEANED, file_names.SWAP)) for name in names
    ):
        return names
    cleaned = [name for name in names if name.endswith(file_names.CLEANED)]
    unfinished = min((file_names.offset_of(name) or 0 for name in cleaned), default=None)
    swaps = [name for name in names if name.endswith(file_names.SWAP)]
    incomplete = [
        n for n in swaps if unfinished is not None and (file_names.offset_of(n) or 0) >= unfinished
    ]
    for name in incomplete + cleaned:
        logger.info("%s: removing %s, left by a compaction that was not finished", directory, name)
        files.unlink(os.path.join(directory, name))
    swaps = [name for name in swaps if name not in incomplete]
    if swaps:
        _complete(files, pool, directory, swaps)
    for name in names:
        if name.endswith(file_names.DELETED):
            files.unlink(os.path.join(directory, name))
    files.sync_dir(directory)
    return files.listdir(directory)


def _complete(files: Files, pool: OpenFiles, directory: str, swaps: list[str]) -> None:
    low, high = _replaced_range(files, pool, directory, swaps)
    for name in files.listdir(directory):
        base = file_names.offset_of(name)
        if base is None or name.endswith(file_names.SWAP) or not low <= base < high:
            continue
        if name.endswith(file_names.SEGMENT_FILES):
            logger.info("%s: removing %s, which compaction had replaced", directory, name)
            files.unlink(os.path.join(directory, name))
    for name in sorted(swaps):
        logger.info("%s: completing the swap of %s", directory, name)
        path = os.path.join(directory, name)
        files.rename(path, path.removesuffix(file_names.SWAP))


def _replaced_range(
    files: Files, pool: OpenFiles, directory: str, swaps: list[str]
) -> tuple[int, int]:
    """Return the offsets that the new segments cover.

    They are verified, because the segments that they replace are about to be removed.
    """
    low, high = 1 << 63, -1
    for name in swaps:
        if not name.endswith(file_names.LOG + file_names.SWAP):
            continue
        base = file_names.offset_of(name) or 0
        segment = Segment(files, pool, directory, base)
        segment.names.suffix = file_names.SWAP
        try:
            end = _verified_end(segment)
        finally:
            segment.close()
        low, high = min(low, base), max(high, end)
    return low, high


def _verified_end(segment: Segment) -> int:
    path, end = segment.path(file_names.LOG), segment.base_offset
    try:
        for header, _batch in scan_batches(segment.file(), 0, segment.size, _READ_BYTES):
            if header.base_offset < end:
                raise CorruptBatch(f"a batch at offset {header.base_offset} after offset {end}")
            end = header.next_offset
    except CorruptBatch as error:
        raise CorruptLog(
            path,
            f"this segment of an interrupted compaction is damaged: {error.reason}. Nothing was"
            " removed. If the segments that it replaces exist (some names end with"
            f" {file_names.DELETED}), remove the {file_names.SWAP} files",
        ) from error
    return end
