"""What the cleaner knows of transactions while it walks a log: which are aborted, and which have data left.

Data of an aborted transaction is dropped. A marker must stay until nothing of its transaction is left before it: a
commit marker, because a reader of the log needs it to end the transaction, an abort marker together with its
entry in the transaction index, because without it the data would count as committed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from millstream.log.segments.transaction_index import AbortedTransaction
from millstream.wire.records.batch import BatchHeader, ControlMarker


class CleanedTransactions:
    """State of one walk from the start of the log; batches and markers are told in the order of their offsets."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = [(entry.first_offset, entry) for entry in aborted]
        heapq.heapify(self._coming)
        self._aborted: dict[int, AbortedTransaction] = {}  # producer id -> the transaction under way
        self._aborted_with_data: set[int] = set()
        self._committed_with_data: set[int] = set()

    def on_data(self, header: BatchHeader) -> bool:
        """A batch of records (or one that was emptied). True where it belongs to an aborted transaction."""
        self._begin_up_to(header.last_offset)
        if not header.transactional:
            return False
        entry = self._aborted.get(header.producer_id)
        if entry is not None and header.last_offset < entry.last_offset:  # its marker's
            self._aborted_with_data.add(header.producer_id)
            return True
        self._committed_with_data.add(header.producer_id)
        return False

    def on_control(
        self, header: BatchHeader, marker: ControlMarker | None
    ) -> tuple[bool, AbortedTransaction | None]:
        """Whether the marker has no data left before it, and the index entry to keep with it.

        `marker` is None for an emptied control batch, which nobody needs, and for control records of other kinds.
        """
        self._begin_up_to(header.last_offset)
        if marker is None:
            return header.count == 0, None
        if marker.commit:
            had_data = header.producer_id in self._committed_with_data
            self._committed_with_data.discard(header.producer_id)
            return not had_data, None
        entry = self._aborted.pop(header.producer_id, None)
        had_data = header.producer_id in self._aborted_with_data
        self._aborted_with_data.discard(header.producer_id)
        return (False, entry) if entry is not None and had_data else (True, None)

    def _begin_up_to(self, offset: int) -> None:
        while self._coming and self._coming[0][0] <= offset:
            entry = heapq.heappop(self._coming)[1]
            self._aborted[entry.producer_id] = entry
