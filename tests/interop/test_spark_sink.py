"""The Spark sink against Apache Kafka: the same transactions, the same progress,
the same refusals.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.apache_kafka import ApacheKafka

pytest.importorskip("pyspark")

from support.spark.sink_world import Driver, committed, create_topic, messages, produce


@pytest.fixture
def kafka(java_command: list[str], tmp_path: Path) -> Iterator[ApacheKafka]:
    broker = ApacheKafka(java_command, tmp_path / "kafka", {"group.initial.rebalance.delay.ms": 0})
    broker.start()
    yield broker
    broker.kill()


def test_a_killed_driver_leaves_every_record_once_in_apache_kafka(
    kafka: ApacheKafka, tmp_path: Path
) -> None:
    create_topic(kafka.bootstrap, "in", 2)
    create_topic(kafka.bootstrap, "out", 3)
    produce(kafka.bootstrap, "in", [str(number) for number in range(400)])
    fixed = {
        "bootstrap": kafka.bootstrap,
        "source": "in",
        "target": "out",
        "sink": "sink",
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    for number, step in enumerate(("_record_progress", "_end")):
        driver = Driver(tmp_path / f"driver-{number}", **fixed, die_after=step)
        assert driver.wait() == -signal.SIGKILL, driver.output()[-3000:]
    last = Driver(tmp_path / "last", **fixed)
    assert last.wait() == 0, last.output()[-3000:]
    assert Counter(committed(kafka.bootstrap, "out")) == Counter(
        b"%d" % number for number in range(400)
    )
    assert len(messages(kafka.bootstrap, "out", isolation="read_uncommitted")) > 400
    (progress,) = {m.key() for m in messages(kafka.bootstrap, "__millstream_progress")}
    assert progress == b"sink"


def test_a_stopped_driver_is_fenced_by_apache_kafka(kafka: ApacheKafka, tmp_path: Path) -> None:
    create_topic(kafka.bootstrap, "in", 2)
    create_topic(kafka.bootstrap, "out", 3)
    produce(kafka.bootstrap, "in", [str(number) for number in range(200)])
    fixed = {
        "bootstrap": kafka.bootstrap,
        "source": "in",
        "target": "out",
        "sink": "sink",
        "checkpoint": str(tmp_path / "checkpoint"),
        "batch_bytes": 300,
        "timeout_ms": 600_000,
    }
    old = Driver(tmp_path / "old", **fixed, pause_task=True)
    old.wait_paused()
    new = Driver(tmp_path / "new", **fixed)
    assert new.wait() == 0, new.output()[-3000:]
    old.go()
    assert old.wait() == 3
    assert "fenced this one" in old.output()
    assert Counter(committed(kafka.bootstrap, "out")) == Counter(
        b"%d" % number for number in range(200)
    )
