"""Real processes: drivers killed with -9 after a step, drivers and tasks that are stopped and wake up too late, Spark's own retries.

All steps, all mutants and random moments are in ``tests/chaos/test_sink_under_fire.py``; here are those that say most.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sink_world import Driver, World, messages

from millstream.cli.local_broker import LocalBroker

sys.path.insert(0, str(Path(__file__).resolve().parent))

pytest.importorskip("pyspark")
pytestmark = pytest.mark.timeout(900)

FAILED = 3


@pytest.fixture
def world(
    spark: Any, stream: Callable[..., Any], shared_broker: LocalBroker, topic_name: str, tmp_path: Path
) -> World:
    made = World(spark, stream, shared_broker, topic_name, tmp_path)
    made.topics(3)
    return made


@pytest.fixture
def start(world: World) -> Iterator[Callable[..., Driver]]:
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


def test_a_driver_killed_before_and_after_its_commit_leaves_every_record_once(
    world: World, start: Callable[..., Driver]
) -> None:
    world.put(*map(str, range(500)))
    for step in ("_record_progress", "_end"):
        assert start(die_after=step, times=2).wait() == -signal.SIGKILL
    world.run(world.rows(maxOffsetsPerTrigger=100).select("value"), world.sink())
    assert Counter(world.values()) == Counter(map(str, range(500)))
    assert len(messages(world.bootstrap, world.target, isolation="read_uncommitted")) > 500


@pytest.mark.parametrize(
    "where", [{"pause_before": "_record_progress"}, {"pause_task": True}], ids=["driver", "task"]
)
def test_whoever_was_stopped_and_wakes_up_later_changes_nothing(
    world: World, start: Callable[..., Driver], where: dict[str, Any]
) -> None:
    world.put(*map(str, range(300)))
    old = start(**where, batch_bytes=300, timeout_ms=600_000)
    old.wait_paused()
    old.signal(signal.SIGSTOP)
    world.run(world.rows(maxOffsetsPerTrigger=100).select("value"), world.sink())
    assert Counter(world.values()) == Counter(map(str, range(300)))
    before = len(messages(world.bootstrap, world.target, isolation="read_uncommitted"))
    old.go()
    old.signal(signal.SIGCONT)
    assert old.wait() == FAILED
    assert "shut out" in old.output()
    assert Counter(world.values()) == Counter(map(str, range(300)))
    assert len(messages(world.bootstrap, world.target, isolation="read_uncommitted")) == before


def test_a_task_that_spark_runs_again_does_not_write(world: World, start: Callable[..., Driver]) -> None:
    """With retries of tasks allowed, the second attempt raises and the batch begins again under another epoch."""
    world.put(*map(str, range(300)))
    driver = start(master="local[2,3]", kill_task=True, shuffle=True, batch_bytes=200, max_offsets=300)
    assert driver.wait() == 0, driver.output()[-3000:]
    assert Counter(world.values()) == Counter(map(str, range(300)))
    assert len(messages(world.bootstrap, world.target, isolation="read_uncommitted")) > 300
