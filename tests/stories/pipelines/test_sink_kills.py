"""Real processes: a driver and its task that are stopped and wake up too late.

Kills after every step and at random moments, Spark's own retries and more mutants are in
``tests/chaos/test_sink_under_fire.py``.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.local.broker import LocalBroker
from support.spark.sink_world import Driver, TopicWorld, messages

pytest.importorskip("pyspark")
pytestmark = pytest.mark.timeout(900)

FAILED = 3


@pytest.fixture
def world(
    spark: Any,
    stream: Callable[..., Any],
    shared_broker: LocalBroker,
    topic_name: str,
    tmp_path: Path,
) -> TopicWorld:
    made = TopicWorld(spark, stream, shared_broker, topic_name, tmp_path)
    made.topics(3)
    return made


@pytest.fixture
def start(world: TopicWorld) -> Iterator[Callable[..., Driver]]:
    drivers: list[Driver] = []

    def begin(**asked: Any) -> Driver:
        fixed = {
            "bootstrap": world.bootstrap,
            "source": world.source,
            "target": world.target,
            "sink": f"{world.name}-sink",
            "checkpoint": str(world.directory / "checkpoint"),
        }
        drivers.append(Driver(world.directory / f"driver-{len(drivers)}", **(fixed | asked)))
        return drivers[-1]

    yield begin
    for driver in drivers:
        driver.kill()


@pytest.mark.long
def test_whoever_was_stopped_and_wakes_up_later_changes_nothing(
    world: TopicWorld, start: Callable[..., Driver]
) -> None:
    """A driver stops in the middle of a batch, one of its tasks in the middle of writing; another
    one takes over.
    """
    world.per_batch = 100
    world.put(*map(str, range(300)))
    old = start(pause_task=True, batch_bytes=300, timeout_ms=600_000)
    old.wait_paused()
    old.signal(signal.SIGSTOP)
    world.run(world.rows().select("value"), world.sink())
    assert Counter(world.values()) == Counter(map(str, range(300)))
    before = len(messages(world.bootstrap, world.target, isolation="read_uncommitted"))
    old.go()
    old.signal(signal.SIGCONT)
    assert old.wait() == FAILED
    assert "fenced this one" in old.output()
    assert Counter(world.values()) == Counter(map(str, range(300)))
    assert len(messages(world.bootstrap, world.target, isolation="read_uncommitted")) == before
