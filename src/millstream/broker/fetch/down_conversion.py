"""Converts fetched batches to message sets of magic 0 or 1, for clients of before Kafka 0.11."""

from __future__ import annotations

import asyncio

from millstream.broker.net.responses import ResponsePart
from millstream.core.errors import ApiError, ErrorCode
from millstream.ports.files import FileSlice
from millstream.ports.workers import JobRunner, WorkerBusy, WorkerDied
from millstream.wire.fetch_response import PartitionData
from millstream.wire.records.convert import down_convert

# Limits of what the event loop converts itself: about a millisecond of work.
_INLINE_BYTES = 16 * 1024
_INLINE_DECOMPRESSED_BYTES = 256 * 1024


def magic_of_version(version: int) -> int:
    """Return the newest message format that an old Fetch version can carry."""
    return 0 if version < 2 else 1


async def convert_for_old_client(
    worker: JobRunner,
    data: PartitionData[ResponsePart],
    records: FileSlice,
    *,
    first_offset: int,
    magic: int,
    max_decompressed_bytes: int,
) -> PartitionData[ResponsePart]:
    """Return the partition with converted records, or with the error that prevented it."""
    batches = await asyncio.get_running_loop().run_in_executor(None, records.read)
    try:
        converted = _convert_inline(batches, magic, first_offset)
        if converted is None:
            job = (batches, magic, first_offset, max_decompressed_bytes)
            converted = await worker.run(
                "millstream.broker.fetch.down_conversion:convert_job", *job
            )
    except ApiError as error:
        return data._replace(error_code=error.code, records=None, size=0)
    except (WorkerBusy, WorkerDied):
        return data._replace(error_code=ErrorCode.REQUEST_TIMED_OUT, records=None, size=0)
    return data._replace(records=converted, size=len(converted))


def _convert_inline(batches: bytes, magic: int, first_offset: int) -> bytes | None:
    """Return the converted batches, or None if that is too much work for the event loop."""
    if len(batches) > _INLINE_BYTES:
        return None
    try:
        return convert_job(batches, magic, first_offset, _INLINE_DECOMPRESSED_BYTES)
    except ApiError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            return None
        raise


def convert_job(
    batches: bytes, magic: int, first_offset: int, max_decompressed_bytes: int
) -> bytes:
    """Convert batches; runs in the child process."""
    return down_convert(
        batches, magic, first_offset=first_offset, max_decompressed_bytes=max_decompressed_bytes
    )
