"""The sink, killed at every step and at random moments, and the mutants that break its rules
(``make kills``).

``MILLSTREAM_CHAOS_ROUNDS`` says how many random kills (20), ``MILLSTREAM_KILL_SEED`` at which
moments.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.client.connection import Connection
from millstream.client.protocol import Protocol
from millstream.local.broker import LocalBroker
from millstream.spark.sink.transaction import TransactionOwner, retry
from millstream.spark.sink.writer import Writer
from support.spark.sink_world import Driver, committed, create_topic, messages, produce

pytest.importorskip("pyspark")

ROUNDS = int(os.environ.get("MILLSTREAM_CHAOS_ROUNDS", "20"))
SEED = int(os.environ.get("MILLSTREAM_KILL_SEED", time.time_ns() % 100_000))
STEPS = [
    "_fence",
    "_read_progress",
    "_is_committed",
    "_write",
    "_check",
    "_record_progress",
    "_end",
]
FAILED = 3
OPEN_WITHIN_S = 30.0


class Place:
    """A broker, an input and an output topic, and drivers that copy one to the other."""

    def __init__(self, broker: LocalBroker, directory: Path) -> None:
        self.broker, self.directory = broker, directory
        self.drivers: list[Driver] = []
        create_topic(broker.bootstrap, "in", 2)
        create_topic(broker.bootstrap, "out", 3)

    def start(self, **asked: Any) -> Driver:
        fixed = {
            "bootstrap": self.broker.bootstrap,
            "source": "in",
            "target": "out",
            "sink": "sink",
            "checkpoint": str(self.directory / "checkpoint"),
        }
        driver = Driver(self.directory / f"driver-{len(self.drivers)}", **(fixed | asked))
        self.drivers.append(driver)
        return driver

    def put(self, values: list[str]) -> None:
        produce(self.broker.bootstrap, "in", values)

    def values(self) -> Counter[str]:
        return Counter((value or b"").decode() for value in committed(self.broker.bootstrap, "out"))

    def written(self) -> int:
        return len(messages(self.broker.bootstrap, "out", isolation="read_uncommitted"))


@pytest.fixture
def place(broker: Callable[..., LocalBroker], tmp_path: Path) -> Iterator[Place]:
    made = Place(broker({}), tmp_path)
    yield made
    for driver in made.drivers:
        driver.kill()


@pytest.mark.timeout(0)
def test_killed_after_every_step(place: Place) -> None:
    expected = [str(number) for number in range(1000)]
    place.put(expected)
    for step in STEPS:
        driver = place.start(die_after=step)
        assert driver.wait() == -signal.SIGKILL, driver.output()[-3000:]
    last = place.start()
    assert last.wait() == 0, last.output()[-3000:]
    assert place.values() == Counter(expected)


@pytest.mark.timeout(0)
def test_a_stopped_driver_that_wakes_up_later_changes_nothing(place: Place) -> None:
    expected = [str(number) for number in range(300)]
    place.put(expected)
    old = place.start(pause_before="_record_progress", timeout_ms=600_000)
    old.wait_paused()
    old.signal(signal.SIGSTOP)
    new = place.start()
    assert new.wait() == 0, new.output()[-3000:]
    before = place.written()
    old.go()
    old.signal(signal.SIGCONT)
    assert old.wait() == FAILED and "fenced this one" in old.output()
    assert place.values() == Counter(expected)
    assert place.written() == before


@pytest.mark.timeout(0)
@pytest.mark.parametrize("shuffle", [False, True], ids=["files", "shuffle"])
def test_a_task_that_spark_runs_again_does_not_write(place: Place, shuffle: bool) -> None:
    """With retries of tasks allowed, the second attempt raises and the batch begins again under
    another epoch.
    """
    expected = [str(number) for number in range(300)]
    place.put(expected)
    driver = place.start(
        master="local[2,3]", kill_task=True, shuffle=shuffle, batch_bytes=200, max_offsets=300
    )
    assert driver.wait() == 0, driver.output()[-3000:]
    assert place.values() == Counter(expected)
    assert place.written() > 300


@pytest.mark.timeout(0)
@pytest.mark.parametrize("way", ["copy", "count", "few"])
def test_killed_at_random_moments_with_the_broker(place: Place, way: str) -> None:
    """Drivers and the broker die in turn; a run in which too few kills hit an open transaction does
    not count.
    """
    print(f"MILLSTREAM_KILL_SEED={SEED}")
    chance = random.Random(SEED)
    counted, few = way == "count", way == "few"
    expected = [str(number % 50 if counted else number) for number in range(20_000)]
    place.put(expected)
    hit = 0
    for round_ in range(ROUNDS):
        planned = planned_batches(place)
        driver = place.start(
            max_offsets=200, counted=counted, few=few, slow_s=0.5, batch_bytes=2000
        )
        while planned_batches(place) == planned:
            assert driver.process.poll() is None, driver.output()[-3000:]
            time.sleep(0.05)
        if (
            round_ % 2
        ):  # any moment at all, and in turn one within a transaction, however slow the machine is
            wait_open(place)
            time.sleep(chance.uniform(0.0, 0.4))
        else:
            time.sleep(chance.uniform(0.0, 4.0))
        hit += transaction_is_open(place)
        if round_ % 3 == 2:
            place.broker.kill()
            place.broker.restart()
            time.sleep(chance.uniform(0.0, 2.0))
        driver.kill()
    last = place.start(max_offsets=5000, counted=counted, few=few)
    assert last.wait(1200) == 0, last.output()[-3000:]
    if counted:
        newest: dict[bytes, int] = {}
        for message in messages(place.broker.bootstrap, "out"):
            assert int(message.value()) >= newest.get(message.key(), 0), "a count went back"
            newest[message.key()] = int(message.value())
        assert newest == {str(key).encode(): 400 for key in range(50)}
    else:
        assert place.values() == Counter(expected)
    assert hit >= ROUNDS // 5, f"only {hit} of {ROUNDS} kills hit an open transaction"


def planned_batches(place: Place) -> int:
    """How far the checkpoint has come; the batch of a dead driver counts once another one runs its
    next.
    """
    offsets = place.directory / "checkpoint" / "offsets"
    return max((int(one.name) for one in offsets.glob("[0-9]*")), default=-1)


def wait_open(place: Place) -> None:
    deadline_s = time.monotonic() + OPEN_WITHIN_S
    while not transaction_is_open(place) and time.monotonic() < deadline_s:
        time.sleep(0.02)


def transaction_is_open(place: Place) -> bool:
    from millstream.wire.messages.describe_transactions import DescribeTransactionsRequest

    protocol = Protocol(Connection(place.broker.bootstrap))
    try:
        request = DescribeTransactionsRequest(transactional_ids=["sink"])
        answer = protocol.ask(request, node=protocol.coordinator("sink", 1).node)
        return any(one.transaction_state == "Ongoing" for one in answer.transaction_states)
    finally:
        protocol.close()


@pytest.mark.timeout(0)
def test_the_broker_dies_between_the_decision_and_the_markers(place: Place) -> None:
    """A kill -9 within a few milliseconds of EndTxn, many times: what was committed stays whole."""
    from support.spark.sink_parts import batch_of, destination

    print(f"MILLSTREAM_KILL_SEED={SEED}")
    chance = random.Random(SEED)
    protocol = Protocol(Connection(place.broker.bootstrap))
    owner = TransactionOwner(protocol, "owner", timeout_ms=60_000, patience_s=60)
    owner.fence()
    for round_ in range(ROUNDS):
        to = retry(lambda: destination(place.broker.bootstrap, protocol, ["out"], owner), 60)
        writer = Writer(to)
        for partition in range(3):
            writer.send("out", partition, *batch_of(*(b"%d" % round_ for _ in range(10))))
        writer.finish()
        delay_s = chance.uniform(0, 0.008)
        killer = threading.Thread(
            target=lambda wait_s=delay_s: (time.sleep(wait_s), place.broker.restart(kill=True))
        )
        killer.start()
        owner.end(commit=True)
        killer.join()
    protocol.close()
    assert place.values() == Counter({str(round_): 30 for round_ in range(ROUNDS)})


# ---- mutants ----


@pytest.mark.timeout(0)
def test_mutant_without_the_check_of_attempts_loses_records(place: Place) -> None:
    expected = [str(number) for number in range(300)]
    place.put(expected)
    driver = place.start(
        master="local[2,3]",
        kill_task=True,
        shuffle=True,
        batch_bytes=100,
        max_offsets=300,
        mutant="any-attempt",
    )
    assert driver.wait() == 0, driver.output()[-3000:]
    assert place.values() != Counter(expected), (
        "the second attempt took the place of what the first had written"
    )


@pytest.mark.timeout(0)
@pytest.mark.parametrize("mutant", [False, True], ids=["fence-first", "read-first"])
def test_progress_must_be_read_after_fencing(place: Place, mutant: bool) -> None:
    """An old driver commits between the two steps of the new one's open: only in the right order is
    that harmless.
    """
    expected = [str(number) for number in range(100)]
    place.put(expected)
    # Not later: once its progress is written, reading it waits for the end of the transaction, and
    # hides the mistake.
    old = place.start(
        pause_before="_record_progress", die_after="_end", max_offsets=100, timeout_ms=600_000
    )
    old.wait_paused()
    new = place.start(
        pause_between=True,
        mutant="read-first" if mutant else "",
        max_offsets=100,
        timeout_ms=600_000,
    )
    new.wait_paused()
    old.go()
    assert old.wait() == (-signal.SIGKILL if mutant else FAILED), old.output()[-3000:]
    new.go()
    code = new.wait()
    if mutant:
        assert place.values() == Counter(expected * 2), "the mutant wrote the batch again"
    else:
        assert code == 0, new.output()[-3000:]
        assert place.values() == Counter(expected)
