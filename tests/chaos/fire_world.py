"""Who is killed and paused in ``test_pipeline_under_fire``: the driver with its JVM, executors,
Python workers, the broker.

A victim is stopped (SIGSTOP) before anybody looks whether it is in the middle of a transaction or
of files, so that what was seen still holds when it is killed. A broker cannot be asked while it is
stopped: it is asked, and killed at once.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from millstream.client.admin.client import Admin
from millstream.client.connection import Connection
from millstream.client.errors import ClientError
from millstream.client.protocol import TRANSACTION, Protocol
from millstream.core.types import TopicPartition
from millstream.local.broker import LocalBroker
from millstream.wire.messages.describe_transactions import DescribeTransactionsRequest
from support.spark import quick_jvm

GATEWAY = "org.apache.spark.deploy.SparkSubmit"
EXECUTOR = "CoarseGrainedExecutorBackend"
WORKER = "pyspark.daemon"
SOURCE = "python_streaming_source_runner"
MASTERS = ("local[2]", "local-cluster[1,2,1024]")
QUICK = [word for name, value in quick_jvm.CONF.items() for word in ("--conf", f"{name}={value}")]
OPEN = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})
NO_BROKER = "cannot reach a broker"
LOOK_S = 0.005
PATIENCE_S = 600.0


class Driver:
    """``millstream pipeline run`` in a process of its own; started again after every kill, on one
    of the masters in turn.
    """

    def __init__(self, file: Path, bootstrap: str) -> None:
        self.file, self.bootstrap = file, bootstrap
        self.log = file.with_suffix(".log")
        self.starts = 0
        self.masters: Sequence[str] = MASTERS
        self.scratch = file.parent / "scratch"
        self._spark_home = own_spark_home(file.parent / "spark-home")
        self._process: subprocess.Popen[bytes] | None = None
        self._seen: dict[int, psutil.Process] = {}

    def start(self, *more: str, master: str | None = None) -> None:
        master = master or self.masters[self.starts % len(self.masters)]
        self.starts += 1
        words = [sys.executable, "-m", "millstream", "pipeline", "run", str(self.file)]
        words += ["--master", master, "--bootstrap", self.bootstrap, "--format", "json", *more]
        words += [
            "--conf",
            "spark.default.parallelism=2",
            "--conf",
            "spark.sql.shuffle.partitions=2",
        ]
        words += ["--conf", f"spark.local.dir={self.scratch}"]
        words += QUICK
        environment = os.environ | {"SPARK_HOME": str(self._spark_home)}
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                words,
                cwd=self.file.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
            )

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait(self, timeout_s: float) -> int:
        assert self._process is not None
        return self._process.wait(timeout_s)

    def tail(self, lines: int = 40) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def processes(self, word: str) -> list[psutil.Process]:
        """Those below the driver whose command has this word."""
        if not self.running:
            return []
        assert self._process is not None
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in psutil.Process(self._process.pid).children(recursive=True):
                self._seen[one.pid] = one
                with contextlib.suppress(psutil.Error):
                    if word in " ".join(one.cmdline()):
                        found.append(one)
        return found

    def itself(self) -> list[psutil.Process]:
        """The driver and its JVM; not its executors, which find out by themselves as they would on
        other machines.
        """
        if not self.running:
            return []
        assert self._process is not None
        return [psutil.Process(self._process.pid), *self.processes(GATEWAY)]

    def executors(self) -> list[psutil.Process]:
        return self.processes(EXECUTOR)

    def workers(self) -> list[psutil.Process]:
        """The Python processes of tasks, without the daemons that fork them."""
        found = self.processes(WORKER)
        daemons = {one.pid for one in found}
        forked = []
        for one in found:
            with contextlib.suppress(psutil.Error):
                if one.ppid() in daemons:
                    forked.append(one)
        return forked

    def reap(self) -> None:
        if self._process is not None:
            self._process.wait()

    def end(self) -> None:
        """Nothing of it is left, also what its death has orphaned."""
        self.processes(WORKER)
        send(self.itself(), signal.SIGKILL)
        self.reap()
        send(list(self._seen.values()), signal.SIGKILL)


def send(processes: Sequence[psutil.Process], number: signal.Signals) -> int:
    """How many of them it reached; psutil sends nothing to another process that has taken over the
    number.
    """
    reached = 0
    for one in processes:
        with contextlib.suppress(psutil.Error):
            one.send_signal(number)
            reached += 1
    return reached


class Transactions:
    """The open transactions of these transactional ids, as the broker tells it; each has an epoch
    of its own.
    """

    def __init__(self, bootstrap: str, ids: Sequence[str]) -> None:
        self._bootstrap, self._ids = bootstrap, list(ids)
        self._protocol: Protocol | None = None

    def __call__(self) -> set[str]:
        try:
            if self._protocol is None:
                self._protocol = Protocol(Connection(self._bootstrap))
                for one in self._ids:
                    self._protocol.coordinator(one, TRANSACTION)
            answer = self._protocol.ask(DescribeTransactionsRequest(transactional_ids=self._ids))
        except (ClientError, OSError):
            self.close()
            return set()
        return {
            f"{one.transactional_id} {one.producer_id} {one.producer_epoch}"
            for one in answer.transaction_states
            if one.transaction_state in OPEN
        }

    def close(self) -> None:
        if self._protocol is not None:
            self._protocol.close()
            self._protocol = None


class Staged:
    """The batch of files that is on its way: staged, or decided and not yet recorded."""

    def __init__(self, hidden: Path) -> None:
        self._hidden = hidden

    def __call__(self) -> set[str]:
        return {one.name for one in self._hidden.glob("staging-*")}

    def close(self) -> None:
        pass


class Fire:
    """Kills and pauses at random moments, most of them while something is open, and keeps count."""

    def __init__(
        self,
        driver: Driver,
        broker: LocalBroker,
        is_open: Transactions | Staged,
        seed: int,
        timeout_s: float,
    ) -> None:
        self.driver, self.broker, self.is_open = driver, broker, is_open
        self.dice = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()
        self.pauses: Counter[str] = Counter()
        self.paused_open: Counter[str] = Counter()
        self._timeout_s = timeout_s
        self._rounds: Iterator[str] = iter(())
        self._struck: set[str] = set()
        self._expected = True
        """That no driver runs."""

    def round(self) -> None:
        """One misfortune, and how it was taken in."""
        if not self.driver.running:
            no_broker = NO_BROKER in self.driver.tail(
                3
            )  # it was killed before the driver had begun
            assert self._expected or no_broker, (
                f"the pipeline ended by itself:\n{self.driver.tail()}"
            )
            self._start_driver()
            self._expected = False
        what = self._next()
        time.sleep(self.dice.uniform(0.0, 2.0))
        if self.dice.random() < 0.85:
            self._lie_in_wait()
        getattr(self, f"_{what}")()

    def _start_driver(self) -> None:
        self.driver.start()

    def stop_driver(self) -> None:
        """The last one goes too, and its executors with it."""
        self.driver.end()

    def report(self) -> str:
        rows = [
            f"{kind}: {self.kills[kind]} kills, {self.hits[kind]} of them with a batch open"
            for kind in self.kills
        ]
        rows += [
            f"{kind}: {n} pauses, {self.paused_open[kind]} with a batch open"
            for kind, n in self.pauses.items()
        ]
        return "\n".join(
            [
                *rows,
                f"{self.driver.starts} drivers; {self.hits.total()} of {self.kills.total()} kills hit an open batch",
            ]
        )

    def _next(self) -> str:
        """Every kind comes as often as it should, in an order of its own."""
        for one in self._rounds:
            return one
        deck = self.deck()
        self.dice.shuffle(deck)
        self._rounds = iter(deck)
        return next(self._rounds)

    def deck(self) -> list[str]:
        kills = ["driver"] * 2 + ["tasks"] * 5 + ["broker_kill"] * 3
        return [*kills, "pause_driver", "pause_tasks", "pause_broker"]

    def _lie_in_wait(self) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not self.is_open() - self._struck:
            if not self.driver.running or time.monotonic() > deadline_s:
                return
            time.sleep(LOOK_S)
        time.sleep(self.dice.uniform(0.0, 0.3))

    def _strike(self, kind: str, victims: list[psutil.Process]) -> None:
        if not send(victims, signal.SIGSTOP):
            return
        found = self.is_open()
        if send(victims, signal.SIGKILL):
            self._count(kind, found)

    def _count(self, kind: str, found: set[str]) -> None:
        """A batch counts once: what a dead driver left open is not hit again."""
        hit = bool(found - self._struck)
        self._struck |= found
        self.kills[kind] += 1
        self.hits[kind] += hit
        print(
            f"{time.strftime('%H:%M:%S')} {kind} killed{', batch open' if hit else ''}", flush=True
        )

    def _driver(self) -> None:
        victims = self.driver.itself()
        if victims:
            self._strike("driver", victims)
            self.driver.reap()
            self._expected = True

    def _tasks(self) -> None:
        """An executor where there is one, or some of the Python workers; now and then the process
        that plans batches.
        """
        if self.dice.random() < 0.15:
            self._strike("source", self.driver.processes(SOURCE))
            return
        executors = self.driver.executors()
        if executors and self.dice.random() < 0.5:
            self._strike("executor", executors)
            return
        workers = self.driver.workers()
        self._strike("python worker", self.dice.sample(workers, (len(workers) + 1) // 2))

    def _broker_kill(self) -> None:
        found = self.is_open()
        self.broker.kill()
        self._count("broker", found)
        time.sleep(self.dice.uniform(0.0, 2.0))
        self.broker.start()

    def _pause(self, kind: str, victims: Sequence[psutil.Process]) -> None:
        """Seldom for longer than a transaction may last: the broker aborts it, and the batch has to
        begin again.
        """
        found = self.is_open()
        if not send(victims, signal.SIGSTOP):
            return
        if kind != "broker":
            found = self.is_open()
        self.pauses[kind] += 1
        self.paused_open[kind] += bool(found - self._struck)
        long = kind == "driver" and self.pauses[kind] % 3 == 1
        time.sleep(self._timeout_s + 3 if long else self.dice.uniform(0.2, 4.0))
        send(victims, signal.SIGCONT)

    def _pause_driver(self) -> None:
        self._pause("driver", self.driver.itself())

    def _pause_tasks(self) -> None:
        self._pause("python worker", self.driver.workers())

    def _pause_broker(self) -> None:
        self._pause("broker", [psutil.Process(self.broker.pid)])


def leftovers(bootstrap: str, topics: Sequence[str]) -> int:
    """Records behind the last stable offset of these topics: 0 when no transaction hangs."""
    with Admin(bootstrap) as admin:
        places = [one for name in topics for one in _partitions(admin, name)]
        ends = admin.offsets.list(dict.fromkeys(places, "latest"))
        stable = admin.offsets.list(dict.fromkeys(places, "latest"), isolation="read_committed")
    return sum(ends[place].offset - stable[place].offset for place in places)


def _partitions(admin: Admin, topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, one.id) for one in admin.topics.get(topic).partitions]


def own_spark_home(directory: Path) -> Path:
    """Spark's files under another roof: the workers of ``local-cluster`` keep their logs and jars
    beside them.

    Without its ``python``, as in ``millstream.spark.spark_home``: drivers that are killed all the
    time start all the time.
    """
    import pyspark

    directory.mkdir()
    for one in Path(pyspark.__file__).parent.iterdir():
        if one.name != "python":
            (directory / one.name).symlink_to(one)
    return directory
