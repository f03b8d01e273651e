"""The state of transactions while the cleaner walks a log: which are aborted, which have data left.

Data of an aborted transaction is dropped. A marker must stay until no data of its transaction is
left before it. A reader of the log needs a commit marker to end the transaction. Without an abort
marker and its entry in the transaction index, the data would count as committed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from millstream.log.segments.transaction_index import AbortedTransaction
from millstream.wire.records.batch import BatchHeader, ControlMarker


class CleanedTransactions:
    """The state of one pass from the start of the log. Batches come in order."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._upcoming = [(entry.first_offset, entry) for entry in aborted]
        heapq.heapify(self._upcoming)
        self._aborted: dict[int, AbortedTransaction] = {}  # producer id -> the open transaction
        self._aborted_with_data: set[int] = set()
        self._committed_with_data: set[int] = set()

    def on_data(self, header: BatchHeader) -> bool:
        """Process a batch of records. Return whether it belongs to an aborted transaction."""
        self._begin_up_to(header.last_offset)
        if not header.transactional:
            return False
        entry = self._aborted.get(header.producer_id)
        if entry is not None and header.last_offset < entry.last_offset:  # of the marker
            self._aborted_with_data.add(header.producer_id)
            return True
        self._committed_with_data.add(header.producer_id)
        return False

    def on_control(
        self, header: BatchHeader, marker: ControlMarker | None
    ) -> tuple[bool, AbortedTransaction | None]:
        """Return whether no data is left before the marker, and the index entry to keep with it.

        `marker` is None for an emptied control batch, which is not needed, and for control records
        of other kinds.
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
        while self._upcoming and self._upcoming[0][0] <= offset:
            entry = heapq.heappop(self._upcoming)[1]
            self._aborted[entry.producer_id] = entry
