"""Transaction requests in short, and a world of transactional ids in every state that a wrong
request can meet.
"""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

from compat.coordinator_case import failures, request
from compat.crafted import TRANSACTIONAL, batch
from compat.group_requests import GroupWorld
from compat.raw_client import RawConnection
from compat.raw_requests import produce
from compat.topics import create_topic, topic_id
from millstream.core.errors import ErrorCode


class Producer(NamedTuple):
    """Who speaks: as a coordinator knows it, or not quite."""

    transactional_id: str
    producer_id: int
    epoch: int

    def older(self) -> Producer:
        return self._replace(epoch=self.epoch - 1)

    def newer(self) -> Producer:
        return self._replace(epoch=self.epoch + 1)

    def other(self) -> Producer:
        return self._replace(producer_id=self.producer_id + 1_000_000)

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }


def init(transactional_id: str | None, timeout_ms: int = 60_000, **more: Any) -> dict[str, Any]:
    return {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms} | more


def add(who: Producer, *partitions: tuple[str, int]) -> dict[str, Any]:
    """v0 to v3, as clients send it."""
    return {f"v3_and_below_{name}": value for name, value in who.fields.items()} | {
        "v3_and_below_topics": [
            {"name": topic, "partitions": [index]} for topic, index in partitions
        ]
    }


def add_many(who: Producer, *partitions: tuple[str, int], verify: bool = False) -> dict[str, Any]:
    """v4 and above, as brokers send it."""
    topics = [{"name": topic, "partitions": [index]} for topic, index in partitions]
    return {"transactions": [who.fields | {"verify_only": verify, "topics": topics}]}


def add_offsets(who: Producer, group: str) -> dict[str, Any]:
    return who.fields | {"group_id": group}


def end(who: Producer, *, commit: bool = True) -> dict[str, Any]:
    return who.fields | {"committed": commit}


def offsets(
    who: Producer,
    group: str,
    topic: str,
    *,
    member: str = "",
    generation: int = -1,
    instance: str | None = None,
    partition: int = 0,
    metadata: str = "",
) -> dict[str, Any]:
    row = {"partition_index": partition, "committed_offset": 1, "committed_metadata": metadata}
    return who.fields | {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member,
        "group_instance_id": instance,
        "topics": [{"name": topic, "partitions": [row]}],
    }


def records(who: Producer, sequence: int = 0) -> bytes:
    return batch(producer=(who.producer_id, who.epoch, sequence), attributes=TRANSACTIONAL)


class TransactionWorld:
    """``idle``: never used. ``ongoing``: a transaction with the topic's partition 0. ``committed``
    and ``aborted``: ended ones. ``fenced``: what ``fencer`` was before its second instance came.
    ``stale``: the same, and the second has written. Groups of a GroupWorld for offsets.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.run = uuid.uuid4().hex[:8]
        self.topic = create_topic(bootstrap, f"bad-transactions-{self.run}", 2)
        self.topic_id = topic_id(bootstrap, self.topic)
        self.groups = GroupWorld(bootstrap)
        with RawConnection(bootstrap) as self._connection:
            self._find()
            self.idle = self._init("idle")
            self.ongoing = self._begun("ongoing")
            self.with_offsets = self._with_offsets("with-offsets")
            self.committed = self._ended("committed", commit=True)
            self.aborted = self._ended("aborted", commit=False)
            self.fenced = self._init("fenced")
            self.fencer = self._init("fenced")
            self.stale = self._written_twice("written-twice").older()
        self.stranger = Producer(self["stranger"], self.idle.producer_id, 0)

    def __getitem__(self, transactional_id: str) -> str:
        return f"{transactional_id}-{self.run}"

    def _find(self) -> None:
        wanted = request("FindCoordinator", key_type=1, coordinator_keys=[self["idle"]])
        while failures(self._connection.call("FindCoordinator", 4, wanted)):
            pass

    def _call(self, api: str, version: int, fields: dict[str, Any]) -> Any:
        """Until the coordinator is ready: Apache Kafka loads, and may still write the markers of
        what ended before.
        """
        waiting = {
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.CONCURRENT_TRANSACTIONS,
        }
        while True:
            answer = self._connection.call(api, version, request(api, **fields))
            found = set(failures(answer))
            if not found & waiting:
                assert found == set(), answer
                return answer

    def _init(self, name: str) -> Producer:
        answer = self._call("InitProducerId", 4, init(self[name]))
        return Producer(self[name], answer.producer_id, answer.producer_epoch)

    def _begun(self, name: str) -> Producer:
        who = self._init(name)
        self._call("AddPartitionsToTxn", 3, add(who, (self.topic, 0)))
        answer = self._connection.call(
            "Produce", 9, produce(self.topic, records(who), transactional_id=who.transactional_id)
        )
        assert failures(answer) == []
        return who

    def _with_offsets(self, name: str) -> Producer:
        who = self._init(name)
        for group in ("stable", "fixed", "empty"):
            self._call("AddOffsetsToTxn", 3, add_offsets(who, self.groups[group]))
        return who

    def _ended(self, name: str, *, commit: bool) -> Producer:
        who = self._begun(name)
        self._call("EndTxn", 3, end(who, commit=commit))
        return who

    def _written_twice(self, name: str) -> Producer:
        """Its second epoch has written to the partition too."""
        self._ended(name, commit=True)
        return self._ended(name, commit=True)

    def close(self) -> None:
        self.groups.close()
