"""A simulated member of a classic consumer group.

It joins, assigns partitions if it leads, reads them, commits, and leaves or dies.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from millstream.core.errors import ErrorCode
from millstream.sim.clients.channel import GROUP, Client, Lost, NotSent, Rejected, split_key
from millstream.sim.clients.producers import MOVED
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

_E = ErrorCode
_SESSION_MS = 6_000
_REBALANCE_MS = 8_000


class Gone(Exception):
    """The membership has ended, or is in doubt: start over as a new member."""


class GroupMember:
    """One membership of a group."""

    def __init__(self, client: Client, group: str, keys: list[str]) -> None:
        self.client = client
        self.group = group
        self.member_id = ""
        self.generation = -1
        self.owned: list[str] = []
        self.rejoin_due = False
        self._keys = keys
        self._topics = sorted({split_key(key)[0] for key in keys})

    async def _request(self, request: Any, version: int, timeout_s: float = 5.0) -> Any:
        """Return the response of the coordinator. Raises Gone if there is none."""
        try:
            address = await self.client.coordinator(GROUP, self.group)
            return await self.client.request(address, request, version, timeout_s)
        except (Lost, NotSent, Rejected) as error:
            self.client.forget_coordinator(GROUP, self.group)
            raise Gone(str(error)) from None

    def _check(self, code: int) -> None:
        """Raise Gone for an error that ends the membership or means another coordinator."""
        error = _E.of(code)
        if error is _E.REBALANCE_IN_PROGRESS:
            self.rejoin_due = True
        elif error in MOVED:
            self.client.forget_coordinator(GROUP, self.group)
            raise Gone(error.name)
        elif error:
            raise Gone(error.name)

    # -- joining

    async def join(self) -> None:
        """Join the group, and learn the owned partitions of the new generation."""
        self.rejoin_due = False
        response = await self._join_once()
        if response.error_code == _E.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            response = await self._join_once()
        self._check(response.error_code)
        if self.rejoin_due:
            return
        self.member_id, self.generation = response.member_id, response.generation_id
        assignments = []
        if response.leader == self.member_id:
            assignments = self._assign(sorted(member.member_id for member in response.members))
        await self._sync(assignments)

    async def _join_once(self) -> Any:
        protocol = JoinGroupRequestProtocol(name="sim", metadata=_subscription(self._topics))
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=_SESSION_MS,
            rebalance_timeout_ms=_REBALANCE_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[protocol],
        )
        return await self._request(request, 5, _REBALANCE_MS / 1000 + 5)

    def _assign(self, members: list[str]) -> list[SyncGroupRequestAssignment]:
        shares: dict[str, list[str]] = {member: [] for member in members}
        for i, key in enumerate(self._keys):
            shares[members[i % len(members)]].append(key)
        return [
            SyncGroupRequestAssignment(member_id=member, assignment=_assignment(keys))
            for member, keys in shares.items()
        ]

    async def _sync(self, assignments: list[SyncGroupRequestAssignment]) -> None:
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            assignments=assignments,
        )
        response = await self._request(request, 3, _REBALANCE_MS / 1000 + 5)
        self._check(response.error_code)
        self.owned = [] if self.rejoin_due else _owned(bytes(response.assignment))

    # -- while in the group

    async def heartbeat(self) -> None:
        request = HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.member_id
        )
        self._check((await self._request(request, 3)).error_code)

    async def committed(self) -> dict[str, int]:
        """Return the committed offsets of the owned partitions; -1 if there is none."""
        request = OffsetFetchRequest(
            group_id=self.group,
            topics=[
                OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)
                for topic, indexes in by_topic(self.owned).items()
            ],
            require_stable=True,
        )
        while True:
            response = await self._request(request, 7)
            rows = [(topic.name, row) for topic in response.topics for row in topic.partitions]
            codes = {_E.of(row.error_code) for _, row in rows} | {_E.of(response.error_code)}
            if _E.UNSTABLE_OFFSET_COMMIT in codes:
                await asyncio.sleep(0.1)
                continue
            for code in sorted(codes):
                self._check(code)
            return {f"{name}-{row.partition_index}": row.committed_offset for name, row in rows}

    async def commit(self, offsets: dict[str, int]) -> bool:
        """Commit offsets. Return whether all are committed. Raises Gone if that is unknown."""
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for key, offset in offsets.items():
            topic, partition = split_key(key)
            row = OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=""
            )
            topics.setdefault(topic, []).append(row)
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            topics=[
                OffsetCommitRequestTopic(name=name, partitions=rows)
                for name, rows in topics.items()
            ],
        )
        response = await self._request(request, 7)
        codes = {row.error_code for topic in response.topics for row in topic.partitions}
        for code in sorted(codes):
            self._check(code)
        return codes == {0}

    async def leave(self) -> None:
        request = LeaveGroupRequest(
            group_id=self.group, members=[MemberIdentity(member_id=self.member_id)]
        )
        await self._request(request, 3)


def by_topic(keys: list[str]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for key in keys:
        topic, partition = split_key(key)
        topics.setdefault(topic, []).append(partition)
    return topics


# -- subscriptions and assignments, which the broker passes on unread


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _subscription(topics: list[str]) -> bytes:
    return (
        struct.pack(">hi", 0, len(topics)) + b"".join(map(_string, topics)) + struct.pack(">i", -1)
    )


def _assignment(keys: list[str]) -> bytes:
    topics = by_topic(keys)
    rows = [
        _string(topic) + struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)
        for topic, indexes in topics.items()
    ]
    return struct.pack(">hi", 0, len(rows)) + b"".join(rows) + struct.pack(">i", -1)


def _owned(data: bytes) -> list[str]:
    if not data:
        return []
    (count,) = struct.unpack_from(">i", data, 2)
    position, keys = 6, []
    for _ in range(count):
        (length,) = struct.unpack_from(">h", data, position)
        topic = data[position + 2 : position + 2 + length].decode()
        position += 2 + length
        (size,) = struct.unpack_from(">i", data, position)
        keys += [f"{topic}-{i}" for i in struct.unpack_from(f">{size}i", data, position + 4)]
        position += 4 + 4 * size
    return keys
