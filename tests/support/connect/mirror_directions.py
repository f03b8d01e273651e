"""Both directions of a mirror between two brokers, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')
from millstream.client.admin.client import Admin
from millstream.client.producer import Producer
from millstream.connect.mirror.declare import directions
from millstream.connect.mirror.direction import Direction, Ids, find_ids
from millstream.connect.mirror.groups import GroupSync
from millstream.connect.mirror.policy import HEADER, Origin
from millstream.core.ids import id_text


class World(NamedTuple):
    a: Admin
    b: Admin
    topic: str
    group: str

    def direction(self, **given: Any) -> Direction:
        ends = f"a={self.a.connection.bootstrap}", f"b={self.b.connection.bootstrap}"
        return directions(*ends, topics=f"{self.topic}.*", **{"groups": self.group, **given})[0]

    def groups(self, **given: Any) -> GroupSync:
        direction = self.direction(**given)
        return GroupSync(direction, find_ids(direction), "own", self.a, self.b)

    def ids(self) -> Ids:
        return find_ids(self.direction())

    def send(self, admin: Admin, topic: str, count: int) -> None:
        with Producer(admin.connection.bootstrap) as producer:
            for number in range(count):
                producer.send(topic, b"%d" % number, partition=0)

    def copy(self, sources: Sequence[int], *, to: str | None = None, old: bool = False) -> None:
        """What a mirror from a would write to b; an ``old`` version did not name the topic's id."""
        topic_id = "" if old else id_text(self.a.protocol.topic_ids()[self.topic])
        with Producer(self.b.connection.bootstrap) as producer:
            for offset in sources:
                origin = Origin(self.ids().source, self.topic, 0, offset, topic_id)
                producer.send(
                    to or f"a.{self.topic}", b"c", partition=0, headers=[(HEADER, origin.encode())]
                )
