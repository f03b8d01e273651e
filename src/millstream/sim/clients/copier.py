"""A consume-transform-produce loop, exactly once.

The offsets of its input are part of the transaction that holds its output.
"""

from __future__ import annotations

from typing import Any

from millstream.core.errors import ErrorCode
from millstream.sim.clients.channel import GROUP, Client, Lost, NotSent, Rejected, split_key
from millstream.sim.clients.consumers import Consumer
from millstream.sim.clients.producers import MOVED, Fatal, Producer
from millstream.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from millstream.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from millstream.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

_E = ErrorCode


class Copier:
    """Copies one key to another. Two copiers with the same name fence each other repeatedly."""

    def __init__(self, client: Client, name: str, source: str, version: int) -> None:
        self.client = client
        self.group = name
        self.source = source
        self.producer = Producer(client, name, version)
        self.consumer = Consumer(client, max_bytes=2048)

    async def begin(self) -> tuple[float, int]:
        """Fence the previous copier, then continue at its offset.

        Return the time of the offset fetch and the offset, -1 if there is none.
        """
        await self.producer.init()
        fetched_at = self.client.now
        offset = await self._committed()
        self.consumer.assign({self.source: max(offset, 0)})
        return fetched_at, offset

    async def _committed(self) -> int:
        topic, partition = split_key(self.source)
        request = OffsetFetchRequest(
            group_id=self.group,
            topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])],
            require_stable=True,
        )
        response = await self._request_until_done(
            request, 7, lambda a: a.error_code or a.topics[0].partitions[0].error_code
        )
        return int(response.topics[0].partitions[0].committed_offset)

    async def commit_offset(self, offset: int) -> None:
        """Add the position to the transaction."""
        topic, partition = split_key(self.source)
        producer = self.producer
        if producer.version < 2:
            await producer.request_until_done(
                AddOffsetsToTxnRequest(
                    transactional_id=producer.name,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                    group_id=self.group,
                ),
                3,
                30.0,
            )
        row = TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id=producer.name,
            group_id=self.group,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[row])],
        )
        version = 5 if producer.version >= 2 else 3
        await self._request_until_done(
            request, version, lambda a: a.topics[0].partitions[0].error_code
        )

    async def _request_until_done(self, request: Any, version: int, code_of: Any) -> Any:
        """Return the response of the group coordinator. Raises Fatal or Rejected."""
        until = self.client.now + 30.0
        while self.client.now < until:
            try:
                address = await self.client.coordinator(GROUP, self.group)
                response = await self.client.request(address, request, version)
                code = _E.of(code_of(response))
                if not code:
                    return response
                if code in MOVED:
                    self.client.forget_coordinator(GROUP, self.group)
                elif not code.retriable:
                    raise Rejected(code)
            except (Lost, NotSent):
                self.client.forget_coordinator(GROUP, self.group)
            except Rejected as error:
                if error.code not in MOVED and not error.code.retriable:
                    raise
            await self.client.back_off()
        raise Fatal("the group coordinator does not respond")
