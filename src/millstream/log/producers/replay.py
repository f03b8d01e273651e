"""Producer state from the log: applies batches, and rebuilds the state from a snapshot."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from millstream.log.directories import file_names
from millstream.log.leader_epochs import LeaderEpochs
from millstream.log.producers import snapshot
from millstream.log.producers.snapshot import CorruptSnapshot
from millstream.log.producers.state import ProducerState
from millstream.log.segments.segment import Segment
from millstream.log.segments.transaction_index import AbortedTransaction
from millstream.ports.files import Buffer, Files
from millstream.wire.records.batch import BatchHeader, CorruptBatch, read_marker

logger = logging.getLogger("millstream.log.replay")


def apply_batch(
    state: ProducerState, segment: Segment | None, header: BatchHeader, batch: Buffer
) -> None:
    """Apply a written batch to the state of its producer.

    An abort marker is also added to the transaction index of the segment, if there is one. `header`
    has the final offset of the batch, `batch` its bytes (read for markers only).
    """
    if not header.control:
        state.apply(header, header.base_offset)
        return
    marker = read_marker(batch) if header.count else None
    if marker is None:
        return  # a marker emptied by compaction, or another kind of control record
    entry = state.producers.get(header.producer_id)
    if (
        segment is not None
        and not marker.commit
        and entry is not None
        and entry.txn_first_offset >= 0
    ):
        # The index first: if that write fails, the state is unchanged.
        first = entry.txn_first_offset
        stable = state.stable_offset_without(header.producer_id, header.base_offset + 1)
        segment.index_files.append_transaction(
            AbortedTransaction(header.producer_id, first, header.base_offset, stable)
        )
    completed = state.apply_marker(header, header.base_offset, marker)
    if completed is not None:
        state.complete(completed)


def apply_replicated(
    state: ProducerState,
    epochs: LeaderEpochs,
    segment: Segment,
    position: int,
    headers: Sequence[BatchHeader],
    records: memoryview,
) -> None:
    """Apply batches of a leader, written at a position, to indexes, epochs and producers."""
    at = 0
    for header in headers:
        segment.index.note(position + at, header.size, header.last_offset, header.max_timestamp)
        epochs.assign(header.leader_epoch, header.base_offset)
        if header.producer_id >= 0:
            apply_batch(state, segment, header, records[at : at + header.size])
        at += header.size


def rebuild_producers(
    files: Files,
    directory: str,
    segments: Sequence[Segment],
    snapshots: list[int],
    state: ProducerState,
    *,
    end: int,
    expired_before_ms: int,
) -> list[int]:
    """Restore the newest good snapshot up to `end` and apply the batches after it.

    Return the snapshots that are left. Batches below the log start count as long as they exist:
    producers expire by time only.
    """
    snapshots = sorted(offset for offset in snapshots if offset <= end)
    start = segments[0].base_offset if segments else end
    snapshots, start = _restore(files, directory, snapshots, state, start, expired_before_ms)
    for segment, following in zip(segments, [*segments[1:], None], strict=False):
        if segment.base_offset >= end:
            break
        if following is not None and following.base_offset <= start:
            continue
        position = segment.find(start) if start > segment.base_offset else 0
        if position is not None:
            _replay(segment, position, end, state)
    state.end_offset = end
    return snapshots


def _restore(
    files: Files,
    directory: str,
    snapshots: list[int],
    state: ProducerState,
    start: int,
    expired_before_ms: int,
) -> tuple[list[int], int]:
    while snapshots:
        path = os.path.join(directory, file_names.segment_name(snapshots[-1]) + file_names.SNAPSHOT)
        try:
            entries = snapshot.decode(files.read_bytes(path))
        except (CorruptSnapshot, FileNotFoundError) as error:
            logger.warning(
                "%s cannot be used (%s); falling back to an older snapshot of the producers",
                path,
                error,
            )
            snapshots = snapshots[:-1]
            _remove(files, path)
            continue
        state.restore(entries, snapshots[-1], expired_before_ms=expired_before_ms)
        return snapshots, max(snapshots[-1], start)
    state.clear(start)
    return [], start


def _remove(files: Files, path: str) -> None:
    try:
        files.unlink(path)
    except FileNotFoundError:
        pass


def _replay(segment: Segment, position: int, end: int, state: ProducerState) -> None:
    for at, header in segment.batches(position):
        if header.base_offset >= end:
            return
        if header.producer_id >= 0:
            batch = segment.log_file.read_batch(at, header) if header.control else b""
            try:
                apply_batch(state, None, header, batch)
            except CorruptBatch as error:
                logger.warning(
                    "%r: a marker at offset %d cannot be read: %s",
                    segment,
                    header.base_offset,
                    error,
                )
