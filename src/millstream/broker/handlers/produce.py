"""Produce: validate, append, answer when the acknowledgements asked for are there.

v0-v2 carry message sets of magic 0 and 1, which are rebuilt as one v2 batch; v3 and later must carry exactly one v2
batch; zstd needs v7; v13 names topics by id. Records are decoded only where the topic demands it (compaction, another
codec, timestamps): small ones at once, large ones in a child process while the connection's later requests wait.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
from millstream.broker.produce_rebuild import rebuild_in_worker, rebuild_inline
from millstream.broker.responses import CloseConnection, Hold, NoResponse
from millstream.cluster.partition import Partition
from millstream.core.errors import ApiError, ErrorCode
from millstream.log.append import inspect
from millstream.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from millstream.broker.app import Broker

_MAGIC_AT, _ATTRIBUTES_AT = 16, 22
_CODEC, _ZSTD, _TRANSACTIONAL = 0x07, 4, 0x10
_HEADER = 61

Result = ProduceResponse | NoResponse


def handle(
    broker: Broker, context: RequestContext, request: ProduceRequest
) -> Result | Awaitable[Result] | Hold:
    if request.acks not in (-1, 0, 1):
        return _finish(request, _refuse_all(request, ErrorCode.INVALID_REQUIRED_ACKS))
    produce = _Produce(broker, context, request)
    try:
        responses = [produce.topic(topic) for topic in request.topic_data]
    except _NeedsWorker:
        return Hold(_AsyncProduce(produce, context).run())
    if produce.waits:
        return produce.wait(responses)
    return _finish(request, responses)


class _NeedsWorker(Exception):
    """A batch is too large to be decoded on the event loop."""


class _Produce:
    """One request. What has been appended is remembered, so that a second pass does not append it again."""

    def __init__(self, broker: Broker, context: RequestContext, request: ProduceRequest) -> None:
        self.broker = broker
        self.request = request
        self.version = context.version
        self.now_ms = broker.clock.now_ms()
        self.waits: list[tuple[Partition, int, PartitionProduceResponse]] = []
        self.done: dict[int, PartitionProduceResponse] = {}

    def topic(self, data: TopicProduceData) -> TopicProduceResponse:
        return TopicProduceResponse(
            name=data.name,
            topic_id=data.topic_id,
            partition_responses=[self.partition(data, one) for one in data.partition_data],
        )

    def partition(self, topic: TopicProduceData, data: PartitionProduceData) -> PartitionProduceResponse:
        try:
            partition = self.find(topic, data.index)
            records = self.check(data)
            spec = inspect(records, partition.online_log.config, now_ms=self.now_ms)
            if spec is not None:
                rebuilt = rebuild_inline(records, spec)
                if rebuilt is None:
                    raise _NeedsWorker
                records = rebuilt
            response = self.append(partition, records)
        except ApiError as error:
            response = failure(data.index, error)
        self.done[id(data)] = response
        return response

    def find(self, topic: TopicProduceData, index: int) -> Partition:
        replicas = self.broker.replicas
        if self.version >= 13:
            return replicas.leader_by_id(topic.topic_id, index)
        return replicas.leader(topic.name, index)

    def check(self, data: PartitionProduceData) -> memoryview:
        """What the request version says about the format of the records."""
        records = data.records
        if not isinstance(records, memoryview) or len(records) == 0:
            raise ApiError(ErrorCode.INVALID_RECORD, "Produce requests must have exactly one record batch")
        if self.version < 3:
            return records
        if len(records) < _HEADER:
            raise ApiError(ErrorCode.INVALID_RECORD, "Produce requests must have exactly one record batch")
        if records[_MAGIC_AT] in (0, 1):
            raise ApiError(
                ErrorCode.INVALID_RECORD,
                f"Produce version {self.version} may only contain batches of magic 2",
            )
        attributes = records[_ATTRIBUTES_AT]
        if self.version < 7 and attributes & _CODEC == _ZSTD:
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7")
        if attributes & _CODEC > _ZSTD:
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"there is no codec {attributes & _CODEC}")
        if attributes & _TRANSACTIONAL:
            self.refuse_transactional()
        return records

    def refuse_transactional(self) -> None:
        """There is no transaction coordinator yet, so no transaction can be open."""
        if self.request.transactional_id is None:
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        raise ApiError(ErrorCode.INVALID_TXN_STATE)

    def append(self, partition: Partition, records: memoryview) -> PartitionProduceResponse:
        acks_all = self.request.acks == -1
        result = self.broker.replicas.append(partition, records, now_ms=self.now_ms, needs_all=acks_all)
        response = PartitionProduceResponse(
            index=partition.tp.partition,
            base_offset=result.base_offset,
            log_append_time_ms=result.append_time_ms,
            log_start_offset=result.log_start_offset,
        )
        log = partition.online_log
        if log.flush_due or (acks_all and log.high_watermark <= result.last_offset):
            self.waits.append((partition, result.last_offset, response))
        return response

    async def wait(self, responses: list[TopicProduceResponse]) -> Result:
        """Until what must be flushed is (flush.messages), and for acks=all the high watermark has passed every
        batch; or the client's timeout."""
        timeout_s = max(self.request.timeout_ms, 0) / 1000
        deadline = asyncio.get_running_loop().time() + timeout_s
        for partition, offset, response in self.waits:
            try:
                await self.broker.replicas.flush_if_due(partition)
                if self.request.acks == -1:
                    left_s = deadline - asyncio.get_running_loop().time()
                    await self.broker.replicas.wait_high_watermark(partition, offset, left_s)
            except ApiError as error:
                response.error_code, response.base_offset = error.code, -1
        return _finish(self.request, responses)


class _AsyncProduce(_Produce):
    """The rest of a request with child-process work in between. The frame's buffer is reused after the first await,
    so the records are copied before."""

    def __init__(self, begun: _Produce, context: RequestContext) -> None:
        super().__init__(begun.broker, context, begun.request)
        self.waits, self.done = begun.waits, begun.done
        for topic in self.request.topic_data:
            for data in topic.partition_data:
                if data.records is not None and id(data) not in self.done:
                    data.records = memoryview(bytearray(data.records))

    async def run(self) -> Result | Awaitable[Result]:
        responses = []
        for topic in self.request.topic_data:
            done = [await self.partition_later(topic, data) for data in topic.partition_data]
            response = TopicProduceResponse(
                name=topic.name, topic_id=topic.topic_id, partition_responses=done
            )
            responses.append(response)
        return self.wait(responses) if self.waits else _finish(self.request, responses)

    async def partition_later(
        self, topic: TopicProduceData, data: PartitionProduceData
    ) -> PartitionProduceResponse:
        if id(data) in self.done:
            return self.done[id(data)]
        try:
            partition = self.find(topic, data.index)
            records = self.check(data)
            spec = inspect(records, partition.online_log.config, now_ms=self.now_ms)
            if spec is not None:
                records = await rebuild_in_worker(self.broker.convert_worker, records, spec)
                partition = self.find(topic, data.index)  # it may be gone by now
            return self.append(partition, records)
        except ApiError as error:
            return failure(data.index, error)


def failure(index: int, error: ApiError) -> PartitionProduceResponse:
    """A refused partition; per-record reasons where there are any (v8)."""
    return PartitionProduceResponse(
        index=index,
        error_code=error.code,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=-1,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=position, batch_index_error_message=message)
            for position, message in error.record_errors
        ],
        error_message=error.message,
    )


def _refuse_all(request: ProduceRequest, code: ErrorCode) -> list[TopicProduceResponse]:
    return [
        TopicProduceResponse(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[failure(data.index, ApiError(code)) for data in topic.partition_data],
        )
        for topic in request.topic_data
    ]


def _finish(request: ProduceRequest, responses: list[TopicProduceResponse]) -> Result:
    """acks=0 has no answer; an error then closes the connection, which is how its client learns of it."""
    if request.acks != 0:
        return ProduceResponse(responses=responses)
    for topic in responses:
        for partition in topic.partition_responses:
            if partition.error_code:
                code = ErrorCode.of(partition.error_code)
                raise CloseConnection(f"acks=0 produce to {topic.name}-{partition.index} failed: {code.name}")
    return NoResponse()
