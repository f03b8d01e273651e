"""Simulated producers: idempotent with several batches in flight, and transactional in both protocol versions.

They do what a careful client does, and tell what they know: which records are in, which are not, which may be. Some have two habits of
librdkafka: a batch counts as written when one behind it is, and the next batch may be sent to a new leader before one that the old leader refused.

Others have a third: they abort a transaction while a batch is in doubt, and reuse its sequences in the same epoch.
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
    Refused,
    split_key,
)
from millstream.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from millstream.wire.messages.end_txn import EndTxnRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.wire.records.batch import Record, build_batch

_E = ErrorCode
_DELIVERY_S = 30.0
_TRANSACTION_MS = 20_000
# The coordinator has moved, or is not ready: look for it again.
MOVED = (_E.NOT_COORDINATOR, _E.COORDINATOR_NOT_AVAILABLE, _E.COORDINATOR_LOAD_IN_PROGRESS)
FENCED = (_E.PRODUCER_FENCED, _E.INVALID_PRODUCER_EPOCH, _E.TRANSACTION_COORDINATOR_FENCED)


# Batches, each with its key.
Rows = list[tuple[str, list[str]]]


class Fatal(Exception):
    """This producer cannot go on; its owner makes a new one."""


# It may be in the log all the same (KAFKA-13574): the disk, for one, may have failed while the batch waited for its replicas.
_AFTER_APPEND = frozenset(
    {
        _E.NOT_LEADER_OR_FOLLOWER,
        _E.REQUEST_TIMED_OUT,
        _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        _E.KAFKA_STORAGE_ERROR,
    }
)


class Batch:
    """Records on their way, and what is known about them."""

    def __init__(self, key: str, values: list[str], sequence: int) -> None:
        self.key = key
        self.values = values
        self.sequence = sequence
        self.outcome = ""  # OK, FAIL or INFO in the end
        self.offset: int | None = None
        self.error = ""
        self.in_doubt = False  # an attempt was lost: it may be in
        self.refused_by: Address | None = None  # the last one that said that it does not lead

    def settle(self, error: str) -> None:
        """It is given up."""
        self.outcome = INFO if self.in_doubt else FAIL
        self.error = error

    def lose_answer(self) -> None:
        """The leader has acknowledged it, and the connection broke before the client could read that."""
        if self.outcome == OK:
            self.outcome, self.offset, self.error = INFO, None, "answer lost"


class Producer:
    """One producer id. ``transactional_id`` None: idempotent only. ``version`` 1 or 2: the transaction protocol.

    ``hasty`` and ``reuses_sequences`` (of transactions in version 1): as librdkafka.
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

    # ---- beginning ------------------------------------------------------------------------------------------

    async def init(self, deadline_s: float = _DELIVERY_S) -> None:
        """A producer id, or a new epoch; raises Fatal when it takes too long."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=_TRANSACTION_MS,
            producer_id=-1,
            producer_epoch=-1,
        )
        answer = await self._insist(request, 4, deadline_s)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()
        self._added.clear()

    async def _where(self) -> Address:
        if self.transactional_id is not None:
            return await self.client.coordinator(TRANSACTION, self.transactional_id)
        return await self.client.leader("data", 0)

    def _look_again(self) -> None:
        if self.transactional_id is not None:
            self.client.forget_coordinator(TRANSACTION, self.transactional_id)
        else:
            self.client.forget_leader("data", 0)

    async def _insist(
        self, request: Any, version: int, deadline_s: float, on_lost: Callable[[], None] = lambda: None
    ) -> Any:
        """Asks the coordinator until it answers without a passing error; raises Fatal or Refused."""
        until = self.client.now + deadline_s
        while self.client.now < until:
            try:
                answer = await self.client.ask(await self._where(), request, version)
                code = _E.of(_code(answer))
                if code in MOVED:
                    self._look_again()
                elif code is not _E.CONCURRENT_TRANSACTIONS and not code.retriable:
                    if code:
                        raise Refused(code)
                    return answer
            except Lost:
                on_lost()
                self._look_again()
            except NotSent:
                self._look_again()
            except Refused as error:
                if error.code not in MOVED and not error.code.retriable:
                    raise
            await self.client.back_off()
        raise Fatal("the coordinator does not answer")

    # ---- sending --------------------------------------------------------------------------------------------

    async def deliver(self, rows: Rows, deadline_s: float = _DELIVERY_S) -> list[Batch]:
        """Sends batches, those of a key in order, all in flight at once; comes back when each is acknowledged or given up."""
        batches = [self._batch(key, values) for key, values in rows]
        until = self.client.now + deadline_s
        while open_batches := [batch for batch in batches if not batch.outcome]:
            if self.client.now >= until:
                for batch in open_batches:
                    batch.settle("delivery timeout")
                break
            await self._attempt(open_batches)
            if self.hasty:
                _take_for_written(batches)
            if not all(batch.outcome for batch in batches):
                await self.client.back_off()
        return batches

    def _batch(self, key: str, values: list[str]) -> Batch:
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + len(values)
        return Batch(key, values, sequence)

    async def _attempt(self, batches: list[Batch]) -> None:
        version = 12 if self.version >= 2 else 11
        asked: list[tuple[Address, Channel, list[Batch], asyncio.Future[Any]]] = []
        for leader, keys in (await self._by_leader(batches)).items():
            try:
                channel = await self.client.channel(leader)
            except NotSent:
                for key in keys:
                    self.client.forget_leader(*split_key(key))
                continue
            sent = [batch for batch in batches if batch.key in keys]
            if self.hasty:
                sent = self._overtaking(sent, leader)
            asked += [
                (leader, channel, together, channel.send(self._request(together), version))
                for together in _requests(sent)
            ]
        answers = [answer for *_, answer in asked]
        if answers:
            await asyncio.wait(answers, timeout=6.0)
        for _, channel, _, answer in asked:
            if not answer.done():
                channel.close()
        for leader, _, together, answer in asked:
            self._answered(leader, together, answer)

    def _overtaking(self, batches: list[Batch], leader: Address) -> list[Batch]:
        """Without the first of a key that another leader refused, if something is behind it: that one is sent with the next attempt."""
        kept: list[Batch] = []
        for key in dict.fromkeys(batch.key for batch in batches):
            row = [batch for batch in batches if batch.key == key]
            elsewhere = row[0].refused_by not in (None, leader)
            row[0].refused_by = None
            kept += row[1:] if elsewhere and len(row) > 1 else row
        return kept

    async def _by_leader(self, batches: list[Batch]) -> dict[Address, set[str]]:
        """Each key has one leader for all its batches: one that was found later may not overtake."""
        found: dict[Address, set[str]] = {}
        for key in dict.fromkeys(batch.key for batch in batches):
            try:
                found.setdefault(await self.client.leader(*split_key(key)), set()).add(key)
            except NotSent:
                self.client.forget_leader(*split_key(key))
        return found

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
            topic_data=[TopicProduceData(name=topic, partition_data=rows) for topic, rows in topics.items()],
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

    def _answered(self, leader: Address, batches: list[Batch], answer: asyncio.Future[Any]) -> None:
        error = answer.exception()
        if error is not None:
            for batch in batches:
                batch.in_doubt = batch.in_doubt or isinstance(error, Lost)
                self.client.forget_leader(*split_key(batch.key))
            return
        rows = {
            f"{topic.name}-{row.index}": row
            for topic in answer.result().responses
            for row in topic.partition_responses
        }
        for batch in batches:
            row = rows[batch.key]
            if row.error_code == _E.NOT_LEADER_OR_FOLLOWER:
                batch.refused_by = leader
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
            self.client.forget_leader(*split_key(batch.key))  # one before it failed: all again, in order
        else:
            batch.settle(code.name)

    # ---- transactions ---------------------------------------------------------------------------------------

    async def add(self, keys: list[str]) -> None:
        """Version 1 names the partitions of a transaction before it writes to them."""
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
                AddPartitionsToTxnTopic(name=topic, partitions=indexes) for topic, indexes in topics.items()
            ],
        )
        await self._insist(request, 3, _DELIVERY_S)
        self._added.update(new)

    async def abort_and_go_on(self, batches: list[Batch]) -> bool:
        """Abort after a failed delivery and keep the epoch; return False for a producer that cannot.

        A batch that was not acknowledged may be in the log. Its sequences are used again all the same. A leader that
        knows them says UNKNOWN_PRODUCER_ID, and only then the next transaction gets a new epoch (KIP-360).
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
        """Ends the transaction; raises Refused when it is refused, Fatal when nobody knows how it ended."""
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
        answer = await self._insist(request, version, deadline_s, on_lost)
        self._added.clear()
        if version >= 5:
            if (answer.producer_id, answer.producer_epoch) != (self.producer_id, self.epoch):
                self._sequences.clear()
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        elif lost:
            # The attempt that was lost may still arrive, and would end the next transaction of this epoch.
            await self.init()


def _take_for_written(batches: list[Batch]) -> None:
    """What is before an acknowledged batch of its key."""
    written: set[str] = set()
    for batch in reversed(batches):
        if batch.outcome == OK:
            written.add(batch.key)
        elif not batch.outcome and batch.key in written:
            batch.outcome = OK


def _requests(batches: list[Batch]) -> list[list[Batch]]:
    """What goes together, as from librdkafka: one batch of each key, the next ones in the next request."""
    requests: list[list[Batch]] = []
    sent: Counter[str] = Counter()
    for batch in batches:
        if sent[batch.key] == len(requests):
            requests.append([])
        requests[sent[batch.key]].append(batch)
        sent[batch.key] += 1
    return requests


def _code(answer: Any) -> int:
    """The error of an answer, wherever this message keeps it."""
    if hasattr(answer, "results_by_topic_v3_and_below"):
        codes = [
            row.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for row in topic.results_by_partition
        ]
        return next((code for code in codes if code), 0)
    if hasattr(answer, "topics"):
        codes = [row.error_code for topic in answer.topics for row in topic.partitions]
        return next((code for code in codes if code), 0)
    return int(answer.error_code)


Step = Callable[[], Awaitable[None]]
