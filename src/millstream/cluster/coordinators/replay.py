"""Reads the log of an internal topic's partition into a coordinator shard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol

from millstream.cluster.replicas.partition import Partition
from millstream.core.decisions import CoordinatorRecord
from millstream.log.errors import DamagedBatch
from millstream.wire.records.batch import (
    CorruptBatch,
    crc_matches,
    parse_header,
    read_marker,
    read_records,
)

_CHUNK_BYTES = 1024 * 1024
_MAX_DECOMPRESSED = 256 * 1024 * 1024
# Maximum time that replay may hold the event loop.
_SLICE_S = 0.004


class DurableState(Protocol):
    """The part of a shard that its log determines."""

    def apply(self, record: CoordinatorRecord) -> None: ...
    def apply_transactional(self, record: CoordinatorRecord, producer_id: int) -> None: ...
    def apply_marker(self, producer_id: int, commit: bool) -> None: ...


class Codec(Protocol):
    """The format of a shard's records in the log."""

    def encode(self, record: CoordinatorRecord) -> tuple[bytes, bytes | None]: ...
    def decode(self, key: bytes, value: bytes | None) -> CoordinatorRecord | None: ...


async def replay(partition: Partition, shard: DurableState, codec: Codec, offset: int) -> int:
    """Apply the log from ``offset`` on; return the last offset.

    The log end is read last in the turn in which this returns: markers may be written during the
    replay.
    """
    loop = asyncio.get_running_loop()
    log = partition.online_log
    until = loop.time() + _SLICE_S
    while offset < (end := log.log_end_offset):
        batches, offset = await loop.run_in_executor(None, _read_chunk, partition, offset, end)
        for step in _steps(shard, codec, batches):
            step()
            if loop.time() > until:
                await asyncio.sleep(0)
                until = loop.time() + _SLICE_S
    return offset - 1


def _steps(shard: DurableState, codec: Codec, batches: list[bytes]) -> Iterator[Callable[[], None]]:
    for batch in batches:
        header = parse_header(batch)
        if header.control:
            marker = read_marker(batch)
            if marker is not None:
                yield lambda pid=header.producer_id, m=marker: shard.apply_marker(pid, m.commit)  # type: ignore[misc]
            continue
        for row in read_records(batch, max_bytes=_MAX_DECOMPRESSED):
            record = codec.decode(row.key, row.value) if row.key is not None else None
            if record is None:
                continue
            if header.transactional:
                yield lambda r=record, pid=header.producer_id: shard.apply_transactional(r, pid)  # type: ignore[misc]
            else:
                yield lambda r=record: shard.apply(r)  # type: ignore[misc]


def _read_chunk(partition: Partition, offset: int, end: int) -> tuple[list[bytes], int]:
    """Return whole batches from an offset on, and the offset behind them.

    This blocks on the disk, so it runs in a thread. Every batch is verified, whatever
    log.read.verification.enable says: the broker relies on a committed offset or the state of a
    transaction for as long as it runs.
    """
    log = partition.online_log
    result = log.read(offset, _CHUNK_BYTES, upto=end, at_least_one=True, may_block=True)
    if result.slice is None:
        return [], end
    data = result.slice.read()
    batches = []
    position, before = 0, 0
    try:
        while position < len(data):
            header = parse_header(data, position)
            if position + header.size > len(data) or not crc_matches(data, position, header):
                raise CorruptBatch("a batch that does not match its checksum")
            if not before <= header.base_offset <= header.last_offset < end:
                raise CorruptBatch(f"a batch at offset {header.base_offset} after offset {before}")
            batches.append(bytes(data[position : position + header.size]))
            position, before = position + header.size, header.next_offset
    except CorruptBatch as error:
        damage = DamagedBatch(
            result.slice.file.path, result.slice.position + position, error.reason
        )
        raise log.host.damage_found(log, damage) from None
    return batches, result.end_offset
