"""``python -m nemesis.growing``: a cluster that grows, shrinks and is restarted under full load,
with its throughput second by second.

Three brokers of ``millstream up``; a fourth is added, a third of the partitions moves to it,
everything moves away from it again and it stops, then every broker is restarted in turn. Nothing
may be lost, doubled or reordered; the throughput is told, not judged. With ``--rounds`` all
partitions move on by one broker, again and again, before they move away: nothing tries producers
more than leaders that change all the time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from millstream.client import Admin
from millstream.local import cluster_file
from millstream.local.process import child_environment
from nemesis.load import UNKNOWN_OFFSET, read_offsets
from support.processes import wait_until

TOPIC = "load"
_TESTS = Path(__file__).resolve().parents[1]
_PATIENCE_S = 300.0
# In service the clients are on machines of their own. Here they share the processors with all
# brokers: these step back, else what is measured is how many processes the load has to share with.
_STEP_BACK = ("nice", "-n", "5")
# A partition keeps this much, so that neither the size of a disk nor its speed decides how long the
# load can last. What has been deleted goes at once. A reader that falls behind by more than this is
# told as lost records.
_KEPT_BYTES = 160_000_000
_SEGMENTS = 5
_CHECK_MS = 1_000
# Every partition three times, and while it moves once more; each may hold the segment that is
# written and one that is about to go.
_COPIES = 4


class Phase(NamedTuple):
    """What went on, from when to when."""

    name: str
    began: float
    ended: float


class Growing:
    """One run of it."""

    def __init__(
        self,
        directory: Path,
        *,
        partitions: int,
        padding: int,
        settle_s: float,
        throttle: int,
        kept_bytes: int = _KEPT_BYTES,
        rounds: int = 0,
    ) -> None:
        self.directory, self.data = directory, directory / "cluster"
        self._partitions, self._padding, self._settle_s = partitions, padding, settle_s
        # As an operator would: what moves must not take what producers need (0: as fast as it
        # goes).
        self._throttle = ["--throttle", str(throttle)] if throttle else []
        self._kept_bytes, self._rounds = kept_bytes, rounds
        self.phases: list[Phase] = []
        self._environment = child_environment()
        self._environment["PYTHONPATH"] += f"{os.pathsep}{_TESTS}"
        directory.mkdir(parents=True, exist_ok=True)

    # ---- what is done ----

    def run(self) -> list[str]:
        """What is wrong; nothing, it is hoped."""
        with (self.directory / "up.log").open("wb") as log:
            words = [
                "up",
                "--brokers",
                "3",
                "--port",
                "0",
                "--zookeeper-port",
                "0",
                "--format",
                "json",
            ]
            words += ["--set", f"log.retention.check.interval.ms={_CHECK_MS}"]
            cluster = subprocess.Popen(
                [*_STEP_BACK, sys.executable, "-m", "millstream", *words, "--data", str(self.data)],
                stdout=log,
                stderr=log,
                env=self._environment,
            )
        try:
            wait_until(self._is_up, "the cluster", _PATIENCE_S)
            return self._under_load()
        finally:
            cluster.send_signal(signal.SIGTERM)
            cluster.wait(120)

    def _is_up(self) -> bool:
        file = cluster_file.read(self.data)
        up = cluster_file.State.UP
        return (
            file is not None
            and len(file.brokers) == 3
            and all(one.state is up for one in file.brokers)
        )

    @property
    def bootstrap(self) -> str:
        file = cluster_file.read(self.data)
        assert file is not None
        return file.bootstrap

    def _under_load(self) -> list[str]:
        with Admin(self.bootstrap) as admin:
            admin.topics.create(
                TOPIC,
                partitions=self._partitions,
                replication_factor=3,
                configs={
                    "retention.bytes": str(self._kept_bytes),
                    "segment.bytes": str(self._kept_bytes // _SEGMENTS),
                    "file.delete.delay.ms": str(_CHECK_MS),
                },
            )
        writer, reader = self._job("write"), self._job("read")
        try:
            self._phases()
        finally:
            for job in (writer, reader):
                job.send_signal(signal.SIGTERM)
                job.wait(180)
        return self._judge()

    def _phases(self) -> None:
        self._phase("three brokers", lambda: time.sleep(5.0))
        self._phase(
            "a fourth is added", lambda: self._millstream("up", "--data", str(self.data), "--add")
        )
        self._phase("a third of the partitions moves to it", self._move)
        if self._rounds:
            self._phase(
                f"all partitions move on by one broker, {self._rounds} times", self._move_round
            )
        self._phase("everything moves away from it", self._move_away)
        self._phase(
            "the fourth stops",
            lambda: self._millstream("up", "--data", str(self.data), "--stop", "3"),
        )
        for node in "012":
            self._phase(f"broker {node} restarts", lambda node=node: self._restart(node))  # type: ignore[misc]

    def _phase(self, name: str, step: Any) -> None:
        print(f"  {name}", flush=True)
        began = time.monotonic()
        step()
        time.sleep(self._settle_s)
        self.phases.append(Phase(name, began, time.monotonic()))

    def _move(self) -> None:
        """Every third partition to the new broker, which then leads it."""
        with Admin(self.bootstrap) as admin:
            current = admin.reassignments.current([TOPIC])
        rows = [
            {"topic": tp.topic, "partition": tp.partition, "replicas": [3, *nodes[:2]]}
            for tp, nodes in sorted(current.items())
            if tp.partition % 3 == 0
        ]
        plan = self.directory / "plan.json"
        plan.write_text(json.dumps({"version": 1, "partitions": rows}))
        self._millstream("reassign", "execute", str(plan), *self._throttle, "-b", self.bootstrap)
        self._millstream("elect-leaders", "-b", self.bootstrap)

    def _move_round(self) -> None:
        with Admin(self.bootstrap) as admin:
            for _ in range(self._rounds):
                wanted = {
                    tp: [(node + 1) % 4 for node in nodes]
                    for tp, nodes in admin.reassignments.current([TOPIC]).items()
                }
                assert not admin.reassignments.start(wanted)
                wait_until(lambda: not admin.reassignments.moving(), "the moves", _PATIENCE_S)
                admin.reassignments.elect_leaders(wanted)

    def _move_away(self) -> None:
        self._millstream(
            "reassign", "execute", "--brokers", "0,1,2", *self._throttle, "-b", self.bootstrap
        )
        with Admin(self.bootstrap) as admin:
            nodes = {node for row in admin.reassignments.current().values() for node in row}
        assert nodes == {0, 1, 2}, nodes

    def _restart(self, node: str) -> None:
        self._millstream("up", "--data", str(self.data), "--stop", node)
        self._millstream("up", "--data", str(self.data), "--start", node)
        wait_until(self._in_sync, f"all in sync after the restart of {node}", _PATIENCE_S)
        self._millstream("elect-leaders", "-b", self.bootstrap)

    def _in_sync(self) -> bool:
        time.sleep(0.2)
        with Admin(self.bootstrap) as admin:
            return all(len(row.isr) == 3 for row in admin.topics.get(TOPIC).partitions)

    def _millstream(self, *words: str) -> None:
        done = subprocess.run(
            [*_STEP_BACK, sys.executable, "-m", "millstream", *words],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_S,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"

    def _job(self, name: str) -> subprocess.Popen[bytes]:
        options = {
            "job": name,
            "bootstrap": self.bootstrap,
            "topic": TOPIC,
            "partitions": self._partitions,
            "padding": self._padding,
            "rates": str(self.directory / f"{name}.rates"),
            "result": str(self.directory / f"{name}.json"),
        }
        with (self.directory / f"{name}.log").open("wb") as log:
            words = [sys.executable, "-m", "nemesis.load", json.dumps(options)]
            return subprocess.Popen(words, stdout=log, stderr=log, env=self._environment)

    # ---- what came of it ----

    def _judge(self) -> list[str]:
        written = json.loads((self.directory / "write.json").read_text())
        read = json.loads((self.directory / "read.json").read_text())
        wrong = [*written["errors"], *read["errors"]]
        if read["read"] != written["sent"]:
            wrong.append(f"sent {written['sent']}, read {read['read']}")
        told = read_offsets(self.directory / "write.offsets")
        seen = read_offsets(self.directory / "read.offsets")
        for index, (ours, theirs) in enumerate(zip(told, seen, strict=True)):
            if not _agree(ours, theirs):
                wrong.append(f"partition {index}: records are not where they were acknowledged")
        self.acknowledged = written["acknowledged"]
        return wrong

    def rates(self) -> list[tuple[float, int]]:
        lines = (self.directory / "write.rates").read_text().split("\n")
        return [(float(when), int(rate)) for when, rate in (line.split() for line in lines if line)]

    def tell(self) -> None:
        """The throughput of every phase, and second by second."""
        rates = self.rates()
        first = [rate for when, rate in rates if when <= self.phases[0].ended]
        base = statistics.median(first[3:] or first)
        began = rates[0][0]
        print(
            f"{'':44}{'s':>6}{'median':>9}{'lowest':>9}   lowest of the first phase's median, over 1 s and 5 s"
        )
        for phase in self.phases:
            mine = [rate for when, rate in rates if phase.began < when <= phase.ended]
            if mine:
                fives = [statistics.mean(mine[n : n + 5]) for n in range(max(len(mine) - 4, 1))]
                print(
                    f"{phase.name:44}{phase.ended - phase.began:6.1f}{statistics.median(mine):9.0f}{min(mine):9}"
                    f"   {min(mine) / base:.0%} {min(fives) / base:.0%}"
                )
        print(
            "records/s, second by second: "
            + " ".join(f"{when - began:.0f}:{rate}" for when, rate in rates)
        )
        print(f"{self.acknowledged} records acknowledged, of {self._padding + 8} bytes")


def _agree(told: Sequence[int], seen: Sequence[int]) -> bool:
    """Whether every record was read where it was acknowledged to be; that it was read at all has
    been counted.
    """
    return len(told) <= len(seen) and all(
        ours in (theirs, UNKNOWN_OFFSET) for ours, theirs in zip(told, seen, strict=False)
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="nemesis.growing", description=__doc__)
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--bytes", type=int, default=1000, help="of a record")
    parser.add_argument(
        "--settle", type=float, default=10.0, help="seconds of load after every step"
    )
    parser.add_argument(
        "--throttle",
        type=int,
        default=60_000_000,
        help="of what moves, bytes/s of a broker; 0 for none",
    )
    parser.add_argument(
        "--kept", type=int, default=_KEPT_BYTES, help="bytes that a partition keeps"
    )
    parser.add_argument(
        "--rounds", type=int, default=0, help="how often all partitions move on by one broker"
    )
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="of the data; in memory (/dev/shm) the speed of a disk is not measured",
    )
    arguments = parser.parse_args()
    needed = arguments.partitions * _COPIES * (arguments.kept + 2 * arguments.kept // _SEGMENTS)
    free = shutil.disk_usage(arguments.directory).free
    if free < needed:
        parser.error(
            f"this keeps up to {needed / 1e9:.0f} GB, and {arguments.directory} has {free / 1e9:.0f} GB free: give another --directory, or fewer --partitions"
        )
    directory = Path(tempfile.mkdtemp(prefix="millstream-growing-", dir=arguments.directory))
    growing = Growing(
        directory,
        partitions=arguments.partitions,
        padding=max(arguments.bytes - 8, 0),
        settle_s=arguments.settle,
        throttle=arguments.throttle,
        kept_bytes=arguments.kept,
        rounds=arguments.rounds,
    )
    wrong = growing.run()
    growing.tell()
    for line in wrong:
        print(f"WRONG {line}")
    print(f"kept in {directory}" if wrong else "nothing lost, doubled or reordered")
    if not wrong:
        shutil.rmtree(directory)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
