"""Read, transform, write, exactly once: the offsets of what was read are part of the transaction that holds what was written."""

from __future__ import annotations

from typing import Any

from millstream.core.errors import ErrorCode
from millstream.sim.clients.channel import GROUP, Client, Lost, NotSent, Refused, split_key
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
    """Copies one key to another. Two with the same name fence each other again and again."""

    def __init__(self, client: Client, name: str, source: str, version: int) -> None:
        self.client = client
        self.group = name
        self.source = source
        self.producer = Producer(client, name, version)
        self.consumer = Consumer(client, max_bytes=2048)

    async def begin(self) -> tuple[float, int]:
        """First fence, then read where the one before stopped: when that was asked for, and the offset, -1 for none."""
        await self.producer.init()
        asked = self.client.now
        offset = await self._committed()
        self.consumer.assign({self.source: max(offset, 0)})
        return asked, offset

    async def _committed(self) -> int:
        topic, partition = split_key(self.source)
        request = OffsetFetchRequest(
            group_id=self.group,
            topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])],
            require_stable=True,
        )
        answer = await self._insist(
            request, 7, lambda a: a.error_code or a.topics[0].partitions[0].error_code
        )
        return int(answer.topics[0].partitions[0].committed_offset)

    async def commit_offset(self, offset: int) -> None:
        """Makes the position part of the transaction."""
        topic, partition = split_key(self.source)
        producer = self.producer
        if producer.version < 2:
            await producer._insist(
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
        await self._insist(request, version, lambda a: a.topics[0].partitions[0].error_code)

    async def _insist(self, request: Any, version: int, code_of: Any) -> Any:
        """The group coordinator's answer; raises Fatal or Refused."""
        until = self.client.now + 30.0
        while self.client.now < until:
            try:
                address = await self.client.coordinator(GROUP, self.group)
                answer = await self.client.ask(address, request, version)
                code = _E.of(code_of(answer))
                if not code:
                    return answer
                if code in MOVED:
                    self.client.forget_coordinator(GROUP, self.group)
                elif not code.retriable:
                    raise Refused(code)
            except (Lost, NotSent):
                self.client.forget_coordinator(GROUP, self.group)
            except Refused as error:
                if error.code not in MOVED and not error.code.retriable:
                    raise
            await self.client.back_off()
        raise Fatal("the group coordinator does not answer")
