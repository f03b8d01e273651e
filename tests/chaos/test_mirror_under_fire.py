"""Two clusters mirrored both ways while drivers, tasks and the brokers of both sides are killed
(``make mirror MINUTES=10``).

Writers on both sides send plain records and transactions, some of them aborted; a consumer group
moves from one cluster to the other and back. At the end what every cluster has of the other is
compared with the original, record by record, and what the group has read with what there was.

``MILLSTREAM_MIRROR_MINUTES`` says for how long (10), ``MILLSTREAM_MIRROR_RATE`` how many records a
second each side writes (100), ``MILLSTREAM_KILL_SEED`` who is killed and when.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')

from chaos.fire_world import leftovers
from chaos.mirror_fire import (
    PARTITIONS,
    TOPIC,
    MirrorDriver,
    MirrorFire,
    Mover,
    Session,
    Side,
    Writers,
    committed,
    everything,
    identity,
    last_before,
)
from millstream.client.admin.client import Admin
from millstream.client.record import Record
from millstream.connect.mirror.policy import HEADER
from millstream.core.types import TopicPartition
from millstream.local.broker import LocalBroker

MINUTES = float(os.environ.get("MILLSTREAM_MIRROR_MINUTES", "10"))
RATE = int(os.environ.get("MILLSTREAM_MIRROR_RATE", "100"))
SEED = int(os.environ.get("MILLSTREAM_KILL_SEED", time.time_ns() % 100_000))
PATIENCE_S = 900.0
SETTINGS = {
    "transaction.state.log.num.partitions": 1,
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    # Writers give records small numbers as times: nothing is old.
    "log.retention.check.interval.ms": 86_400_000,
}


@pytest.fixture
def sides(broker: Callable[..., LocalBroker]) -> list[Side]:
    made = [Side(name, broker(SETTINGS)) for name in "ab"]
    for one in made:
        with Admin(one.bootstrap) as admin:
            admin.topics.create(TOPIC, partitions=PARTITIONS)
    return made


@pytest.fixture(params=["prefix", "identity"])
def driver(
    request: pytest.FixtureRequest, sides: Sequence[Side], tmp_path: Path
) -> Iterator[MirrorDriver]:
    made = MirrorDriver(tmp_path, sides, request.param)
    yield made
    made.end()


def ready_to_go_on(sides: Sequence[Side]) -> Callable[[Session, Side], bool]:
    """Names tell topics apart: the group may go when each of its positions in the other cluster is
    behind the very record that it read last.
    """

    def other(side: Side, topic: str) -> str:
        theirs = next(one for one in sides if one is not side)
        return TOPIC if topic == f"{theirs.name}.{TOPIC}" else f"{side.name}.{topic}"

    def ready(last: Session, side: Side) -> bool:
        there = committed(side)
        return all(
            (place := TopicPartition(other(last.side, one.topic), one.partition)) in there
            and last_before(side, place, there[place]) == last_before(last.side, one, offset)
            for one, offset in last.committed.items()
        )

    return ready


def wait_for_topics(sides: Sequence[Side], names: dict[str, list[str]]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    for one in sides:
        with Admin(one.bootstrap) as admin:
            while not set(names[one.name]) <= set(admin.topics.names()):
                assert time.monotonic() < deadline_s, "the mirror makes no topics"
                time.sleep(0.5)


def burn(fire: MirrorFire, writers: Writers) -> None:
    print(f"\nMILLSTREAM_KILL_SEED={SEED}, {MINUTES:g} minutes", flush=True)
    began_s = time.monotonic()
    while time.monotonic() < began_s + MINUTES * 60 or not enough_kills(fire):
        assert time.monotonic() < began_s + 4 * MINUTES * 60, (
            f"too few kills hit an open batch\n{fire.report()}"
        )
        fire.round()
    writers.stop()
    print(f"{fire.report()}\n{writers.counts} records sent", flush=True)


def calm_down(fire: MirrorFire, times: int = 1) -> None:
    """What is left is mirrored in peace."""
    fire.stop_driver()
    for _ in range(times):
        fire.driver.start("--once")
        assert fire.driver.wait(PATIENCE_S) == 0, fire.driver.tail()


def enough_kills(fire: MirrorFire) -> bool:
    """Some of each kind, and one for each minute that hit an open batch."""
    kinds = ("driver", "broker of a", "broker of b")
    return (
        min(fire.kills[one] for one in kinds) >= max(1, int(MINUTES // 4))
        and fire.hits.total() >= MINUTES
    )


def kept(record: Record) -> tuple[object, ...]:
    headers = tuple(one for one in record.headers if one[0] != HEADER)
    return record.partition, record.timestamp_ms, record.key, record.value, headers


def by_partition(records: Sequence[Record]) -> list[tuple[object, ...]]:
    return [kept(one) for one in sorted(records, key=lambda one: (one.partition, one.offset))]


def read_by(sessions: Sequence[Session], logs: dict[tuple[str, str], list[Record]]) -> Counter[str]:
    """How often the group has read each record."""
    found: Counter[str] = Counter()
    for one in sessions:
        for (name, topic), records in logs.items():
            if name != one.side.name:
                continue
            for record in records:
                if one.covers(TopicPartition(topic, record.partition), record.offset):
                    found[identity(one.side, record)] += 1
    return found


@pytest.mark.timeout(0)
def test_both_clusters_have_everything_once(sides: Sequence[Side], driver: MirrorDriver) -> None:
    shared = driver.names == "identity"
    names = {
        "a": [TOPIC] if shared else [TOPIC, f"b.{TOPIC}"],
        "b": [TOPIC] if shared else [TOPIC, f"a.{TOPIC}"],
    }
    driver.start()
    wait_for_topics(sides, names)
    fire = MirrorFire(driver, sides, SEED)
    writers = Writers(sides, RATE)
    mover = Mover(sides, names, (lambda last, side: True) if shared else ready_to_go_on(sides))
    burn(fire, writers)
    mover.stop()
    calm_down(fire)
    mover.finish()
    calm_down(fire)
    mover.finish()

    logs = {
        (one.name, topic): list(everything(one, topic))
        for one in sides
        for topic in names[one.name]
    }
    if shared:
        check_shared(sides, logs)
    else:
        assert by_partition(logs["b", f"a.{TOPIC}"]) == by_partition(logs["a", TOPIC])
        assert by_partition(logs["a", f"b.{TOPIC}"]) == by_partition(logs["b", TOPIC])
    everyone = {
        identity(one, record)
        for one in sides
        for topic in names[one.name]
        for record in logs[one.name, topic]
    }
    times = read_by(mover.sessions, logs)
    assert not everyone - times.keys(), "the group has skipped records"
    repeated = [one for one, count in times.items() if count > 1]
    print(
        f"{len(everyone)} records; the group moved {len(mover.sessions) - 1} times and read {len(repeated)} of them again"
    )
    assert shared or not repeated
    for one in sides:
        assert leftovers(one.bootstrap, names[one.name]) == 0, "a transaction hangs"


def check_shared(sides: Sequence[Side], logs: dict[tuple[str, str], list[Record]]) -> None:
    """Both have the same records, each once, and those of one origin in their order."""
    for origin in sides:
        own = [one for one in logs[origin.name, TOPIC] if HEADER not in dict(one.headers)]
        other = next(one for one in sides if one is not origin)
        copies = [one for one in logs[other.name, TOPIC] if HEADER in dict(one.headers)]
        assert by_partition(copies) == by_partition(own)
