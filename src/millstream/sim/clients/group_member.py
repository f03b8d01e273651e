"""A simulated member of a classic consumer group: joins, assigns when it leads, reads what it owns, commits, leaves or dies."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from millstream.core.errors import ErrorCode
from millstream.sim.clients.channel import GROUP, Client, Lost, NotSent, Refused, split_key
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
    """Out of the group, or in doubt about it: begin again as a new member."""


class GroupMember:
    """One membership."""

    def __init__(self, client: Client, group: str, keys: list[str]) -> None:
        self.client = client
        self.group = group
        self.member_id = ""
        self.generation = -1
        self.owned: list[str] = []
        self.rejoin_due = False
        self._keys = keys
        self._topics = sorted({split_key(key)[0] for key in keys})

    async def _ask(self, request: Any, version: int, timeout_s: float = 5.0) -> Any:
        """The coordinator's answer; raises Gone when it cannot be had."""
        try:
            address = await self.client.coordinator(GROUP, self.group)
            return await self.client.ask(address, request, version, timeout_s)
        except (Lost, NotSent, Refused) as error:
            self.client.forget_coordinator(GROUP, self.group)
            raise Gone(str(error)) from None

    def _check(self, code: int) -> None:
        """Raises Gone for what ends a membership, or hides the coordinator."""
        error = _E.of(code)
        if error is _E.REBALANCE_IN_PROGRESS:
            self.rejoin_due = True
        elif error in MOVED:
            self.client.forget_coordinator(GROUP, self.group)
            raise Gone(error.name)
        elif error:
            raise Gone(error.name)

    # ---- joining --------------------------------------------------------------------------------------------

    async def join(self) -> None:
        """Returns with a generation and what this member owns in it."""
        self.rejoin_due = False
        answer = await self._join_once()
        if answer.error_code == _E.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            answer = await self._join_once()
        self._check(answer.error_code)
        if self.rejoin_due:
            return
        self.member_id, self.generation = answer.member_id, answer.generation_id
        assignments = []
        if answer.leader == self.member_id:
            assignments = self._assign(sorted(member.member_id for member in answer.members))
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
        return await self._ask(request, 5, _REBALANCE_MS / 1000 + 5)

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
        answer = await self._ask(request, 3, _REBALANCE_MS / 1000 + 5)
        self._check(answer.error_code)
        self.owned = [] if self.rejoin_due else _owned(bytes(answer.assignment))

    # ---- living ---------------------------------------------------------------------------------------------

    async def heartbeat(self) -> None:
        request = HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.member_id
        )
        self._check((await self._ask(request, 3)).error_code)

    async def committed(self) -> dict[str, int]:
        """The offsets of what it owns; -1 where there is none."""
        request = OffsetFetchRequest(
            group_id=self.group,
            topics=[
                OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)
                for topic, indexes in by_topic(self.owned).items()
            ],
            require_stable=True,
        )
        while True:
            answer = await self._ask(request, 7)
            rows = [(topic.name, row) for topic in answer.topics for row in topic.partitions]
            codes = {_E.of(row.error_code) for _, row in rows} | {_E.of(answer.error_code)}
            if _E.UNSTABLE_OFFSET_COMMIT in codes:
                await asyncio.sleep(0.1)
                continue
            for code in sorted(codes):
                self._check(code)
            return {f"{name}-{row.partition_index}": row.committed_offset for name, row in rows}

    async def commit(self, offsets: dict[str, int]) -> bool:
        """True when all of it is committed; raises Gone when that is in doubt."""
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
            topics=[OffsetCommitRequestTopic(name=name, partitions=rows) for name, rows in topics.items()],
        )
        answer = await self._ask(request, 7)
        codes = {row.error_code for topic in answer.topics for row in topic.partitions}
        for code in sorted(codes):
            self._check(code)
        return codes == {0}

    async def leave(self) -> None:
        request = LeaveGroupRequest(group_id=self.group, members=[MemberIdentity(member_id=self.member_id)])
        await self._ask(request, 3)


def by_topic(keys: list[str]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for key in keys:
        topic, partition = split_key(key)
        topics.setdefault(topic, []).append(partition)
    return topics


# ---- what members tell each other through the broker ------------------------------------------------------------


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _subscription(topics: list[str]) -> bytes:
    return struct.pack(">hi", 0, len(topics)) + b"".join(map(_string, topics)) + struct.pack(">i", -1)


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
