"""Produce: validate and append batches. The response comes with the requested acknowledgements.

Versions that matter here:

* v0-v2 have message sets of magic 0 or 1, which are rebuilt as one batch of magic 2. v3 and later
  must have exactly one batch of magic 2 in each partition (KIP-98).
* v3: the transactional id. v3-v11 verify, v12 joins the transaction (``produce/transactions.py``).
* v7: zstd (KIP-110). Older requests with it get UNSUPPORTED_COMPRESSION_TYPE.
* v10: a producer at the wrong broker gets the current leader and its address (KIP-951).
* v11: clients know TRANSACTION_ABORTABLE. Older ones get INVALID_TXN_STATE (KIP-890).
* v13: topics by id (KIP-516).

Different from Kafka:

* v0-v2 are still served.
* Records are decoded only if the topic requires it (compaction, another codec, timestamps): small
  batches at once, large ones in a child process, while later requests of the connection wait.
  ``log/append.py`` decides.
* Later produces may overtake an appended produce that waits for its acknowledgement
  (``net/connection.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Container, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from millstream.broker.net.buffers import copy_of
from millstream.broker.net.context import RequestContext
from millstream.broker.net.responses import (
    CloseConnection,
    Encoded,
    FinishedResponse,
    Hold,
    NoResponse,
)
from millstream.broker.produce import transactions
from millstream.broker.produce.rebuild import rebuild_in_worker, rebuild_inline
from millstream.broker.produce.transactions import (
    Joined,
    OpeningBatch,
    PartitionKey,
    opens_transaction,
)
from millstream.cluster.replicas.partition import Partition
from millstream.cluster.replicas.watermark_waits import wait_high_watermark
from millstream.control.image import INTERNAL_TOPICS
from millstream.core.errors import ApiError, ErrorCode
from millstream.log.append import inspect
from millstream.log.producers.state import Verification
from millstream.ports.turns import Pace
from millstream.transactions.verification import operation_of_produce, produce_error
from millstream.wire import produce_codec
from millstream.wire.produce_codec import PartitionResult, ProduceRequest, TopicKey, rejection
from millstream.wire.records.compression import Codec
from millstream.wire.records.layout import (
    CODEC_MASK,
    FLAGS_AT,
    HEADER_SIZE,
    MAGIC,
    MAGIC_AT,
    TRANSACTIONAL,
)

if TYPE_CHECKING:
    from millstream.broker.services import ProduceServices
    from millstream.wire.records.convert import RebuildSpec

# How long the batches of one request are appended before others have their turn.
_APPEND_S = 0.004
# Kafka's own tools may repair internal topics under this client id.
_ADMIN_CLIENT = "__admin_client"

# The position of a result in the response: index of the topic, and of the partition within it.
Position = tuple[int, int]
# Records still to be appended: index of the topic, its key, and partitions with their records.
Remaining = list[tuple[int, TopicKey, list[tuple[int, memoryview | None]]]]


def handle_frame(
    services: ProduceServices, context: RequestContext, frame: memoryview, body: int
) -> FinishedResponse | Awaitable[FinishedResponse] | Hold:
    """Handle a frame. Produce decodes its own frames: see ``wire/produce_codec.py``."""
    produce = _Produce(services, context, produce_codec.decode(frame, body, context.version))
    if produce.request.acks not in (-1, 0, 1):
        return produce.reject_all(ErrorCode.INVALID_REQUIRED_ACKS)
    if produce.request.transactional_id is not None and transactions.has_several_producers(
        produce.request
    ):
        return produce.reject_all(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if not produce.append_all():
        return Hold(produce.append_rest())
    if produce.pending:
        return produce.wait()
    results = produce.results
    if len(results) == 1 and len(results[0][1]) == 1 and not results[0][1][0].error_code:
        services.produce_fast_path.remember(context, frame, body, produce.request)
    return produce.finish()


class _Produce:
    """One request, from its records to the response."""

    __slots__ = (
        "context",
        "leaders",
        "now_ms",
        "pending",
        "request",
        "results",
        "services",
        "version",
    )

    def __init__(
        self, services: ProduceServices, context: RequestContext, request: ProduceRequest
    ) -> None:
        self.services = services
        self.context = context
        self.request = request
        self.version = context.version
        self.now_ms = services.clock.now_ms()
        self.results: list[tuple[TopicKey, list[PartitionResult]]] = []
        # Appended batches without their acknowledgement: partition, last offset, and the leadership
        # (first leader epoch) of the append. Under a later leader, another batch may be at that
        # offset.
        self.pending: list[tuple[Partition, int, int, Position]] = []
        # Leaders of rejected partitions, on other brokers.
        self.leaders: set[int] = set()

    # ---- appending ----

    def append_all(self) -> bool:
        """Append what can be appended at once. Return whether that was everything.

        The rest needs the child process or a coordinator, or takes too long for one turn of the
        loop.
        """
        loop: asyncio.AbstractEventLoop | None = None
        first, until = True, 0.0
        for key, data in self.request.topics:
            results: list[PartitionResult] = []
            self.results.append((key, results))
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
                    if opens_transaction(partition, checked, self.version, self.now_ms) is not None:
                        return False
                    spec = self.inspect(partition, checked)
                    if spec is not None:
                        rebuilt = rebuild_inline(checked, spec)
                        if rebuilt is None:
                            return False
                        checked = rebuilt
                    results.append(self.append(partition, checked))
                except ApiError as error:
                    results.append(self.rejected(key, index, error, records))
        return True

    def append_rest(self) -> Coroutine[Any, Any, FinishedResponse | Awaitable[FinishedResponse]]:
        """Append the batches that ``append_all`` left, in a coroutine.

        The buffer of the frame is reused after this call, so the records are copied now.
        """
        remaining: Remaining = []
        for topic, (key, data) in enumerate(self.request.topics):
            done = len(self.results[topic][1]) if topic < len(self.results) else 0
            copies = [(index, copy_of(r) if r is not None else None) for index, r in data[done:]]
            remaining.append((topic, key, copies))
        # The views of the frame would keep its buffer.
        self.request = self.request._replace(topics=[])
        return self._append_rest(remaining)

    async def _append_rest(
        self, remaining: Remaining
    ) -> FinishedResponse | Awaitable[FinishedResponse]:
        size = sum(
            len(records) for _, _, data in remaining for _, records in data if records is not None
        )
        with self.services.request_memory.holding(size):
            await self._append_copies(remaining)
        return self.wait() if self.pending else self.finish()

    async def _append_copies(self, remaining: Remaining) -> None:
        pace = Pace()
        joined = await self.join(remaining)
        for topic, key, data in remaining:
            if topic == len(self.results):
                self.results.append((key, []))
            results = self.results[topic][1]
            for index, records in data:
                await pace.rest()
                try:
                    results.append(
                        await self.append_copy(key, index, records, joined.get((key, index)))
                    )
                except ApiError as error:
                    results.append(self.rejected(key, index, error, records))

    async def append_copy(
        self,
        key: TopicKey,
        index: int,
        records: memoryview | None,
        joined: Verification | ErrorCode | None,
    ) -> PartitionResult:
        partition = self.find(key, index)
        checked = self.check(records)
        if isinstance(joined, ErrorCode):
            raise ApiError(produce_error(joined, operation_of_produce(self.version)))
        spec = self.inspect(partition, checked)
        if spec is not None:
            checked = await rebuild_in_worker(self.services.convert_worker, checked, spec)
            # The partition may have been deleted or may have another leader now.
            partition = self.find(key, index)
        return self.append(partition, checked, joined)

    async def join(self, remaining: Remaining) -> Joined:
        """Let the batches that open a transaction join it, or verify that they are part of it."""
        if self.request.transactional_id is None:
            return {}

        def opening_batches(known: Container[PartitionKey]) -> list[OpeningBatch]:
            return self.opening_batches(remaining, known)

        return await transactions.join(
            self.services, self.request.transactional_id, self.version, opening_batches
        )

    def opening_batches(
        self, remaining: Remaining, known: Container[PartitionKey]
    ) -> list[OpeningBatch]:
        """Return the batches that open a transaction. The append reports errors of the others."""
        batches: list[OpeningBatch] = []
        for _topic, key, data in remaining:
            for index, records in data:
                if (key, index) in known:
                    continue
                try:
                    partition = self.find(key, index)
                    checked = self.check(records)
                    guard = opens_transaction(partition, checked, self.version, self.now_ms)
                    if guard is not None:
                        header = transactions.header_of(checked)
                        batches.append(OpeningBatch((key, index), partition, header, guard))
                except ApiError:
                    continue
        return batches

    def find(self, key: TopicKey, index: int) -> Partition:
        replicas = self.services.replicas
        partition = (
            replicas.leader_by_id(key, index)
            if isinstance(key, bytes)
            else replicas.leader(key, index)
        )
        topic = partition.tp.topic
        # A coordinator that loads the log would treat a client's records there as its own.
        if (
            topic[:2] == "__"
            and topic in INTERNAL_TOPICS
            and self.context.client_id != _ADMIN_CLIENT
        ):
            raise ApiError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {topic}"
            )
        return partition

    def check(self, records: memoryview | None) -> memoryview:
        """Check the format of the records against the request version."""
        if records is None or len(records) == 0:
            raise ApiError(
                ErrorCode.INVALID_RECORD, "Produce requests must have exactly one record batch"
            )
        if self.version < 3:
            return records
        if len(records) < HEADER_SIZE:
            raise ApiError(
                ErrorCode.INVALID_RECORD, "Produce requests must have exactly one record batch"
            )
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
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown codec {codec}")
        if codec == Codec.ZSTD and self.version < 7:
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7")
        if attributes & TRANSACTIONAL and self.request.transactional_id is None:
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

    def inspect(self, partition: Partition, records: memoryview) -> RebuildSpec | None:
        """Return how the records must be rebuilt before the append, or None."""
        spec = inspect(records, partition.online_log.config, now_ms=self.now_ms)
        if spec is None:
            return None
        return replace(spec, max_decompressed_bytes=self.services.max_decompressed_bytes)

    def append(
        self, partition: Partition, records: memoryview, guard: Verification | None = None
    ) -> PartitionResult:
        # A message set without messages (v0-v2) is not an error.
        if len(records) == 0:
            return PartitionResult(
                partition.tp.partition, log_start_offset=partition.online_log.log_start_offset
            )
        acks_all = self.request.acks == -1
        result = partition.append(records, now_ms=self.now_ms, needs_all=acks_all, guard=guard)
        log = partition.online_log
        if log.flush_due or (acks_all and log.high_watermark <= result.last_offset):
            position = len(self.results) - 1, len(self.results[-1][1])
            self.pending.append(
                (partition, result.last_offset, partition.leader_since_epoch, position)
            )
        return PartitionResult(
            partition.tp.partition,
            0,
            result.base_offset,
            result.append_time_ms,
            result.log_start_offset,
        )

    # ---- responding ----

    async def wait(self) -> FinishedResponse:
        """Wait for the acknowledgements, at most for the client's timeout.

        Batches must be flushed if ``flush.messages`` requires it, and with acks=all the high
        watermark must have passed them.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max(self.request.timeout_ms, 0) / 1000
        pace = Pace()
        for partition, offset, leader_since_epoch, (topic, index) in self.pending:
            await pace.rest()
            try:
                await self.services.replicas.flush_if_due(partition)
                if self.request.acks == -1:
                    left_s = deadline - loop.time()
                    await wait_high_watermark(partition, offset, leader_since_epoch, left_s)
            except ApiError as error:
                self.results[topic][1][index] = self.rejected(
                    partition.tp.topic, partition.tp.partition, error
                )
        return self.finish()

    def rejected(
        self, key: TopicKey, index: int, error: ApiError, records: memoryview | None = None
    ) -> PartitionResult:
        """Return the result of a rejected batch, with the leader if that is another broker."""
        replicas = self.services.replicas
        if records is not None:
            replicas.record_rejection(key, index, records, error)
        if (
            error.code is not ErrorCode.NOT_LEADER_OR_FOLLOWER
            or self.version < produce_codec.WITH_LEADERS
        ):
            return rejection(index, error)
        topic = replicas.name_of(key) if isinstance(key, bytes) else key
        leader = replicas.current_leader(topic, index)
        if leader is not None and leader[0] == self.services.node_id:
            # The batch follows a rejected one. A client that gets its own broker as the leader may
            # retry without a pause.
            leader = None
        if leader is not None:
            self.leaders.add(leader[0])
        return rejection(index, error)._replace(current_leader=leader)

    def reject_all(self, code: ErrorCode) -> FinishedResponse:
        error = ApiError(code)
        self.results = [
            (key, [rejection(index, error) for index, _ in data])
            for key, data in self.request.topics
        ]
        return self.finish()

    def finish(self) -> FinishedResponse:
        """Encode the response. With acks=0 there is none, and an error closes the connection."""
        if self.request.acks != 0:
            listener = self.context.connection.listener
            nodes = self.services.nodes.leaders(self.leaders, listener) if self.leaders else ()
            out = produce_codec.encode(
                self.version, self.context.correlation_id, self.results, nodes
            )
            return Encoded([out])
        for key, results in self.results:
            for result in results:
                if result.error_code:
                    code = ErrorCode.of(result.error_code)
                    raise CloseConnection(
                        f"acks=0 produce to {key!r}-{result.partition} failed: {code.name}"
                    )
        return NoResponse()
