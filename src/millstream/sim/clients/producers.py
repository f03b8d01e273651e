"""Simulated producers: idempotent with several batches in flight, and transactional.

Transactions use both versions of the protocol. A producer behaves as a careful client, and reports
what it knows: which records are written, which are not, which may be.

Some have two habits of librdkafka. A batch counts as written once a later one is acknowledged. And
a batch may be sent to a new leader before an earlier one that the old leader rejected.

Others have a third habit: they abort a transaction while a batch is in doubt, and reuse its
sequences in the same epoch.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from millstream.core.errors import ErrorCode
from millstream.sim.checks.history import FAIL, INFO, OK
from millstream.sim.clients.channel import (
    TRANSACTION,
    Address,
    Channel,
    Client,
    Lost,
    NotSent,
    Rejected,
    split_key,
)
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from millstream.wire.messages.end_txn import EndTxnRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.wire.records.batch import Record, build_batch

_E = ErrorCode
_DELIVERY_S = 30.0
_TRANSACTION_MS = 20_000
# The coordinator has moved, or is not ready: find it again.
MOVED = (_E.NOT_COORDINATOR, _E.COORDINATOR_NOT_AVAILABLE, _E.COORDINATOR_LOAD_IN_PROGRESS)
FENCED = (_E.PRODUCER_FENCED, _E.INVALID_PRODUCER_EPOCH, _E.TRANSACTION_COORDINATOR_FENCED)


# Batches, each with its key.
Rows = list[tuple[str, list[str]]]


class Fatal(Exception):
    """This producer cannot continue; its owner creates a new one."""


# The batch may be in the log in spite of these errors (KAFKA-13574). For example, the disk may have
# failed while the batch waited for its replicas.
_AFTER_APPEND = frozenset(
    {
        _E.NOT_LEADER_OR_FOLLOWER,
        _E.REQUEST_TIMED_OUT,
        _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        _E.KAFKA_STORAGE_ERROR,
    }
)


class Batch:
    """A batch in flight, and what is known about it."""

    def __init__(self, key: str, values: list[str], sequence: int) -> None:
        self.key = key
        self.values = values
        self.sequence = sequence
        self.outcome = ""  # OK, FAIL or INFO in the end
        self.offset: int | None = None
        self.error = ""
        self.in_doubt = False  # an attempt was lost: it may be written
        self.rejected_by: Address | None = None  # the last broker that was not the leader

    def give_up(self, error: str) -> None:
        """Give the batch up."""
        self.outcome = INFO if self.in_doubt else FAIL
        self.error = error

    def lose_response(self) -> None:
        """Pretend that the connection broke before the client read the acknowledgement."""
        if self.outcome == OK:
            self.outcome, self.offset, self.error = INFO, None, "response lost"


class Producer:
    """One producer id.

    `transactional_id` None: idempotent only. `version` 1 or 2: the transaction protocol. `hasty`
    and `reuses_sequences` (of transactions in version 1): habits of librdkafka.
    """

    def __init__(
        self,
        client: Client,
        transactional_id: str | None = None,
        version: int = 2,
        *,
        hasty: bool = False,
        reuses_sequences: bool = False,
    ) -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.name = transactional_id or ""
        self.version = version
        self.hasty = hasty
        self.reuses_sequences = reuses_sequences
        client.keeps_epochs = client.keeps_epochs or hasty
        self.producer_id = self.epoch = -1
        self._sequences: dict[str, int] = {}
        self._added: set[str] = set()
        self._end_in_doubt = False

    # -- starting

    async def init(self, deadline_s: float = _DELIVERY_S) -> None:
        """Get a producer id, or a new epoch. Raises Fatal if it takes too long."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=_TRANSACTION_MS,
            producer_id=-1,
            producer_epoch=-1,
        )
        response = await self.request_until_done(request, 4, deadline_s)
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        self._sequences.clear()
        self._added.clear()

    async def _id_source(self) -> Address:
        if self.transactional_id is not None:
            return await self.client.coordinator(TRANSACTION, self.transactional_id)
        return await self.client.leader("data", 0)

    def _forget_id_source(self) -> None:
        if self.transactional_id is not None:
            self.client.forget_coordinator(TRANSACTION, self.transactional_id)
        else:
            self.client.forget_leader("data", 0)

    async def request_until_done(
        self,
        request: Any,
        version: int,
        deadline_s: float,
        on_lost: Callable[[], None] = lambda: None,
    ) -> Any:
        """Repeat a request until the response has no retriable error. Raises Fatal or Rejected."""
        until = self.client.now + deadline_s
        while self.client.now < until:
            try:
                response = await self.client.request(await self._id_source(), request, version)
                code = _E.of(_code(response))
                if code in MOVED:
                    self._forget_id_source()
                elif code is not _E.CONCURRENT_TRANSACTIONS and not code.retriable:
                    if code:
                        raise Rejected(code)
                    return response
            except Lost:
                on_lost()
                self._forget_id_source()
            except NotSent:
                self._forget_id_source()
            except Rejected as error:
                if error.code not in MOVED and not error.code.retriable:
                    raise
            await self.client.back_off()
        raise Fatal("the coordinator does not respond")

    # -- sending

    async def deliver(self, rows: Rows, deadline_s: float = _DELIVERY_S) -> list[Batch]:
        """Send batches, all in flight at once, those of a key in order.

        Return when each is acknowledged or given up.
        """
        batches = [self._batch(key, values) for key, values in rows]
        until = self.client.now + deadline_s
        while open_batches := [batch for batch in batches if not batch.outcome]:
            if self.client.now >= until:
                for batch in open_batches:
                    batch.give_up("delivery timeout")
                break
            await self._attempt(open_batches)
            if self.hasty:
                _mark_earlier_written(batches)
            if not all(batch.outcome for batch in batches):
                await self.client.back_off()
        return batches

    def _batch(self, key: str, values: list[str]) -> Batch:
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + len(values)
        return Batch(key, values, sequence)

    async def _attempt(self, batches: list[Batch]) -> None:
        version = 12 if self.version >= 2 else 11
        in_flight: list[tuple[Address, Channel, list[Batch], asyncio.Future[Any]]] = []
        for leader, keys in (await self._by_leader(batches)).items():
            try:
                channel = await self.client.channel(leader)
            except NotSent:
                for key in keys:
                    self.client.forget_leader(*split_key(key))
                continue
            sent = [batch for batch in batches if batch.key in keys]
            if self.hasty:
                sent = self._without_rejected(sent, leader)
            in_flight += [
                (leader, channel, together, channel.send(self._request(together), version))
                for together in _requests(sent)
            ]
        responses = [response for *_, response in in_flight]
        if responses:
            await asyncio.wait(responses, timeout=6.0)
        for _, channel, _, response in in_flight:
            if not response.done():
                channel.close()
        for leader, _, together, response in in_flight:
            self._completed(leader, together, response)

    def _without_rejected(self, batches: list[Batch], leader: Address) -> list[Batch]:
        """Return the batches without the first of a key that another leader rejected.

        It is sent with the next attempt, after the batches behind it. If there are none, it stays.
        """
        kept: list[Batch] = []
        for key in dict.fromkeys(batch.key for batch in batches):
            row = [batch for batch in batches if batch.key == key]
            elsewhere = row[0].rejected_by not in (None, leader)
            row[0].rejected_by = None
            kept += row[1:] if elsewhere and len(row) > 1 else row
        return kept

    async def _by_leader(self, batches: list[Batch]) -> dict[Address, set[str]]:
        """Return the keys by leader. All batches of a key go to one leader.

        A later batch must not overtake through a leader that became known later.
        """
        by_leader: dict[Address, set[str]] = {}
        for key in dict.fromkeys(batch.key for batch in batches):
            try:
                by_leader.setdefault(await self.client.leader(*split_key(key)), set()).add(key)
            except NotSent:
                self.client.forget_leader(*split_key(key))
        return by_leader

    def _request(self, batches: list[Batch]) -> ProduceRequest:
        topics: dict[str, list[PartitionProduceData]] = {}
        for batch in batches:
            topic, partition = split_key(batch.key)
            row = PartitionProduceData(index=partition, records=self._records(batch))
            topics.setdefault(topic, []).append(row)
        return ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=5_000,
            topic_data=[
                TopicProduceData(name=topic, partition_data=rows) for topic, rows in topics.items()
            ],
        )

    def _records(self, batch: Batch) -> bytes:
        now_ms = self.client.process.clock.now_ms()
        return build_batch(
            [self._record(i, now_ms, value) for i, value in enumerate(batch.values)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=batch.sequence,
            transactional=self.transactional_id is not None,
        )

    def _record(self, i: int, now_ms: int, value: str) -> Record:
        return Record(i, now_ms, None, value.encode(), ())

    def _completed(
        self, leader: Address, batches: list[Batch], response: asyncio.Future[Any]
    ) -> None:
        error = response.exception()
        if error is not None:
            for batch in batches:
                batch.in_doubt = batch.in_doubt or isinstance(error, Lost)
                self.client.forget_leader(*split_key(batch.key))
            return
        rows = {
            f"{topic.name}-{row.index}": row
            for topic in response.result().responses
            for row in topic.partition_responses
        }
        for batch in batches:
            row = rows[batch.key]
            if row.error_code == _E.NOT_LEADER_OR_FOLLOWER:
                batch.rejected_by = leader
            self._outcome(batch, row)

    def _outcome(self, batch: Batch, row: Any) -> None:
        code = _E.of(row.error_code)
        if code is _E.NONE:
            batch.outcome, batch.offset = OK, row.base_offset
        elif code is _E.DUPLICATE_SEQUENCE_NUMBER:
            batch.outcome = OK
        elif code in _AFTER_APPEND:
            batch.in_doubt = True
            self.client.forget_leader(*split_key(batch.key))
        elif code is _E.OUT_OF_ORDER_SEQUENCE_NUMBER or code.retriable:
            # an earlier batch failed: retry all, in order
            self.client.forget_leader(*split_key(batch.key))
        else:
            batch.give_up(code.name)

    # -- transactions

    async def add(self, keys: list[str]) -> None:
        """Add partitions to the transaction, which version 1 requires before writing to them."""
        new = [key for key in dict.fromkeys(keys) if key not in self._added]
        if self.version >= 2 or not new:
            return
        topics: dict[str, list[int]] = {}
        for key in new:
            topic, partition = split_key(key)
            topics.setdefault(topic, []).append(partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                for topic, indexes in topics.items()
            ],
        )
        await self.request_until_done(request, 3, _DELIVERY_S)
        self._added.update(new)

    async def abort_and_continue(self, batches: list[Batch]) -> bool:
        """Abort after a failed delivery and keep the epoch. Return False if the producer cannot.

        A batch that was not acknowledged may be in the log, but its sequences are reused. A leader
        that knows them responds with UNKNOWN_PRODUCER_ID, and only then the next transaction gets a
        new epoch (KIP-360).
        """
        if not self.reuses_sequences:
            return False
        for batch in reversed(batches):
            self._sequences[batch.key] = batch.sequence
        for batch in batches:
            if batch.outcome == OK:
                self._sequences[batch.key] = batch.sequence + len(batch.values)
        await self.end(commit=False)
        if any(batch.error == _E.UNKNOWN_PRODUCER_ID.name for batch in batches):
            await self.init()
        return True

    async def end(self, *, commit: bool, deadline_s: float = _DELIVERY_S) -> None:
        """End the transaction.

        Raises Rejected if the coordinator rejects it, Fatal if the outcome is unknown.
        """
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        lost = False

        def on_lost() -> None:
            nonlocal lost
            lost = True

        version = 5 if self.version >= 2 else 3
        response = await self.request_until_done(request, version, deadline_s, on_lost)
        self._added.clear()
        if version >= 5:
            if (response.producer_id, response.producer_epoch) != (self.producer_id, self.epoch):
                self._sequences.clear()
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        elif lost:
            # The lost attempt may still arrive, and would end the next transaction of this epoch.
            await self.init()


def _mark_earlier_written(batches: list[Batch]) -> None:
    """Mark batches before an acknowledged batch of their key as written."""
    written: set[str] = set()
    for batch in reversed(batches):
        if batch.outcome == OK:
            written.add(batch.key)
        elif not batch.outcome and batch.key in written:
            batch.outcome = OK


def _requests(batches: list[Batch]) -> list[list[Batch]]:
    """Group batches into requests as librdkafka does: one batch of each key per request."""
    requests: list[list[Batch]] = []
    sent: Counter[str] = Counter()
    for batch in batches:
        if sent[batch.key] == len(requests):
            requests.append([])
        requests[sent[batch.key]].append(batch)
        sent[batch.key] += 1
    return requests


def _code(response: Any) -> int:
    """Return the error code of a response, wherever this message has it."""
    if hasattr(response, "results_by_topic_v3_and_below"):
        codes = [
            row.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for row in topic.results_by_partition
        ]
        return next((code for code in codes if code), 0)
    if hasattr(response, "topics"):
        codes = [row.error_code for topic in response.topics for row in topic.partitions]
        return next((code for code in codes if code), 0)
    return int(response.error_code)


Step = Callable[[], Awaitable[None]]
