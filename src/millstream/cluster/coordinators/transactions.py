"""The transaction coordinator: shards on ``__transaction_state``, markers and verification."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from millstream.cluster.coordinators.host import COMMIT_TIMEOUT_S, CoordinatorHost
from millstream.cluster.coordinators.internal_topics import TRANSACTIONS, InternalTopics
from millstream.cluster.coordinators.markers import MarkerSender
from millstream.cluster.coordinators.peers import CoordinatorPeers
from millstream.cluster.coordinators.producer_ids import ProducerIds
from millstream.cluster.replicas.partition import Partition
from millstream.core.decisions import Decision, Response, Waiter
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.hashing import partition_of
from millstream.core.types import NO_LEADER, TopicPartition
from millstream.log.rate_limited_logging import RateLimitedLog
from millstream.ports.clock import Clock
from millstream.transactions import records
from millstream.transactions.effects import AllocateProducerId, IdsFull, SendMarkers
from millstream.transactions.settings import TransactionSettings
from millstream.transactions.shard import TransactionShard
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

log = logging.getLogger("millstream.transactions")

# Clients of transaction.version 2 send version 5 or later; classic ones send versions below 4.
_JOINING_VERSION, _VERIFYING_VERSION = 5, 4

# Room for the longest transactional id, however small the memory limit is.
_MIN_IDS_BYTES = 256 * 1024

Decide = Callable[[TransactionShard, Waiter[Response], int], Decision]


class TransactionDriver:
    """Finds the shard of a transactional id and runs decisions on it."""

    def __init__(
        self,
        topics: InternalTopics,
        markers: MarkerSender,
        producer_ids: ProducerIds,
        clock: Clock,
        settings: TransactionSettings,
        peers: CoordinatorPeers | None = None,
        commit_timeout_s: Callable[[], float] = lambda: COMMIT_TIMEOUT_S,
    ) -> None:
        """Without ``peers`` every partition is led here."""
        self._topics = topics
        self._rate_limited = RateLimitedLog(log)
        self._markers = markers
        self._producer_ids = producer_ids
        self._peers = peers
        self.settings = settings
        self._allocating: set[asyncio.Task[None]] = set()
        self.host = CoordinatorHost(
            TRANSACTIONS,
            clock,
            records,
            lambda index, epoch: TransactionShard(epoch, self._shard_settings()),
            {
                SendMarkers: self._send_markers,
                AllocateProducerId: self._allocate,
                IdsFull: self._warn_full,
            },
            on_resign=markers.cancel,
            commit_timeout_s=commit_timeout_s,
        )

    def lead(self, partition: Partition) -> None:
        self.host.lead(partition)

    def resign(self, index: int) -> None:
        self.host.resign(index)

    def reconfigure(self, settings: TransactionSettings) -> None:
        self.settings = settings
        shared = self._shard_settings()
        for _, shard in self.host.shards():
            shard.settings = shared

    def _shard_settings(self) -> TransactionSettings:
        """Return the settings with the memory for ids divided among the partitions.

        Hashes spread ids evenly.
        """
        count = self._topics.partitions(TRANSACTIONS) or 1
        share = max(self.settings.transactional_ids_max_bytes // count, _MIN_IDS_BYTES)
        return replace(self.settings, transactional_ids_max_bytes=share)

    def close(self) -> None:
        self.host.close()
        self._markers.close()
        for task in list(self._allocating):
            task.cancel()

    async def find(self, transactional_id: str) -> int:
        """Return the partition of an id; create the topic when it is first needed."""
        return partition_of(transactional_id, await self._topics.ensure(TRANSACTIONS))

    def call(self, transactional_id: str, decide: Decide[Response]) -> Awaitable[Response]:
        """Run a decision on the shard of an id; raise ApiError if it is not here."""
        count = self._topics.partitions(TRANSACTIONS)
        if not count:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        return self.host.call(partition_of(transactional_id, count), decide)

    async def list_all(self, decide: Callable[[list[str]], Decide[Response]]) -> list[Response]:
        """Return the responses of every shard here, each for some of its transactional ids.

        Raise ApiError while a shard is being loaded.
        """
        return await self.host.list_all(lambda shard: shard.ids(), decide)

    # ---- verification (KIP-890) ----

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: list[TopicPartition],
        *,
        verify_only: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        """Ask the coordinator, here or on another broker, whether records belong to a transaction.

        With ``verify_only`` the partitions must be part of it already, else they join with this
        call.
        """
        by_topic: dict[str, list[int]] = {}
        for tp in partitions:
            by_topic.setdefault(tp.topic, []).append(tp.partition)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            verify_only=verify_only,
            topics=[
                AddPartitionsToTxnTopic(name=name, partitions=rows)
                for name, rows in by_topic.items()
            ],
        )
        version = _VERIFYING_VERSION if verify_only else _JOINING_VERSION
        try:
            result = await self._ask_coordinator(transaction, version)
        except ApiError as error:
            return dict.fromkeys(partitions, error.code)
        except OSError as error:
            log.info("cannot reach the coordinator of %s: %s", transactional_id, error)
            return dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)
        return {
            TopicPartition(topic.name, row.partition_index): ErrorCode.of(row.partition_error_code)
            for topic in result.topic_results
            for row in topic.results_by_partition
        }

    async def _ask_coordinator(
        self, transaction: AddPartitionsToTxnTransaction, version: int
    ) -> AddPartitionsToTxnResult:
        count = self._topics.partitions(TRANSACTIONS)
        if not count:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self._peers is not None:
            node = self._peers.leader(
                TopicPartition(TRANSACTIONS, partition_of(transaction.transactional_id, count))
            )
            if node == NO_LEADER:
                raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if node != self._peers.node_id:
                return await self._peers.add_partitions(node, version, transaction)
        result: AddPartitionsToTxnResult = await self.call(
            transaction.transactional_id,
            lambda shard, waiter, now_ms: shard.decide_add_partitions(
                transaction, version, waiter, now_ms=now_ms
            ),
        )
        return result

    # ---- effects ----

    def _send_markers(self, index: int, outcome: SendMarkers) -> None:
        def written() -> None:
            self.host.run(
                index,
                lambda shard, now_ms: shard.decide_markers_written(
                    outcome.transactional_id,
                    outcome.producer_id,
                    outcome.producer_epoch,
                    now_ms=now_ms,
                ),
            )

        self._markers.send(index, outcome, written)

    def _allocate(self, index: int, effect: AllocateProducerId) -> None:
        task = asyncio.get_running_loop().create_task(self._allocate_later(index, effect))
        self._allocating.add(task)
        task.add_done_callback(self._allocating.discard)

    def _warn_full(self, index: int, full: IdsFull) -> None:
        limit = "transactional.ids.memory.max.bytes"
        if full.rejected is None:
            text = f"{full.expired} unused transactional ids expired early: there are more than {limit} allows"
            self._rate_limited.log(logging.WARNING, "ids expired early", text)
        else:
            text = f"no room for transactional id {full.rejected[:200]!r} within {limit}: its client has to retry"
            self._rate_limited.log(logging.ERROR, "ids rejected", text)

    async def _allocate_later(self, index: int, effect: AllocateProducerId) -> None:
        producer_id: int | None = None
        try:
            producer_id = await self._producer_ids.next_id()
        except ApiError as error:
            text = f"cannot allocate a producer id at the moment: {error.message}"
            self._rate_limited.log(logging.WARNING, f"producer id {error.code.name}", text)
        except Exception as error:
            # Catch everything: without a call of the shard, a client would wait forever.
            log.error("cannot allocate a producer id", exc_info=error)
        self.host.resume(
            index,
            getattr(effect.continuation, "waiter", None),
            lambda shard, now_ms: shard.decide_producer_id(
                effect.continuation, producer_id, now_ms=now_ms
            ),
        )
