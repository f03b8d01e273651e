"""Group requests in short, and a world of groups in every state that a wrong request can meet."""

from __future__ import annotations

import uuid
from typing import Any

from compat.coordinator_case import failures, request
from compat.raw_client import RawConnection, ask
from compat.topics import create_topic

SESSION_MS = 30_000
PROTOCOLS = (("range", b"\x00\x00"),)


def join(
    group: str,
    member: str = "",
    *,
    session_ms: int = SESSION_MS,
    instance: str | None = None,
    kind: str = "consumer",
    protocols: tuple[tuple[str, bytes], ...] = PROTOCOLS,
) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout_ms": session_ms,
        "rebalance_timeout_ms": 30_000,
        "member_id": member,
        "group_instance_id": instance,
        "protocol_type": kind,
        "protocols": [{"name": name, "metadata": metadata} for name, metadata in protocols],
    }


def sync(
    group: str,
    member: str,
    generation: int,
    *,
    instance: str | None = None,
    kind: str | None = None,
    protocol: str | None = None,
) -> dict[str, Any]:
    return {
        "group_id": group,
        "generation_id": generation,
        "member_id": member,
        "group_instance_id": instance,
        "protocol_type": kind,
        "protocol_name": protocol,
        "assignments": [{"member_id": member, "assignment": b"mine"}],
    }


def heartbeat(
    group: str, member: str, generation: int, *, instance: str | None = None
) -> dict[str, Any]:
    return {
        "group_id": group,
        "generation_id": generation,
        "member_id": member,
        "group_instance_id": instance,
    }


def leave(group: str, *members: tuple[str, str | None]) -> dict[str, Any]:
    rows = [{"member_id": member, "group_instance_id": instance} for member, instance in members]
    return {"group_id": group, "members": rows}


def commit(
    group: str,
    topic: str | bytes,
    member: str = "",
    generation: int = -1,
    *,
    partition: int = 0,
    offset: int = 1,
    metadata: str | None = "",
    instance: str | None = None,
) -> dict[str, Any]:
    named = {"name": topic} if isinstance(topic, str) else {"topic_id": topic}
    row = {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
    return {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member,
        "group_instance_id": instance,
        "topics": [named | {"partitions": [row]}],
    }


def offset_fetch(group: str, topic: str, partition: int = 0, **member: Any) -> dict[str, Any]:
    """v8 and above: groups by themselves."""
    rows = [{"name": topic, "partition_indexes": [partition]}]
    return {"groups": [{"group_id": group, "topics": rows} | member], "require_stable": True}


class GroupWorld:
    """``stable``: one member. ``fixed``: one static member that came back, so that ``fenced`` is
    its old id. ``empty``: offsets only. ``joining``: its second member has joined, its first has
    not come back. ``connect``: members of another protocol type.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.run = uuid.uuid4().hex[:8]
        self.topic = create_topic(bootstrap, f"bad-input-{self.run}", 2)
        self._waiting: list[RawConnection] = []
        self.find()
        self.member = self._settle("stable")
        self.worker = self._settle("connect", kind="connect")
        self.fenced = self._settle("fixed", instance="i")
        self.static = ask(
            bootstrap, "JoinGroup", 9, request("JoinGroup", **join(self["fixed"], instance="i"))
        ).member_id
        answer = ask(
            bootstrap,
            "OffsetCommit",
            8,
            request("OffsetCommit", **commit(self["empty"], self.topic)),
        )
        assert failures(answer) == []
        self.waiting_member = self._settle("joining")
        self._begin_rebalance()

    def __getitem__(self, group: str) -> str:
        return f"{group}-{self.run}"

    def find(self) -> None:
        """Apache Kafka makes its internal topic a while after it was asked for it."""
        wanted = request("FindCoordinator", key_type=0, coordinator_keys=[self["stable"]])
        while failures(ask(self.bootstrap, "FindCoordinator", 4, wanted)):
            pass

    def _settle(self, group: str, **more: Any) -> str:
        """A member of its own group, joined and synced: generation 1."""
        with RawConnection(self.bootstrap) as connection:
            asked = join(self[group], **more)
            answer = connection.call(
                "JoinGroup", 3 if "instance" not in more else 9, request("JoinGroup", **asked)
            )
            while failures(answer):  # while Apache Kafka still loads the partition
                answer = connection.call(
                    "JoinGroup", 3 if "instance" not in more else 9, request("JoinGroup", **asked)
                )
            member: str = answer.member_id
            synced = connection.call(
                "SyncGroup",
                3,
                request("SyncGroup", **sync(self[group], member, 1, instance=more.get("instance"))),
            )
            assert failures(synced) == [] and bytes(synced.assignment) == b"mine"
        return member

    def _begin_rebalance(self) -> None:
        second = RawConnection(self.bootstrap)
        second.send("JoinGroup", 3, request("JoinGroup", **join(self["joining"])))
        self._waiting.append(second)
        beat = request("Heartbeat", **heartbeat(self["joining"], self.waiting_member, 1))
        while not failures(ask(self.bootstrap, "Heartbeat", 4, beat)):
            pass

    def close(self) -> None:
        for connection in self._waiting:
            connection.close()
