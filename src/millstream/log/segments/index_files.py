"""The index files of a segment, with their checksums: offset, time and transaction index.

Loaded when they are needed, and released when the segment is idle. Knows nothing of the batches: if
an index has a fault, `SegmentIndex` rebuilds it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from millstream.log.directories import file_names
from millstream.log.errors import DamagedIndex
from millstream.log.integrity.checksums import NEW_SEGMENT, SegmentSums, summed
from millstream.log.segments import transaction_index
from millstream.log.segments.offset_index import ENTRY_SIZE as OFFSET_ENTRY
from millstream.log.segments.offset_index import OffsetIndex
from millstream.log.segments.segment_names import SegmentNames
from millstream.log.segments.time_index import ENTRY_SIZE as TIME_ENTRY
from millstream.log.segments.time_index import TimeIndex
from millstream.log.segments.transaction_index import AbortedTransaction
from millstream.ports.files import Files

logger = logging.getLogger("millstream.log.segment")


class IndexFiles:
    """`offsets`, `times` and the transactions are None while they are not loaded."""

    __slots__ = ("_files", "_names", "_transactions", "offsets", "sums", "times")

    def __init__(self, files: Files, names: SegmentNames, *, new: bool) -> None:
        self._files = files
        self._names = names
        # Checksums of the files on disk; None if unknown.
        self.sums: SegmentSums | None = NEW_SEGMENT if new else None
        self.offsets: OffsetIndex | None = OffsetIndex(names.base_offset) if new else None
        self.times: TimeIndex | None = TimeIndex(names.base_offset) if new else None
        self._transactions: list[AbortedTransaction] | None = [] if new else None

    def remove(self) -> None:
        """Remove the files of an earlier segment of the same name."""
        for kind in file_names.INDEXES:
            if self._files.exists(self._names.path(kind)):
                self._files.unlink(self._names.path(kind))

    # -- reading

    def read(self, kind: str) -> bytes:
        try:
            return self._files.read_bytes(self._names.path(kind))
        except FileNotFoundError:
            return b""

    def fault(self, kind: str, data: bytes) -> str | None:
        """Return why the contents of a file are not what was written, or None."""
        known = self.sums[kind] if self.sums is not None else None
        return None if known is None or known == summed(data) else "it does not match its checksum"

    def fault_on_disk(self, kind: str, *, prefix: bool = False) -> str | None:
        """Return why a file is not what was flushed, or None; with `prefix` it may be longer."""
        data = self.read(kind)
        good = prefix and self.sums is not None and self.sums[kind].begins(data)
        return None if good else self.fault(kind, data)

    def read_both(self) -> tuple[OffsetIndex, TimeIndex]:
        """Return the offset and time index as they are on disk, good or not."""
        base_offset = self._names.base_offset
        offsets = OffsetIndex.parse(self.read(file_names.OFFSET_INDEX), base_offset)
        return offsets, TimeIndex.parse(self.read(file_names.TIME_INDEX), base_offset)

    def release(self) -> None:
        """Forget loaded indexes."""
        self.offsets = self.times = self._transactions = None

    def reset(self) -> tuple[OffsetIndex, TimeIndex]:
        """Start the offset and time index over, empty. Return them."""
        self.offsets = offsets = OffsetIndex(self._names.base_offset)
        self.times = times = TimeIndex(self._names.base_offset)
        if self._files.exists(self._names.path(file_names.OFFSET_INDEX)) or self._files.exists(
            self._names.path(file_names.TIME_INDEX)
        ):
            offsets.written = times.written = -1  # the files on disk have other entries
        return offsets, times

    # -- writing

    def written_out(self) -> bool:
        """Write entries that are only in memory. Return False if the disk rejects them."""
        offsets, times = self.offsets, self.times
        if (offsets is not None and len(offsets) != offsets.written) or (
            times is not None and len(times) != times.written
        ):
            try:
                self.write(offsets, times)
            except OSError as error:
                logger.info("%r: its indexes stay in memory: %s", self._names, error)
                return False
        return True

    def write(self, offsets: OffsetIndex | None, times: TimeIndex | None) -> None:
        """Bring the files up to date with these indexes; creates them."""
        if offsets is not None:
            written = max(offsets.written, 0)
            pending = offsets.encode(written)
            self._write(file_names.OFFSET_INDEX, written * OFFSET_ENTRY, pending, offsets.encode)
            offsets.written = len(offsets)
        if times is not None:
            written = max(times.written, 0)
            self._write(
                file_names.TIME_INDEX, written * TIME_ENTRY, times.encode(written), times.encode
            )
            times.written = len(times)

    def _write(self, kind: str, written: int, pending: bytes, whole: Callable[[], bytes]) -> None:
        file = self._files.open(self._names.path(kind), create=True)
        try:
            if file.size != written:
                file.truncate(written)
            if pending:
                file.append((pending,))
        finally:
            file.close()
        self._note_sum(kind, written, pending, whole)

    def _note_sum(self, kind: str, at: int, data: bytes, whole: Callable[[], bytes]) -> None:
        """Note that bytes were appended to a file of `at` bytes.

        `whole` returns all of a rewritten one.
        """
        known = self.sums[kind] if self.sums is not None else None
        if self.sums is not None and known is not None and (data or known.size != at):
            self.sums = {
                **self.sums,
                kind: known.extended(data) if known.size == at else summed(whole()),
            }

    # -- aborted transactions

    def transactions(self) -> list[AbortedTransaction]:
        """Return the aborted transactions whose markers lie in the segment."""
        transactions = self._transactions
        if transactions is None:
            data = self.read(file_names.TRANSACTION_INDEX)
            fault = self.fault(file_names.TRANSACTION_INDEX, data) or transaction_index.fault(data)
            if fault is not None:
                path = self._names.path(file_names.TRANSACTION_INDEX)
                raise DamagedIndex(f"{path}: {fault}; a restart rebuilds it")
            transactions = self._transactions = transaction_index.parse(data)
        return transactions

    def append_transaction(self, transaction: AbortedTransaction) -> None:
        """Add an aborted transaction; written through, since there is no other copy."""
        known, data = self.transactions(), transaction_index.encode((transaction,))
        expected = len(known) * transaction_index.ENTRY_SIZE
        file = self._files.open(self._names.path(file_names.TRANSACTION_INDEX), create=True)
        try:
            if file.size != expected:
                file.truncate(expected)  # the rest of a failed append
            file.append((data,))
        except OSError:
            with suppress(OSError):
                file.truncate(expected)  # the index may be reloaded before the next entry
            raise
        finally:
            file.close()
        known.append(transaction)
        self._note_sum(
            file_names.TRANSACTION_INDEX, expected, data, lambda: transaction_index.encode(known)
        )

    def reset_transactions(self) -> None:
        """Start the transaction index over, for a scan of the whole segment."""
        self._transactions = []
        self.sums = NEW_SEGMENT
        with suppress(FileNotFoundError):
            self._files.unlink(self._names.path(file_names.TRANSACTION_INDEX))

    def truncate_transactions(self, offset: int) -> None:
        """Drop the transactions whose markers lie at or after the offset. Durable at once.

        The next recovery may begin above this segment, and would leave entries that have come back.
        Entries lie in the order of their markers, so this shortens the file, which a full disk
        allows. The exception is a power cut that left zeros in the place of an unsynced entry; the
        scan of the batches restores that entry.
        """
        path = self._names.path(file_names.TRANSACTION_INDEX)
        data = self.read(file_names.TRANSACTION_INDEX)
        known = (
            self._transactions
            if self._transactions is not None
            else transaction_index.valid_entries(data)
        )
        self._transactions = [txn for txn in known if txn.last_offset < offset]
        kept = transaction_index.encode(self._transactions)
        if kept == data:
            return
        if data.startswith(kept):
            file = self._files.open(path, create=True)
            try:
                file.truncate(len(kept))
            finally:
                file.close()
        else:
            self._files.write_bytes(path, kept)
        self._files.sync_file(path)
        if self.sums is not None:
            self.sums = {**self.sums, file_names.TRANSACTION_INDEX: summed(kept)}
