"""Clients that delete.

A recycler creates a topic, fills it and deletes it, again and again. A trimmer deletes old records.
"""

from __future__ import annotations

import random
from typing import Any

from millstream.core.errors import ErrorCode
from millstream.sim.checks.history import OK
from millstream.sim.checks.state_checks import Incarnation, StartEvent
from millstream.sim.clients.channel import Client, Lost, NotSent, Rejected, split_key
from millstream.sim.clients.consumers import decode
from millstream.sim.clients.producers import Fatal, Producer
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from millstream.wire.messages.delete_topics import DeleteTopicsRequest
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

_E = ErrorCode
_EARLIEST = -2
_READ_S = 8.0


class Recycler:
    """Owns a topic name. Each incarnation of the topic has another id, and is read by it."""

    def __init__(self, client: Client, topic: str, replication: int, name: str) -> None:
        self.client = client
        self.topic = topic
        self.name = name
        self.replication = replication
        self._incarnations = 0

    async def recycle_once(self, dice: random.Random) -> Incarnation | None:
        """Create, fill and read the topic once. Return None if any step is in doubt.

        The incarnation that the records went to would be unknown.
        """
        try:
            if not await self._deleted():
                return None
            topic_id = await self._create()
            if topic_id is None:
                return None
            self._incarnations += 1
            acknowledged = await self._fill(dice)
            return Incarnation(
                topic_id, frozenset(acknowledged), frozenset(await self._read(topic_id))
            )
        except (NotSent, Lost, Fatal, Rejected):
            await self.client.back_off()
            return None

    async def _deleted(self) -> bool:
        """Delete the topic. Return whether the controller says that it does not exist."""
        for _ in range(20):
            request = DeleteTopicsRequest(topic_names=[self.topic], timeout_ms=5000)
            response = await self.client.request_any(request, 5)
            if response.responses[0].error_code == _E.UNKNOWN_TOPIC_OR_PARTITION:
                return True
            await self.client.back_off()
        return False

    async def _create(self) -> bytes | None:
        row = CreatableTopic(name=self.topic, num_partitions=1, replication_factor=self.replication)
        response = await self.client.request_any(
            CreateTopicsRequest(topics=[row], timeout_ms=5000), 7
        )
        created = response.topics[0]
        return bytes(created.topic_id) if created.error_code == 0 else None

    async def _fill(self, dice: random.Random) -> list[str]:
        """Produce some records. Return those that are certainly in this incarnation.

        A record that was sent twice is left out: the second attempt may have reached the next one.
        """
        self.client.forget_leader(self.topic, 0)
        producer = Producer(self.client)
        await producer.init()
        tag = f"{self.name}/{self._incarnations}"
        rows = [(f"{self.topic}-0", [f"{tag}:{i}"]) for i in range(dice.randint(1, 5))]
        batches = await producer.deliver(rows, deadline_s=10.0)
        return [value for b in batches if b.outcome == OK and not b.in_doubt for value in b.values]

    async def _read(self, topic_id: bytes) -> list[str]:
        position, values = 0, []
        until = self.client.now + _READ_S
        while self.client.now < until:
            row = FetchPartition(partition=0, fetch_offset=position, partition_max_bytes=1 << 20)
            topic = FetchTopic(topic_id=topic_id, partitions=[row])
            request = FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, topics=[topic])
            response = await self.client.request(
                await self.client.leader(self.topic, 0), request, 13
            )
            result = response.responses[0].partitions[0] if response.responses else None
            if result is None or result.error_code:
                self.client.forget_leader(self.topic, 0)
                await self.client.back_off()
                continue
            fetched = decode(result, position, committed=False)
            values += [value for _, value in fetched.records]
            position = fetched.next_offset
            if position >= fetched.high_watermark:
                break
        return values


class Trims:
    """Evidence about a key whose old records are deleted."""

    def __init__(self) -> None:
        self.acknowledged: list[tuple[str, int, str]] = []
        self.starts: list[StartEvent] = []
        self.requested: dict[str, int] = {}  # the largest offset of any DeleteRecords request


class Trimmer:
    """Writes to a key and deletes from it."""

    def __init__(self, client: Client, key: str, name: str, trims: Trims) -> None:
        self.client = client
        # A deposed leader that has not noticed yet lacks the deletions. A client that ignores
        # leader epochs would read from it.
        client.keeps_epochs = True
        self.key = key
        self.name = name
        self.trims = trims
        self.producer = Producer(client)
        self._count = 0
        trims.requested.setdefault(key, 0)

    async def round(self, dice: random.Random) -> bool:
        """Produce some records, delete some, and look up the log start.

        Return whether any were deleted.
        """
        values = [f"{self.name}:{self._count + i}" for i in range(dice.randint(1, 5))]
        self._count += len(values)
        (batch,) = await self.producer.deliver([(self.key, values)])
        if batch.outcome != OK:
            raise Fatal(batch.error)  # a sequence is missing
        deleted = False
        if batch.offset is not None:
            self.trims.acknowledged += [
                (self.key, batch.offset + i, v) for i, v in enumerate(values)
            ]
            deleted = await self._delete(max(batch.offset + len(values) - dice.randint(0, 12), 0))
        await self._observe_start()
        return deleted

    async def _delete(self, offset: int) -> bool:
        topic, partition = split_key(self.key)
        row = DeleteRecordsPartition(partition_index=partition, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic, partitions=[row])], timeout_ms=4000
        )
        started = self.client.now
        self.trims.requested[self.key] = max(self.trims.requested[self.key], offset)
        response = await self._request(request, 2)
        if response is None or response.topics[0].partitions[0].error_code:
            return False
        low = response.topics[0].partitions[0].low_watermark
        self.trims.starts.append(
            StartEvent(started, self.client.now, self.key, max(low, offset), False)
        )
        return True

    async def _observe_start(self) -> None:
        topic, partition = split_key(self.key)
        row = ListOffsetsPartition(partition_index=partition, timestamp=_EARLIEST)
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[row])]
        )
        started = self.client.now
        response = await self._request(request, 5)
        if response is not None and not response.topics[0].partitions[0].error_code:
            offset = response.topics[0].partitions[0].offset
            self.trims.starts.append(StartEvent(started, self.client.now, self.key, offset, True))

    async def _request(self, request: Any, version: int) -> Any:
        topic, partition = split_key(self.key)
        try:
            return await self.client.request(
                await self.client.leader(topic, partition), request, version
            )
        except (NotSent, Lost):
            self.client.forget_leader(topic, partition)
            return None
