"""Two real brokers for the parts of a mirror that need no Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')
import millstream.testing
from millstream.client.admin.client import Admin
from support.connect.mirror_directions import World


@pytest.fixture(scope="module")
def admins() -> Iterator[tuple[Admin, Admin]]:
    with (
        millstream.testing.broker() as a,
        millstream.testing.broker() as b,
        Admin(a.bootstrap) as admin_a,
        Admin(b.bootstrap) as admin_b,
    ):
        yield admin_a, admin_b


@pytest.fixture
def world(admins: tuple[Admin, Admin]) -> World:
    world = World(*admins, f"t{uuid.uuid4().hex[:8]}", f"g{uuid.uuid4().hex[:8]}")
    world.a.topics.create(world.topic, partitions=1)
    world.b.topics.create(f"a.{world.topic}", partitions=1)
    return world
