"""Requests of consumer groups (KIP-848) in short, and a world of such groups that a wrong request
can meet.
"""

from __future__ import annotations

from typing import Any

from compat.coordinator_case import failures, request
from compat.group_requests import GroupWorld
from compat.raw_client import ask
from compat.topics import topic_id


def beat(group: str, member: str, epoch: int, **more: Any) -> dict[str, Any]:
    return {"group_id": group, "member_id": member, "member_epoch": epoch} | more


def join(group: str, member: str, *topics: str, **more: Any) -> dict[str, Any]:
    fields = {
        "rebalance_timeout_ms": 30_000,
        "subscribed_topic_names": list(topics),
        "topic_partitions": [],
    }
    return beat(group, member, 0, **(fields | more))


def owned(topic: bytes, *partitions: int) -> list[dict[str, Any]]:
    return [{"topic_id": topic, "partitions": list(partitions)}]


class ConsumerWorld(GroupWorld):
    """``readers``: ``m1``, which has both partitions. ``static``: ``s1`` with the instance ``i``;
    both are in ``epoch``. ``deserted``: nobody is left in it.
    """

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.topic_id = topic_id(bootstrap, self.topic)
        self.epoch: int = self.beat(join(self["readers"], "m1", self.topic)).member_epoch
        self.beat(join(self["static"], "s1", self.topic, instance_id="i"))
        self.beat(join(self["deserted"], "d1", self.topic))
        self.beat(beat(self["deserted"], "d1", -1))

    def beat(self, fields: dict[str, Any]) -> Any:
        answer = ask(
            self.bootstrap, "ConsumerGroupHeartbeat", 1, request("ConsumerGroupHeartbeat", **fields)
        )
        assert failures(answer) == [], answer
        return answer
