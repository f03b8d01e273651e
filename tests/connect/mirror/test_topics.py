"""Topics and their settings follow a mirror, on two real brokers and without Spark."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')
from millstream.client.admin.client import Admin
from millstream.client.errors import ClientError
from millstream.connect.mirror.settings import TIMES
from millstream.connect.mirror.topics import TopicSync
from millstream.core.errors import ErrorCode
from support.connect.mirror_directions import World


class TestTopics:
    def test_topics_are_created_grown_and_configured(self, world: World) -> None:
        remarks: list[str] = []
        name = f"{world.topic}.made"
        world.a.topics.create(name, partitions=2, configs={"cleanup.policy": "compact"})
        sync = TopicSync(world.direction(), world.a, world.b, remarks.append)
        sync.ensure({name: 2})
        assert len(world.b.topics.get(f"a.{name}").partitions) == 2
        assert world.b.configs.overrides("topic", f"a.{name}") == {
            "cleanup.policy": "compact",
            **TIMES,
        }
        world.a.topics.add_partitions(name, 5)
        world.a.configs.alter("topic", name, {"retention.ms": "5"}, delete=["cleanup.policy"])
        sync.ensure({name: 5})
        assert len(world.b.topics.get(f"a.{name}").partitions) == 5
        assert world.b.configs.overrides("topic", f"a.{name}") == {"retention.ms": "5", **TIMES}
        assert any("created: 2 partitions, 1 replicas" in remark for remark in remarks)
        before = len(remarks)
        sync.run()
        assert len(remarks) == before, "nothing has changed"

    def test_rejected_topic_does_not_stop_the_others(self, world: World) -> None:
        remarks: list[str] = []
        long, wide, fine = (f"{world.topic}.{name}" for name in ("l" * 239, "0wide", "fine"))
        world.a.topics.create(wide, partitions=3)
        world.a.topics.create(long, partitions=1)
        world.a.topics.create(fine, partitions=1)
        world.b.topics.create(f"a.{wide}", partitions=1)
        target = RejectingAdmin(world.b.connection.bootstrap, f"a.{wide}")
        sync = TopicSync(world.direction(), world.a, target, remarks.append)
        sync.run()
        assert f"a.{fine}" in world.b.topics.names()
        assert sync.rejected == {f"a.{wide}": "no more partitions here"}
        failures = [
            remark
            for remark in remarks
            if "created" not in remark and world.topic in remark and "settings" not in remark
        ]
        assert sorted(failures) == [
            f"topic a.{wide} of b: no more partitions here",
            f"topic {long} is not mirrored: with its prefix the name would be longer than 249 characters",
        ]
        assert not world.direction().selection.copies(long)
        assert world.direction(naming="identity").selection.copies(long)


class RejectingAdmin(Admin):
    """A cluster whose policy rejects more partitions for one topic."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(bootstrap)
        add = self.topics.add_partitions

        def reject(name: str, *args: Any, **options: Any) -> Any:
            if name == topic:
                raise ClientError("no more partitions here", code=ErrorCode.POLICY_VIOLATION)
            return add(name, *args, **options)

        self.topics.add_partitions = reject  # type: ignore[method-assign]
