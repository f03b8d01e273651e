"""Produce: validate, append, answer when the acknowledgements asked for are there.

v0-v2 carry message sets of magic 0 and 1, which are rebuilt as one v2 batch; v3 and later must carry exactly one v2
batch; zstd needs v7; v13 names topics by id. Records are decoded only where the topic demands it (compaction, another
codec, timestamps): small ones at once, large ones in a child process while the connection's later requests wait. From v10 on a
producer that comes to the wrong broker is told who leads, and where that is (KIP-951).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Container, Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.broker.net.buffers import copy_of
from millstream.broker.net.context import RequestContext
from millstream.broker.net.responses import CloseConnection, Encoded, Hold, NoResponse
from millstream.broker.produce.rebuild import rebuild_in_worker, rebuild_inline
from millstream.cluster.replicas.partition import Partition
from millstream.cluster.replicas.watermark_waits import wait_high_watermark
from millstream.control.image import INTERNAL_TOPICS
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.log.append import inspect
from millstream.log.producers.state import Verification
from millstream.ports.turns import Pace
from millstream.transactions.verification import Operation, operation_of_produce, produce_error
from millstream.wire import produce_codec
from millstream.wire.produce_codec import PartitionResult, ProduceRequest, TopicKey, rejection
from millstream.wire.records.batch import BatchHeader, CorruptBatch, parse_header
from millstream.wire.records.compression import Codec
from millstream.wire.records.layout import (
    BASE_SEQUENCE_AT,
    CODEC_MASK,
    FLAGS_AT,
    HEADER_SIZE,
    MAGIC,
    MAGIC_AT,
    PRODUCER_ID_AT,
    TRANSACTIONAL,
)

if TYPE_CHECKING:
    from millstream.broker.services import ProduceServices
    from millstream.wire.records.convert import RebuildSpec

# How long the batches of one request are appended before others have their turn.
_APPEND_S = 0.004
# Producer id and epoch of a batch.
_PRODUCER = slice(PRODUCER_ID_AT, BASE_SEQUENCE_AT)

Result = Encoded | NoResponse
# Where an answer stands: index of the topic, index of the partition within it.
Place = tuple[int, int]
# What is still to be appended: index of the topic, its key, and partitions with their records.
Left = list[tuple[int, TopicKey, list[tuple[int, memoryview | None]]]]


class _Joining(NamedTuple):
    """A batch that begins a transaction in its partition."""

    place: tuple[TopicKey, int]
    partition: Partition
    header: BatchHeader
    guard: Verification


def handle_frame(
    services: ProduceServices, context: RequestContext, frame: memoryview, body: int
) -> Result | Awaitable[Result] | Hold:
    """Produce decodes its own frames: see ``wire/produce_codec.py``."""
    produce = _Produce(services, context, produce_codec.decode(frame, body, context.version))
    if produce.request.acks not in (-1, 0, 1):
        return produce.refuse_all(ErrorCode.INVALID_REQUIRED_ACKS)
    if produce.request.transactional_id is not None and produce.speaks_for_many():
        return produce.refuse_all(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if not produce.append_all():
        return Hold(produce.append_rest())
    if produce.waits:
        return produce.wait()
    answered = produce.answers
    if len(answered) == 1 and len(answered[0][1]) == 1 and not answered[0][1][0].error_code:
        services.produce_fast_path.remember(context, frame, body, produce.request)
    return produce.finish()


# Kafka's own tools may repair internal topics under this name.
_ADMIN_CLIENT = "__admin_client"


class _Produce:
    """One request, from records to answers."""

    __slots__ = ("answers", "context", "leaders", "now_ms", "request", "services", "version", "waits")

    def __init__(self, services: ProduceServices, context: RequestContext, request: ProduceRequest) -> None:
        self.services = services
        self.context = context
        self.request = request
        self.version = context.version
        self.now_ms = services.clock.now_ms()
        self.answers: list[tuple[TopicKey, list[PartitionResult]]] = []
        # With the leader's leader_since_epoch at the append: what is in a log at that offset later may be another's.
        self.waits: list[tuple[Partition, int, int, Place]] = []
        self.leaders: set[int] = set()  # elsewhere, of refused partitions

    # ---- appending ------------------------------------------------------------------------------------------

    def append_all(self) -> bool:
        """Everything that can be done at once; False when a batch needs the child process or a coordinator, or all of them
        take too long for one turn of the loop."""
        loop: asyncio.AbstractEventLoop | None = None
        first, until = True, 0.0
        for key, data in self.request.topics:
            answers: list[PartitionResult] = []
            self.answers.append((key, answers))
            for index, records in data:
                if first:
                    first = False
                elif loop is None:
                    loop = asyncio.get_running_loop()
                    until = loop.time() + _APPEND_S
                elif loop.time() >= until:
                    return False
                try:
                    partition = self.find(key, index)
                    checked = self.check(records)
                    if self.begins_transaction(partition, checked) is not None:
                        return False
                    spec = self.inspect(partition, checked)
                    if spec is not None:
                        rebuilt = rebuild_inline(checked, spec)
                        if rebuilt is None:
                            return False
                        checked = rebuilt
                    answers.append(self.append(partition, checked))
                except ApiError as error:
                    answers.append(self.refused(key, index, error, records))
        return True

    def append_rest(self) -> Coroutine[Any, Any, Result | Awaitable[Result]]:
        """What ``append_all`` left, with waiting in between. The frame's buffer is reused after this
        call, so the records that are left are copied now."""
        left: Left = []
        for topic, (key, data) in enumerate(self.request.topics):
            done = len(self.answers[topic][1]) if topic < len(self.answers) else 0
            copies = [(index, copy_of(r) if r is not None else None) for index, r in data[done:]]
            left.append((topic, key, copies))
        self.request = self.request._replace(topics=[])  # views of the frame, which would keep its buffer
        return self._append_rest(left)

    async def _append_rest(self, left: Left) -> Result | Awaitable[Result]:
        size = sum(len(records) for _, _, data in left for _, records in data if records is not None)
        with self.services.request_memory.holding(size):
            await self._append_copies(left)
        return self.wait() if self.waits else self.finish()

    async def _append_copies(self, left: Left) -> None:
        pace = Pace()
        joined = await self.join(left)
        for topic, key, data in left:
            if topic == len(self.answers):
                self.answers.append((key, []))
            answers = self.answers[topic][1]
            for index, records in data:
                await pace.rest()
                try:
                    answers.append(await self.append_later(key, index, records, joined.get((key, index))))
                except ApiError as error:
                    answers.append(self.refused(key, index, error, records))

    async def append_later(
        self, key: TopicKey, index: int, records: memoryview | None, joined: Verification | ErrorCode | None
    ) -> PartitionResult:
        partition = self.find(key, index)
        checked = self.check(records)
        if isinstance(joined, ErrorCode):
            raise ApiError(produce_error(joined, operation_of_produce(self.version)))
        spec = self.inspect(partition, checked)
        if spec is not None:
            checked = await rebuild_in_worker(self.services.convert_worker, checked, spec)
            partition = self.find(key, index)  # it may be gone by now
        return self.append(partition, checked, joined)

    async def join(self, left: Left) -> dict[tuple[TopicKey, int], Verification | ErrorCode]:
        """By partition: the guard to append with, once the coordinator agreed, or what it said. It is asked once for all of them.

        A producer that joins with its records comes while the markers of its last transaction are still being written. It is cheaper
        to ask again here for a while than to have the records sent again.
        """
        joined: dict[tuple[TopicKey, int], Verification | ErrorCode] = {}
        if self.request.transactional_id is None:
            return joined
        operation = operation_of_produce(self.version)
        config, loop = self.services.config, asyncio.get_running_loop()
        until = loop.time() + config.integer("add.partitions.to.txn.retry.backoff.max.ms") / 1000
        while asked := self.to_be_asked(left, joined):
            codes = await self.ask([one.partition.tp for one in asked], asked[0].header)
            for one in asked:
                joined[one.place] = codes[one.partition.tp] or one.guard
            busy = [one.place for one in asked if joined[one.place] is ErrorCode.CONCURRENT_TRANSACTIONS]
            if not busy or operation.verify_only or loop.time() >= until:
                break
            for place in busy:
                del joined[place]
            await asyncio.sleep(config.integer("add.partitions.to.txn.retry.backoff.ms") / 1000)
        return joined

    def to_be_asked(self, left: Left, known: Container[tuple[TopicKey, int]]) -> list[_Joining]:
        """Batches that begin a transaction in their partition; what is wrong with others is told when they are appended."""
        found: list[_Joining] = []
        for _topic, key, data in left:
            for index, records in data:
                if (key, index) in known:
                    continue
                try:
                    partition = self.find(key, index)
                    checked = self.check(records)
                    guard = self.begins_transaction(partition, checked)
                    if guard is not None:
                        found.append(_Joining((key, index), partition, produced_header(checked), guard))
                except ApiError:
                    continue
        return found

    def begins_transaction(self, partition: Partition, records: memoryview) -> Verification | None:
        """KIP-890: the coordinator is asked before a partition sees its first batch of a transaction. The guard makes sure
        that no marker came in between."""
        if self.version < 3 or not records[FLAGS_AT] & TRANSACTIONAL:
            return None
        operation = operation_of_produce(self.version)
        if operation.verify_only and not partition.online_log.verify_transactions:
            return None  # transaction.partition.verification.enable=false
        header = produced_header(records)
        return partition.online_log.producer_state.start_verification(
            header.producer_id,
            header.base_sequence,
            header.producer_epoch,
            supports_epoch_bump=operation is Operation.JOIN,
            now_ms=self.now_ms,
        )

    async def ask(
        self, partitions: list[TopicPartition], header: BatchHeader
    ) -> Mapping[TopicPartition, ErrorCode]:
        """What the coordinator says to batches of one producer."""
        return await self.services.transactions.verify(
            self.request.transactional_id or "",
            header.producer_id,
            header.producer_epoch,
            partitions,
            verify_only=operation_of_produce(self.version).verify_only,
        )

    def speaks_for_many(self) -> bool:
        """A request has one transactional id, and that has one producer: batches of several are a client's mistake."""
        producers = {
            bytes(records[_PRODUCER])
            for _, data in self.request.topics
            for _, records in data
            if records is not None and len(records) >= HEADER_SIZE and is_transactional(records)
        }
        return len(producers) > 1

    def find(self, key: TopicKey, index: int) -> Partition:
        replicas = self.services.replicas
        found = replicas.leader_by_id(key, index) if isinstance(key, bytes) else replicas.leader(key, index)
        topic = found.tp.topic
        # What a client wrote there, a coordinator would take for its own when it reads the log again.
        if topic[:2] == "__" and topic in INTERNAL_TOPICS and self.context.client_id != _ADMIN_CLIENT:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {topic}")
        return found

    def check(self, records: memoryview | None) -> memoryview:
        """What the request version says about the format of the records."""
        if records is None or len(records) == 0:
            raise ApiError(ErrorCode.INVALID_RECORD, "Produce requests must have exactly one record batch")
        if self.version < 3:
            return records
        if len(records) < HEADER_SIZE:
            raise ApiError(ErrorCode.INVALID_RECORD, "Produce requests must have exactly one record batch")
        if records[MAGIC_AT] < MAGIC:
            raise ApiError(
                ErrorCode.INVALID_RECORD,
                f"Produce version {self.version} may only contain batches of magic 2",
            )
        attributes = records[FLAGS_AT]
        if attributes:
            self.check_attributes(attributes)
        return records

    def check_attributes(self, attributes: int) -> None:
        codec = attributes & CODEC_MASK
        if codec > Codec.ZSTD:
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"there is no codec {codec}")
        if codec == Codec.ZSTD and self.version < 7:
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7")
        if attributes & TRANSACTIONAL and self.request.transactional_id is None:
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

    def inspect(self, partition: Partition, records: memoryview) -> RebuildSpec | None:
        """How the records must be rebuilt before the append, if at all."""
        spec = inspect(records, partition.online_log.config, now_ms=self.now_ms)
        if spec is None:
            return None
        return replace(spec, max_decompressed_bytes=self.services.max_decompressed_bytes)

    def append(
        self, partition: Partition, records: memoryview, guard: Verification | None = None
    ) -> PartitionResult:
        if len(records) == 0:  # a message set without messages (v0-v2) is no error
            return PartitionResult(
                partition.tp.partition, log_start_offset=partition.online_log.log_start_offset
            )
        acks_all = self.request.acks == -1
        result = partition.append(records, now_ms=self.now_ms, needs_all=acks_all, guard=guard)
        log = partition.online_log
        if log.flush_due or (acks_all and log.high_watermark <= result.last_offset):
            place = len(self.answers) - 1, len(self.answers[-1][1])
            self.waits.append((partition, result.last_offset, partition.leader_since_epoch, place))
        return PartitionResult(
            partition.tp.partition, 0, result.base_offset, result.append_time_ms, result.log_start_offset
        )

    # ---- answering ------------------------------------------------------------------------------------------

    async def wait(self) -> Result:
        """Until what must be flushed is (flush.messages), and for acks=all the high watermark has passed every
        batch; or the client's timeout."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max(self.request.timeout_ms, 0) / 1000
        pace = Pace()
        for partition, offset, leader_since_epoch, (topic, position) in self.waits:
            await pace.rest()
            try:
                await self.services.replicas.flush_if_due(partition)
                if self.request.acks == -1:
                    left_s = deadline - loop.time()
                    await wait_high_watermark(partition, offset, leader_since_epoch, left_s)
            except ApiError as error:
                self.answers[topic][1][position] = self.refused(
                    partition.tp.topic, partition.tp.partition, error
                )
        return self.finish()

    def refused(
        self, key: TopicKey, index: int, error: ApiError, records: memoryview | None = None
    ) -> PartitionResult:
        """With the leader, where that is another broker."""
        replicas = self.services.replicas
        if records is not None:
            replicas.record_rejection(key, index, records, error)
        if error.code is not ErrorCode.NOT_LEADER_OR_FOLLOWER or self.version < produce_codec.WITH_LEADERS:
            return rejection(index, error)
        topic = replicas.name_of(key) if isinstance(key, bytes) else key
        leader = replicas.current_leader(topic, index)
        if leader is not None and leader[0] == self.services.node_id:
            leader = None  # what is behind a refused batch: told that it is in the right place, a client may try again without a pause
        if leader is not None:
            self.leaders.add(leader[0])
        return rejection(index, error)._replace(current_leader=leader)

    def refuse_all(self, code: ErrorCode) -> Result:
        error = ApiError(code)
        self.answers = [
            (key, [rejection(index, error) for index, _ in data]) for key, data in self.request.topics
        ]
        return self.finish()

    def finish(self) -> Result:
        """acks=0 has no answer; an error then closes the connection, which is how its client learns of it."""
        if self.request.acks != 0:
            listener = self.context.connection.listener
            nodes = self.services.nodes.leaders(self.leaders, listener) if self.leaders else ()
            out = produce_codec.encode(self.version, self.context.correlation_id, self.answers, nodes)
            return Encoded([out])
        for key, answers in self.answers:
            for answer in answers:
                if answer.error_code:
                    code = ErrorCode.of(answer.error_code)
                    raise CloseConnection(f"acks=0 produce to {key!r}-{answer.partition} failed: {code.name}")
        return NoResponse()


def is_transactional(records: memoryview) -> bool:
    """A batch of a transaction, by a producer that says who it is."""
    return bool(records[FLAGS_AT] & TRANSACTIONAL) and records[PRODUCER_ID_AT] < 0x80


def produced_header(records: memoryview) -> BatchHeader:
    try:
        return parse_header(records)
    except CorruptBatch as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
