"""The state of a shard of transactional ids, which its decisions read."""

from __future__ import annotations

from millstream.core.decisions import CoordinatorRecord, Decision, Reply, Response, Waiter
from millstream.core.types import NO_PRODUCER_EPOCH
from millstream.transactions import joining
from millstream.transactions.id_memory import IdMemory
from millstream.transactions.metadata import TransactionMetadata
from millstream.transactions.records import record_of
from millstream.transactions.settings import TransactionSettings


class ShardState:
    """The transactional ids of one partition."""

    def __init__(self, coordinator_epoch: int, settings: TransactionSettings) -> None:
        self.coordinator_epoch = coordinator_epoch
        self.settings = settings
        self.transactions: dict[str, TransactionMetadata] = {}
        self.memory = IdMemory()
        # Soft: transactional id -> epoch of its producer before the last bump (for KIP-360
        # retries). It is lost when the coordinator changes.
        self.last_epochs: dict[str, int] = {}

    def known(self, transactional_id: str) -> TransactionMetadata:
        """Return the metadata of an id, or raise the error of a request for it."""
        joining.check_id(transactional_id)
        return joining.known(self.transactions.get(transactional_id))

    def last_epoch(self, transactional_id: str) -> int:
        return self.last_epochs.get(transactional_id, NO_PRODUCER_EPOCH)

    def surplus(self, more: int = 0) -> int:
        """Return the bytes by which the ids, plus `more`, exceed the memory for them."""
        return self.memory.used + more - self.settings.transactional_ids_max_bytes

    def record(self, transactional_id: str, new: TransactionMetadata) -> CoordinatorRecord:
        return record_of(transactional_id, new, self.settings.transaction_version)


def reply(waiter: Waiter[Response], response: Response) -> Decision:
    return Decision(effects=(Reply(waiter, response),))
