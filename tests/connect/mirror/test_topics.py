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
    def test_topics_are_made_grown_and_set(self, world: World) -> None:
        said: list[str] = []
        name = f"{world.topic}.made"
        world.a.topics.create(name, partitions=2, configs={"cleanup.policy": "compact"})
        keeper = TopicSync(world.direction(), world.a, world.b, said.append)
        keeper.ensure({name: 2})
        assert len(world.b.topics.get(f"a.{name}").partitions) == 2
        assert world.b.configs.overrides("topic", f"a.{name}") == {"cleanup.policy": "compact", **TIMES}
        world.a.topics.add_partitions(name, 5)
        world.a.configs.alter("topic", name, {"retention.ms": "5"}, delete=["cleanup.policy"])
        keeper.ensure({name: 5})
        assert len(world.b.topics.get(f"a.{name}").partitions) == 5
        assert world.b.configs.overrides("topic", f"a.{name}") == {"retention.ms": "5", **TIMES}
        assert any("created: 2 partitions, 1 replicas" in one for one in said)
        before = len(said)
        keeper.run()
        assert len(said) == before, "nothing has changed"

    def test_a_topic_that_cannot_be_made_does_not_hold_up_the_others(self, world: World) -> None:
        said: list[str] = []
        long, wide, fine = (f"{world.topic}.{one}" for one in ("l" * 239, "0wide", "fine"))
        world.a.topics.create(wide, partitions=3)
        world.a.topics.create(long, partitions=1)
        world.a.topics.create(fine, partitions=1)
        world.b.topics.create(f"a.{wide}", partitions=1)
        target = Refusing(world.b.connection.bootstrap, f"a.{wide}")
        keeper = TopicSync(world.direction(), world.a, target, said.append)
        keeper.run()
        assert f"a.{fine}" in world.b.topics.names()
        assert keeper.rejected == {f"a.{wide}": "no more partitions here"}
        told = [one for one in said if "created" not in one and world.topic in one and "settings" not in one]
        assert sorted(told) == [
            f"topic a.{wide} of b: no more partitions here",
            f"topic {long} is not mirrored: with its prefix the name would be longer than 249 characters",
        ]
        assert not world.direction().selection.copies(long)
        assert world.direction(naming="identity").selection.copies(long)


class Refusing(Admin):
    """A cluster whose policy does not let one topic grow."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(bootstrap)
        add = self.topics.add_partitions

        def refuse(name: str, *given: Any, **more: Any) -> Any:
            if name == topic:
                raise ClientError("no more partitions here", code=ErrorCode.POLICY_VIOLATION)
            return add(name, *given, **more)

        self.topics.add_partitions = refuse  # type: ignore[method-assign]
