"""The memory of a shard's transactional ids, and which of them may go when it is full.

An application that uses a new transactional id for each run leaves ids behind that nothing uses again. Time alone
(transactional.id.expiration.ms) keeps them for a week, which is long enough to fill the memory of a broker. Above the
limit, the ids that have been idle for the longest time expire early.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from millstream.transactions.metadata import TransactionMetadata
from millstream.transactions.states import IDLE

# What an id costs besides its name, measured: its metadata, its place in three dictionaries, the remembered epoch.
_ID_BYTES = 512
_PARTITION_BYTES = 160
# Ids that one decision expires: a slice of work, and tombstones that fit into one batch.
_MOST_IDS = 200
_MOST_NAME_BYTES = 256 * 1024


def cost_of(transactional_id: str, partitions: int = 0) -> int:
    """Return the bytes of memory that an id takes, estimated. Costs the same for any length."""
    return _ID_BYTES + name_bytes(transactional_id) + partitions * _PARTITION_BYTES


def name_bytes(transactional_id: str) -> int:
    return len(transactional_id) * (1 if transactional_id.isascii() else 4)


class IdMemory:
    """Counts what the ids of a shard take, and keeps the idle ones in the order of their last use.

    That order is the order of their last records, so a shard that is loaded from its log has the same one.
    """

    __slots__ = ("_idle", "used")

    def __init__(self) -> None:
        self.used = 0
        # Not a plain dict: the first key of one whose first keys were deleted takes a scan to find.
        self._idle: OrderedDict[str, None] = OrderedDict()

    def note(self, name: str, before: TransactionMetadata | None, after: TransactionMetadata | None) -> None:
        """An id has changed; None is an id that is not known."""
        if before is not None:
            self.used -= cost_of(name, len(before.partitions))
        if after is not None:
            self.used += cost_of(name, len(after.partitions))
        if after is None or after.state not in IDLE:
            self._idle.pop(name, None)
        else:
            self._idle[name] = None
            self._idle.move_to_end(name)

    def oldest_idle(self, surplus: int) -> tuple[list[str], bool]:
        """Return the ids to expire so that `surplus` bytes become free, and whether that is enough.

        It is not enough if the other ids have transactions, or if more is to be done than one decision may do.
        """
        names: list[str] = []
        for name in self._within_slice():
            if surplus <= 0:
                break
            names.append(name)
            surplus -= cost_of(name)
        return names, surplus <= 0

    def _within_slice(self) -> Iterator[str]:
        size = 0
        for count, name in enumerate(self._idle):
            if count >= _MOST_IDS or size >= _MOST_NAME_BYTES:
                return
            size += name_bytes(name)
            yield name
