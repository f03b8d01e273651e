"""Memory use of a shard's transactional ids, and which ids expire early when the memory is full.

An application that uses a new transactional id for each run leaves unused ids behind. With
transactional.id.expiration.ms alone they stay for a week, which is long enough to fill the memory
of a broker. Above the limit, the ids that have been idle for the longest time expire early.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from millstream.transactions.metadata import TransactionMetadata
from millstream.transactions.states import IDLE

# Measured cost of an id besides its name: metadata, entries in three dictionaries, last epoch.
_ID_BYTES = 512
_PARTITION_BYTES = 160
# Maximum number of ids that one decision expires. The tombstones must fit into one batch.
_MAX_IDS = 200
_MAX_NAME_BYTES = 256 * 1024


def cost_of(transactional_id: str, partitions: int = 0) -> int:
    """Return the estimated bytes of memory of an id.

    The time to compute it does not depend on the length of the name.
    """
    return _ID_BYTES + name_bytes(transactional_id) + partitions * _PARTITION_BYTES


def name_bytes(transactional_id: str) -> int:
    return len(transactional_id) * (1 if transactional_id.isascii() else 4)


class IdMemory:
    """Counts the memory of a shard's ids, and keeps the idle ids in the order of their last use.

    That order is the order of their last records, so a shard loaded from its log has the same
    order.
    """

    __slots__ = ("_idle", "used")

    def __init__(self) -> None:
        self.used = 0
        # Not a plain dict: after deletions at its start, finding the first key takes a scan.
        self._idle: OrderedDict[str, None] = OrderedDict()

    def update(
        self, name: str, before: TransactionMetadata | None, after: TransactionMetadata | None
    ) -> None:
        """Account for a changed id. None stands for an id that does not exist."""
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
        """Return the ids to expire to free `surplus` bytes, and whether they are enough.

        They are not enough if the other ids have open transactions, or if the slice of one decision
        is too small.
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
            if count >= _MAX_IDS or size >= _MAX_NAME_BYTES:
                return
            size += name_bytes(name)
            yield name
