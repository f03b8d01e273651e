"""Two clusters, a mirror between them both ways, writers on both sides, a group that moves, and
whoever kills: for ``test_mirror_under_fire``.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from chaos.fire_world import QUICK, Driver, Fire, Transactions
from millstream.client.admin.client import Admin
from millstream.client.consumer import Consumer
from millstream.client.errors import ClientError
from millstream.client.producer import Producer
from millstream.client.record import Record
from millstream.connect.mirror.policy import HEADER
from millstream.core.types import TopicPartition
from millstream.local.broker import LocalBroker

T = TypeVar("T")

TOPIC, GROUP = "orders", "movers"
PARTITIONS = 2
PATIENCE_S = 300.0
BACK = 500
"""So many offsets before a position there is a record, if there is any: markers
and aborted records are fewer.
"""


class Side(NamedTuple):
    """A cluster and what it is called."""

    name: str
    broker: LocalBroker

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap


def until_it_works(attempt: Callable[[], T]) -> T:
    """Brokers are killed all the time: ask again."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return attempt()
        except ClientError:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(0.2)


def committed(side: Side) -> dict[TopicPartition, int]:
    def ask() -> dict[TopicPartition, int]:
        with Admin(side.bootstrap) as admin:
            return admin.groups.committed(GROUP)

    return until_it_works(ask)


class MirrorDriver(Driver):
    """``millstream mirror`` in a process of its own."""

    def __init__(self, directory: Path, sides: Sequence[Side], names: str) -> None:
        super().__init__(directory / "mirror", sides[0].bootstrap)
        self._sides, self.names = sides, names

    def start(self, *more: str, master: str | None = None) -> None:
        self.starts += 1
        here, there = (f"{one.name}={one.bootstrap}" for one in self._sides)
        words = [
            sys.executable,
            "-m",
            "millstream",
            "mirror",
            "--from",
            here,
            "--to",
            there,
            "--both",
        ]
        words += [
            "--topics",
            TOPIC,
            "--groups",
            GROUP,
            "--names",
            self.names,
            "--interval",
            "1 second",
        ]
        words += ["--master", "local[2]", "--format", "json", *more]
        words += [
            "--conf",
            "spark.default.parallelism=2",
            "--conf",
            f"spark.local.dir={self.scratch}",
            *QUICK,
        ]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                words,
                cwd=self.file.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | {"SPARK_HOME": str(self._spark_home)},
            )


class Open:
    """The open transactions of both directions, each in the cluster that it writes."""

    def __init__(self, sides: Sequence[Side]) -> None:
        a, b = sides
        flows = [f"mirror-a-b.{one.name}-to-{other.name}" for one, other in ((a, b), (b, a))]
        self._parts = [Transactions(b.bootstrap, flows[:1]), Transactions(a.bootstrap, flows[1:])]

    def __call__(self) -> set[str]:
        return self._parts[0]() | self._parts[1]()

    def close(self) -> None:
        for one in self._parts:
            one.close()


class MirrorFire(Fire):
    """The driver, its workers, and the brokers of both sides."""

    def __init__(self, driver: MirrorDriver, sides: Sequence[Side], seed: int) -> None:
        super().__init__(driver, sides[0].broker, Open(sides), seed, timeout_s=0)  # type: ignore[arg-type]
        self._sides = sides

    def _next(self) -> str:
        for one in self._rounds:
            return one
        deck = ["driver", "tasks", "broker_a", "broker_b"]
        self.dice.shuffle(deck)
        self._rounds = iter(deck)
        return next(self._rounds)

    def _broker_a(self) -> None:
        self._kill_broker(self._sides[0])

    def _broker_b(self) -> None:
        self._kill_broker(self._sides[1])

    def _kill_broker(self, side: Side) -> None:
        found = self.is_open()
        side.broker.kill()
        self._count(f"broker of {side.name}", found)
        time.sleep(self.dice.uniform(0.0, 3.0))
        side.broker.start()


class Writers:
    """A thread for each side that writes records of its own, plain and in transactions, some of
    which are aborted.
    """

    def __init__(self, sides: Sequence[Side], rate: int) -> None:
        self._rate = rate
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(one,), daemon=True) for one in sides
        ]
        self.counts = {one.name: 0 for one in sides}
        for one in self._threads:
            one.start()

    def stop(self) -> None:
        self._stop.set()
        for one in self._threads:
            one.join(PATIENCE_S)
            assert not one.is_alive(), "a writer hangs"

    def _write(self, side: Side) -> None:
        dice = random.Random(side.name)
        rounds = 0
        while not self._stop.is_set():
            rounds += 1
            transactional = rounds % 3 == 0
            with contextlib.suppress(ClientError, OneThatFails):
                if transactional:
                    self._transaction(side, rounds, dice)
                else:
                    with Producer(side.bootstrap, timeout_s=60) as producer:
                        self._some(side, producer, dice, 5 * self._rate)

    def _transaction(self, side: Side, rounds: int, dice: random.Random) -> None:
        with Producer(
            side.bootstrap, transactional_id=f"writer-{side.name}", timeout_s=60
        ) as producer:
            for _ in range(10):
                with producer.transaction():
                    self._some(side, producer, dice, self._rate // 5)
                    if dice.random() < 0.3:
                        producer.flush()
                        raise OneThatFails

    def _some(self, side: Side, producer: Producer, dice: random.Random, count: int) -> None:
        for _ in range(count):
            if self._stop.is_set():
                return
            number = self.counts[side.name] = self.counts[side.name] + 1
            key = None if number % 7 == 0 else b"%d" % (number % 50)
            value = None if number % 11 == 0 else f"{side.name}-{number}".encode()
            headers = [("n", b"%d" % number)] if number % 3 == 0 else None
            producer.send(
                TOPIC,
                value,
                key=key,
                headers=headers,
                partition=dice.randrange(PARTITIONS),
                timestamp_ms=number + 1,
            )
            producer.poll()
            time.sleep(1 / self._rate)


class OneThatFails(Exception):
    """What makes a writer abort."""


class Session(NamedTuple):
    """What the group read in one cluster before it moved on: from and to by partition, and all that
    was committed there then.
    """

    side: Side
    first: Mapping[TopicPartition, int]
    end: Mapping[TopicPartition, int]
    committed: Mapping[TopicPartition, int]

    def covers(self, place: TopicPartition, offset: int) -> bool:
        return place in self.first and self.first[place] <= offset < self.end[place]


class Mover:
    """The group: reads for a while in one cluster, then in the other. ``ready`` says when it may
    go.
    """

    def __init__(
        self,
        sides: Sequence[Side],
        topics: Mapping[str, list[str]],
        ready: Callable[[Session, Side], bool],
    ) -> None:
        self._sides, self._topics, self._ready = sides, topics, ready
        self.sessions: list[Session] = []
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(2 * PATIENCE_S)
        assert not self._thread.is_alive(), "the group hangs"
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if self._may_go():
                    self._read(for_s=10.0)
                time.sleep(0.5)
        except BaseException as error:
            self.error = error

    def _next_side(self) -> Side:
        return self._sides[len(self.sessions) % 2]

    def _may_go(self) -> bool:
        return not self.sessions or until_it_works(
            lambda: self._ready(self.sessions[-1], self._next_side())
        )

    def _read(self, *, for_s: float | None) -> None:
        """A session: for so long, or to the end. What was handed out counts as read when the broker
        says that it was committed.
        """
        side = self._next_side()
        first: dict[TopicPartition, int] = {}
        last: dict[TopicPartition, int] = {}
        deadline_s = time.monotonic() + (for_s or PATIENCE_S)
        with (
            contextlib.suppress(ClientError),
            self._consumer(side, to_end=for_s is None) as consumer,
        ):
            while time.monotonic() < deadline_s and not consumer.finished:
                batch = consumer.poll()
                for one in batch:
                    place = TopicPartition(one.topic, one.partition)
                    first.setdefault(place, one.offset)
                    last[place] = one.offset + 1
                if batch:
                    consumer.commit()
        there = committed(side)
        end = {place: min(offset, there.get(place, 0)) for place, offset in last.items()}
        self.sessions.append(Session(side, first, end, there))
        print(f"{time.strftime('%H:%M:%S')} the group has read in {side.name}", flush=True)

    def finish(self) -> None:
        """One more move, and to the end."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not self._may_go():
            assert time.monotonic() < deadline_s, (
                f"its offsets did not follow to {self._next_side().name}"
            )
            time.sleep(0.5)
        self._read(for_s=None)

    def _consumer(self, side: Side, *, to_end: bool) -> Consumer:
        return Consumer(
            side.bootstrap,
            self._topics[side.name],
            group=GROUP,
            auto_commit=False,
            until_end=to_end,
            options={"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000},
        )


def identity(side: Side, record: Record) -> str:
    """Which record it is, in whichever cluster it is found."""
    origins = [value for key, value in record.headers if key == HEADER]
    name = origins[-1].decode() if origins and origins[-1] else ""
    if name:
        return "/".join(
            name.split("/")[:4]
        )  # behind its place comes which topic of that name it is
    return f"{cluster_id(side)}/{record.topic}/{record.partition}/{record.offset}"


_ids: dict[str, str] = {}


def cluster_id(side: Side) -> str:
    if side.name not in _ids:
        with Admin(side.bootstrap) as admin:
            _ids[side.name] = admin.cluster.describe().id
    return _ids[side.name]


def last_before(side: Side, place: TopicPartition, offset: int) -> str | None:
    """The last committed record before an offset."""
    found = None
    if offset > 0:
        with Consumer(
            side.bootstrap,
            place.topic,
            partitions=[place.partition],
            start=max(0, offset - BACK),
            until_end=True,
        ) as consumer:
            for record in consumer:
                if record.offset >= offset:
                    break
                found = identity(side, record)
    return found


def everything(side: Side, topic: str) -> Iterator[Record]:
    with Consumer(side.bootstrap, topic, until_end=True) as consumer:
        for batch in consumer.batches(max_records=20_000):
            yield from batch
