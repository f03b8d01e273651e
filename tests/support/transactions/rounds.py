"""A consume-transform-produce loop whose workers and broker are killed at random: every input has
its result exactly once.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from support.processes import wait_until
from support.transactions.worker import PATIENT

WORKER = Path(__file__).with_name("worker.py")
PATIENCE_S = 90.0


class Killable(Protocol):
    """A broker, or a cluster of which one after another is killed."""

    @property
    def bootstrap(self) -> str: ...

    def restart(self, *, kill: bool) -> object: ...


class Worker:
    """A process that is started again whenever it is found dead."""

    def __init__(self, log: Path, **options: Any) -> None:
        self._log = log
        self._words = json.dumps(options)
        self._process: subprocess.Popen[bytes] | None = None

    def keep_alive(self) -> None:
        if self._process is None or self._process.poll() is not None:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, str(WORKER), self._words],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def end_of(consumer: Consumer, index: int) -> int:
    """The end of a partition of the output; a leader that is just changing is asked again."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return int(
                consumer.get_watermark_offsets(TopicPartition("output", index), timeout=20)[1]
            )
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


class Rounds:
    """Inputs are written as it goes; ``run`` kills somebody every round."""

    def __init__(
        self,
        broker: Killable,
        directory: Path,
        *,
        seed: int,
        workers: int,
        partitions: int,
        kill_workers: bool = True,
    ) -> None:
        self._broker = broker
        self._bootstrap = broker.bootstrap
        self._dice = random.Random(seed)
        self._partitions = partitions
        self._sent = 0
        common = {"job": "transform", "bootstrap": self._bootstrap, "group": "transformers"}
        self._workers = [
            Worker(
                directory / f"worker-{n}.log",
                id=f"worker-{n}",
                input="input",
                output="output",
                **common,
            )
            for n in range(workers)
        ]
        self._victims = ["broker", *(self._workers if kill_workers else ())]

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            before = self._results()
            self._feed(100)
            self._wait(lambda: self._results() > before)  # noqa: B023
            time.sleep(self._dice.uniform(0, 0.1))  # another moment each time
            victim = self._dice.choice(self._victims)
            if isinstance(victim, Worker):
                victim.kill()
            else:
                self._broker.restart(kill=True)

    def _feed(self, count: int) -> None:
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, **PATIENT}
        )
        for number in range(self._sent, self._sent + count):
            producer.produce("input", b"%d" % number, partition=number % self._partitions)
        assert producer.flush(PATIENCE_S) == 0
        self._sent += count

    def _wait(self, condition: Any) -> None:
        def look() -> bool:
            for worker in self._workers:
                worker.keep_alive()
            return bool(condition())

        wait_until(look, "the workers to get on", PATIENCE_S)

    def _results(self) -> int:
        """How far the output goes, markers included."""
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "looker", **PATIENT})
        try:
            ends = [end_of(consumer, index) for index in range(self._partitions)]
        finally:
            consumer.close()
        return sum(ends)

    def check(self) -> None:
        """All that was committed, read to the end: twice every number, each exactly once."""
        found: Counter[int] = Counter()
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "checker",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                **PATIENT,
            }
        )
        consumer.assign([TopicPartition("output", index, 0) for index in range(self._partitions)])

        def complete() -> bool:
            for message in consumer.consume(500, 0.1):
                if message.error() is None:
                    found[int(message.value())] += 1
            return len(found) >= self._sent

        try:
            self._wait(complete)
            # What was doubled may come behind what was last missing: look on until nothing more is
            # open.
            ends = {index: end_of(consumer, index) for index in range(self._partitions)}

            def at_the_end() -> bool:
                complete()
                places = consumer.position([TopicPartition("output", index) for index in ends])
                return all(place.offset >= ends[place.partition] - 1 for place in places)

            self._wait(at_the_end)
        finally:
            consumer.close()
        assert found == Counter({2 * number: 1 for number in range(self._sent)})

    def __enter__(self) -> Rounds:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.kill()
