"""Rebuilds produced batches: small ones at once, large ones in a child process."""

from __future__ import annotations

from dataclasses import replace

from millstream.core.errors import ApiError, ErrorCode
from millstream.ports.workers import JobRunner, WorkerBusy, WorkerDied
from millstream.wire.records.convert import RebuildSpec, rebuild
from millstream.wire.records.layout import CODEC_MASK, FLAGS_AT, MAGIC, MAGIC_AT

# Limits of what the event loop decodes itself: about a millisecond of work.
_INLINE_BYTES = 64 * 1024
_INLINE_COMPRESSED_BYTES = 16 * 1024
_INLINE_DECOMPRESSED_BYTES = 256 * 1024


def rebuild_inline(records: memoryview, spec: RebuildSpec) -> memoryview | None:
    """Return the rebuilt records, or None if that is too much work for the event loop."""
    whole = len(records) > FLAGS_AT and records[MAGIC_AT] == MAGIC
    plain = whole and records[FLAGS_AT] & CODEC_MASK == 0 and spec.target_codec in (None, 0)
    if len(records) > (_INLINE_BYTES if plain else _INLINE_COMPRESSED_BYTES):
        return None
    try:
        limited = replace(spec, max_decompressed_bytes=_INLINE_DECOMPRESSED_BYTES)
        rebuilt = rebuild(bytes(records), limited)
    except ApiError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            return None
        raise
    return memoryview(bytearray(rebuilt))


async def rebuild_in_worker(
    worker: JobRunner, records: memoryview, spec: RebuildSpec
) -> memoryview:
    """Rebuild in the child process. If that is overloaded or died, the client has to retry."""
    try:
        rebuilt: memoryview = await worker.run(
            "millstream.wire.records.convert:rebuild", records, spec
        )
    except (WorkerBusy, WorkerDied) as error:
        raise ApiError(
            ErrorCode.REQUEST_TIMED_OUT, f"the conversion process failed: {error}"
        ) from None
    return rebuilt
