"""Simulated consumers: they fetch, drop aborted records as a client must, and keep positions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from millstream.core.errors import ErrorCode
from millstream.sim.clients.channel import Client, Lost, NotSent, split_key
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from millstream.wire.records.batch import parse_header, read_marker, read_records

_E = ErrorCode
_MAX_BYTES = 1 << 20
LATEST = -1
_NEAR_POLLS = 20


class Fetched(NamedTuple):
    """The result of one fetch for a key."""

    records: list[tuple[int, str]]
    next_offset: int
    high_watermark: int
    error: ErrorCode = ErrorCode.NONE


class Consumer:
    """Positions by key. A poll never fails: without a leader or a response it returns nothing."""

    def __init__(
        self, client: Client, *, committed: bool = True, max_bytes: int = _MAX_BYTES, rack: str = ""
    ) -> None:
        """Create a consumer.

        With a rack it reads from the replicas it is directed to (KIP-392), and returns to the
        leader from time to time.
        """
        self.client = client
        self.rack = rack
        self._near: dict[str, int] = {}
        self._polls = 0
        self.committed = committed
        self.positions: dict[str, int] = {}
        self.errors: list[ErrorCode] = []
        self._max_bytes = max_bytes

    def assign(self, positions: dict[str, int]) -> None:
        self.positions = dict(positions)

    async def poll(self, *, max_wait_ms: int = 100) -> dict[str, list[tuple[int, str]]]:
        """Return the next records of every key, and advance the positions."""
        received = {}
        self._polls += 1
        if self._polls % _NEAR_POLLS == 0:
            self._near.clear()
        for address, keys in (await self._by_leader()).items():
            try:
                response = await self.client.request(address, self._request(keys, max_wait_ms), 12)
            except (NotSent, Lost):
                self._forget(keys)
                continue
            for topic in response.responses:
                for row in topic.partitions:
                    key = f"{topic.topic}-{row.partition_index}"
                    fetched = decode(row, self.positions[key], committed=self.committed)
                    if fetched.error:
                        self.errors.append(fetched.error)
                        self._forget([key])
                        continue
                    if row.preferred_read_replica >= 0:
                        self._near[key] = row.preferred_read_replica
                    self.positions[key] = fetched.next_offset
                    if fetched.records:
                        received[key] = fetched.records
        return received

    async def _by_leader(self) -> dict[Any, list[str]]:
        leaders: dict[Any, list[str]] = {}
        for key in self.positions:
            try:
                leader = await self.client.leader(*split_key(key))
                near = self.client.address_of(self._near.get(key, -1))
                leaders.setdefault(near or leader, []).append(key)
            except NotSent:
                continue
        return leaders

    def _forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._near.pop(key, None)
            self.client.forget_leader(*split_key(key))

    def _request(self, keys: list[str], max_wait_ms: int) -> FetchRequest:
        topics: dict[str, list[FetchPartition]] = {}
        for key in keys:
            topic, partition = split_key(key)
            row = FetchPartition(
                partition=partition,
                fetch_offset=self.positions[key],
                partition_max_bytes=self._max_bytes,
            )
            topics.setdefault(topic, []).append(row)
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=_MAX_BYTES,
            isolation_level=1 if self.committed else 0,
            rack_id=self.rack,
            topics=[FetchTopic(topic=topic, partitions=rows) for topic, rows in topics.items()],
        )

    async def end_offset(self, key: str) -> int | None:
        """Return the end offset for the isolation level of the consumer, or None if unknown."""
        topic, partition = split_key(key)
        partition_row = ListOffsetsPartition(partition_index=partition, timestamp=LATEST)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=1 if self.committed else 0,
            topics=[ListOffsetsTopic(name=topic, partitions=[partition_row])],
        )
        try:
            response = await self.client.request(
                await self.client.leader(topic, partition), request, 5
            )
        except (NotSent, Lost):
            self._forget([key])
            return None
        row = response.topics[0].partitions[0]
        if row.error_code:
            self._forget([key])
            return None
        return int(row.offset)


def decode(row: Any, position: int, *, committed: bool) -> Fetched:
    """The records of an response from a position on, without those of aborted transactions."""
    if row.error_code:
        return Fetched([], position, -1, _E.of(row.error_code))
    aborted = sorted((a.first_offset, a.producer_id) for a in row.aborted_transactions or ())
    dropping: set[int] = set()
    records: list[tuple[int, str]] = []
    data = memoryview(bytes(row.records or b""))
    start = 0
    while start < len(data):
        header = parse_header(data, start)
        batch = data[start : start + header.size]
        start += header.size
        while committed and aborted and aborted[0][0] <= header.last_offset:
            dropping.add(aborted.pop(0)[1])
        if header.control:
            marker = read_marker(batch)
            if marker is not None and not marker.commit:
                dropping.discard(header.producer_id)
        elif not (header.transactional and header.producer_id in dropping):
            rows = read_records(batch, max_bytes=_MAX_BYTES)
            records += [
                (row.offset, (row.value or b"").decode()) for row in rows if row.offset >= position
            ]
        position = max(position, header.next_offset)
    return Fetched(records, position, row.high_watermark)
