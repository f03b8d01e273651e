"""``python -m nemesis.run --minutes 5`` (``make chaos MINUTES=5``): a cluster under fire, and the
verdict over what its clients saw.

A run in which too little happened fails as well. What is wrong is printed, with the place of
everything that was kept: data directories, logs, histories, and the timeline of what was done to
whom and what the cluster made of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from millstream.client import Admin
from millstream.sim.checks.history import ASSIGN, OK, POLL, TXN, Op, Poll
from millstream.sim.checks.history_checks import Violation
from millstream.sim.checks.verdict import Evidence, judge
from nemesis import lab
from nemesis.client import COPIERS, READERS, split
from nemesis.disk import replicas
from nemesis.faults import Nemesis
from nemesis.fleet import Clients, Fleet
from nemesis.lab import Lab
from nemesis.records import Recorder, Records, decode
from nemesis.resent import sent_again, without_sent_again
from nemesis.watch import Watch
from support.processes import complaints

PARTITIONS = {"data": 4, "source": 2, "copies": 2}
DATA = [f"data-{n}" for n in range(PARTITIONS["data"])]
SOURCE = [f"source-{n}" for n in range(PARTITIONS["source"])]
COPIES = [f"copies-{n}" for n in range(PARTITIONS["copies"])]
PROTOCOLS = ("range", "cooperative-sticky", "consumer")
# These come first, so that even a short run has seen the worst.
FIRST = ("kill", "cut from zookeeper", "pause", "cut from brokers", "full disk", "zookeeper kill")
_SETTLE_S = 120.0
LEADERS = "leaders.json"  # who led each partition when all was over
# What there is at least in a minute of trouble; a run with less has proved nothing. Of these one,
# however short it is:
ONCE = {"elections", "isr changes", "kills", "cuts"}
LEAST_A_MINUTE = {
    "records acknowledged": 500,
    "transactions committed": 20,
    "transactions aborted": 1,
    "copies committed": 5,
    "records read": 2000,
    "offsets committed": 20,
    "elections": 4,
    "isr changes": 6,
    "kills": 1,
}
WITH_LINKS = {"cuts": 1}


class Outcome(NamedTuple):
    """What came of a run."""

    violations: list[Violation]
    too_little: list[str]
    activity: Counter[str]
    directory: Path

    @property
    def good(self) -> bool:
        return not self.violations and not self.too_little


class Run:
    """One cluster, its clients, its troubles, and the checks afterwards."""

    def __init__(
        self, directory: Path, seconds: float, seed: int, *, pace_s: float, rate: float
    ) -> None:
        self.directory, self.seconds, self.seed = directory, seconds, seed
        self.activity: Counter[str] = Counter()
        self.findings: list[Violation] = []
        self.timeline = (directory / "timeline.txt").open("w", buffering=1)
        self.fleet = Fleet(directory, Lab(), seconds)
        patience_s = min(20.0, max(seconds / 2, 5.0))
        self.clients = Clients(
            directory / "clients", "", seed, self.activity, patience_s=patience_s
        )
        self.watch = Watch(self.fleet.connect, self.activity, self.timeline)
        self.nemesis = Nemesis(
            self.fleet, self.clients, self.watch, seed, self.activity, self.timeline, pace_s=pace_s
        )
        self._rate = rate
        self._audits = 0

    # ---- the run ----

    def run(self) -> None:
        self.fleet.start()
        self.clients.bootstrap = self.fleet.bootstrap
        self._topics()
        self.watch.start()
        self._say(
            f"{len(self.fleet.brokers)} brokers and {len(self.fleet.zookeepers)} ZooKeepers are up"
        )
        self._clients()
        self._insist("clients write, copy and read", self._at_work)
        self.nemesis.run(self.seconds, self.clients.keep_alive, FIRST)
        self._say("healing")
        self.nemesis.heal()
        self.findings += [Violation("process", "", told) for told in self.nemesis.findings]
        full = [broker.node for broker in self.fleet.brokers if broker.is_full]
        if full:
            told = (
                f"the disks of brokers {full} are full of records: they are too small for this run"
            )
            self.findings.append(Violation("lab", "", told))
        self._settle()
        self.findings += [
            Violation("client", "", f"{name}, see its log") for name in self.clients.broken
        ]
        self.fleet.stop()
        self.findings += [
            Violation("complaint", "", told) for told in complaints(self.fleet.logs())
        ]

    def _topics(self) -> None:
        with Admin(self.fleet.bootstrap) as admin:
            for name, count in PARTITIONS.items():
                configs = {
                    "min.insync.replicas": "2",
                    "segment.bytes": str(4 << 20),
                    "retention.ms": "-1",
                }
                admin.topics.create(name, partitions=count, replication_factor=3, configs=configs)

    def _clients(self) -> None:
        writable = DATA + SOURCE
        protocol = PROTOCOLS[self.seed % len(PROTOCOLS)]
        add = self.clients.add
        add("send", 2, writable, rate=self._rate)
        add("transact", 2, writable, rate=self._rate / 2)
        add("copy", 2, SOURCE, protocol=PROTOCOLS[(self.seed + 1) % 3], patient=True)
        add("member", 2, DATA, protocol=protocol, patient=False)
        add("read", 1, DATA + SOURCE + COPIES, recent=0.7)
        add("peek", 1, DATA + SOURCE + COPIES, recent=0.7)

    def _at_work(self) -> bool:
        """Before anything is broken, everything works."""
        ops = Records(self.clients.histories()).ops
        return {"send", "transact", "copy", "member"} <= {
            op.process.partition("-")[0] for op in ops if op.type == OK and op.value
        }

    def _settle(self) -> None:
        """All replicas in sync, everything readable to its end, and groups that have read it; else
        something is stuck.
        """
        self.clients.stop("send", "transact", "read", "peek")
        self._insist("all replicas are in sync", lambda: self.watch.in_sync(3))
        ends = self._audit(DATA + SOURCE)
        self._insist(
            f"{READERS} have read everything",
            lambda: self._committed(READERS, {k: ends[k] for k in DATA if k in ends}),
        )
        self._insist(
            f"{COPIERS} have copied everything",
            lambda: self._committed(COPIERS, {k: ends[k] for k in SOURCE if k in ends}),
        )
        self.clients.stop("member", "copy")
        self._audit(DATA + SOURCE + COPIES)
        self.watch.close()
        (self.directory / LEADERS).write_text(json.dumps(self.watch.leaders()))

    def _insist(self, what: str, condition: object) -> None:
        began = time.monotonic()
        while not condition():  # type: ignore[operator]
            if time.monotonic() - began > _SETTLE_S:
                self.findings.append(
                    Violation("stuck", "", f"after {_SETTLE_S:.0f} s it is not so that {what}")
                )
                return
            self.clients.keep_alive()
            time.sleep(0.2)
        self._say(f"{what} after {time.monotonic() - began:.1f} s")

    def _committed(self, group: str, ends: dict[str, int]) -> bool:
        consumer = Consumer(
            {"bootstrap.servers": self.fleet.bootstrap, "group.id": group, "log_level": 0}
        )
        try:
            places = consumer.committed([TopicPartition(*split(key)) for key in ends], timeout=10)
            return all(place.offset >= ends[f"{place.topic}-{place.partition}"] for place in places)
        except KafkaException:
            return False

    def _audit(self, keys: list[str]) -> dict[str, int]:
        """A new consumer reads every key to its end.

        Returns the offsets behind the last records.
        """
        self._audits += 1
        recorder = Recorder(
            self.clients.directory / f"audit-{self._audits}.jsonl", f"audit-{self._audits}"
        )
        consumer = Consumer(
            {
                "bootstrap.servers": self.fleet.bootstrap,
                "group.id": "audit",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(*split(key), 0) for key in keys])
        recorder.complete(recorder.invoke(ASSIGN, ()), OK, ())
        left, ends = set(keys), {}
        at_end: dict[
            str, int
        ] = {}  # told once for an offset; whether that is the end may have to be asked again
        until = time.monotonic() + _SETTLE_S
        while left and time.monotonic() < until:
            rows: dict[str, list[tuple[int, str]]] = {}
            for message in consumer.consume(1000, 1.0):
                key = f"{message.topic()}-{message.partition()}"
                error = message.error()
                if error is None:
                    rows.setdefault(key, []).append((message.offset(), decode(message.value())))
                    ends[key] = message.offset() + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    at_end[key] = message.offset()
            left -= {key for key in left & at_end.keys() if self._end(consumer, key) <= at_end[key]}
            if rows:
                recorder.complete(recorder.invoke(POLL, ()), OK, [Poll(rows)])
        if left:
            told = f"{sorted(left)} cannot be read to the end by readers of committed data"
            self.findings.append(Violation("stuck", "", told))
        consumer.close()
        return ends

    def _end(self, consumer: Consumer, key: str) -> int:
        """The high watermark: an open transaction keeps readers below it."""
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(*split(key)), timeout=10)[1])
        except KafkaException:
            return 1 << 62

    # ---- the verdict ----

    def judge(self) -> Outcome:
        directories = {broker.node: broker.data_dir for broker in self.fleet.brokers}
        found = judge_files(self.directory, directories, self.activity, complete=not self.findings)
        return Outcome(self.findings + found, self._too_little(), self.activity, self.directory)

    def _too_little(self) -> list[str]:
        least = LEAST_A_MINUTE | (WITH_LINKS if self.fleet.lab.has_links else {})
        # The first half minute is full of the worst troubles, one after the other.
        minutes = max(self.seconds - 30, 0) / 60
        return [
            f"{name} ({self.activity[name]})"
            for name, count in least.items()
            if self.activity[name] < max(int(name in ONCE), int(count * minutes))
        ]

    def _say(self, what: str) -> None:
        self.timeline.write(f"{time.monotonic():.3f} RUN {what}\n")
        print(f"  {what}", flush=True)

    def keep(self) -> None:
        """Small disks vanish with the run: what is on them is copied beside the rest."""
        self.fleet.kill()
        for broker in self.fleet.brokers:
            if broker.fillable:
                shutil.copytree(broker.data_dir, broker.directory / "data.kept", dirs_exist_ok=True)


def judge_files(
    kept: Path, directories: Mapping[int, Path], activity: Counter[str], *, complete: bool
) -> list[Violation]:
    """The verdict over what clients have written down and brokers have left on disk; counts what
    happened.
    """
    records = Records(sorted((kept / "clients").glob("*.jsonl")))
    _count(records, activity)
    leaders = json.loads((kept / LEADERS).read_text()) if (kept / LEADERS).exists() else {}
    logs = replicas(directories, PARTITIONS, leaders)
    evidence = Evidence(
        records.ops,
        logs,
        records.offsets,
        group=READERS,
        group_reads=_reads(records.ops, "member"),
        copies=dict(zip(SOURCE, COPIES, strict=True)),
        copied_completely=complete,
    )
    again = sent_again({key: rows[0] for key, rows in logs.items() if rows})
    activity["records that clients sent again"] += len(again)
    return without_sent_again(judge(evidence), again) + [
        Violation("truncation", told.more["key"], f"{told.process} was told {told.more}")
        for told in records.told
        if told.what == "truncated"
    ]


def _count(records: Records, activity: Counter[str]) -> None:
    for op in records.ops:
        if op.f == TXN:
            name = "copies" if op.process.startswith("copy") else "transactions"
            words = {"ok": "committed", "fail": "aborted", "info": "with unknown outcome"}
            activity[f"{name} {words[op.type]}"] += 1
        if sends := sum(1 for _ in op.sends()):
            words = {"ok": "acknowledged", "fail": "aborted", "info": "with unknown outcome"}
            activity[f"records {words[op.type]}"] += sends
        activity["records read"] += sum(len(rows) for _, rows in op.polled())
    activity["offsets committed"] += sum(1 for event in records.offsets if not event.fetched)
    activity["assignments"] += sum(1 for told in records.told if told.what == "assigned")


def judge_again(directory: Path) -> Outcome:
    """A run that was kept."""
    activity: Counter[str] = Counter()
    directories = {}
    for broker in sorted(directory.glob("broker-*")):
        kept = broker / "data.kept"
        directories[int(broker.name.rpartition("-")[2])] = (
            kept if kept.exists() else broker / "data"
        )
    found = judge_files(directory, directories, activity, complete=True)
    return Outcome(found, [], activity, directory)


def _reads(ops: list[Op], role: str) -> dict[str, set[str]]:
    read: dict[str, set[str]] = {}
    for op in ops:
        if op.process.startswith(f"{role}-"):
            for key, rows in op.polled():
                read.setdefault(key, set()).update(value for _, value in rows)
    return read


def main(argv: list[str] | None = None) -> int:
    arguments = _arguments(argv)
    if arguments.judge:
        return 0 if _report(judge_again(arguments.judge)) else 1
    if argv is None and not arguments.plain:
        lab.enter("nemesis.run", sys.argv[1:])
    parent = arguments.directory or Path(tempfile.gettempdir())
    parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="millstream-chaos-", dir=parent))
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 100_000
    seconds = arguments.seconds or arguments.minutes * 60
    print(f"seed {seed}, {seconds:.0f} s of trouble, in {directory}", flush=True)
    run = Run(directory, seconds, seed, pace_s=arguments.pace, rate=arguments.rate)
    if not run.fleet.lab.has_links:
        print("  no network namespaces here: no links are cut and no disks are filled", flush=True)
    try:
        run.run()
        outcome = run.judge()
    except BaseException:
        run.keep()
        print(f"it did not get to its end; kept in {directory}", flush=True)
        raise
    good = _report(outcome)
    run.keep() if not good else run.fleet.kill()
    if good and not arguments.keep:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        print(f"kept in {directory}", flush=True)
    sys.stdout.flush()
    os._exit(0 if good else 1)


def _report(outcome: Outcome) -> bool:
    for name, count in sorted(outcome.activity.items()):
        print(f"  {name:34}{count:9}")
    kinds = Counter(violation.kind for violation in outcome.violations)
    for violation in outcome.violations[:40]:
        print(f"VIOLATION {violation}"[:2000])
    if outcome.too_little:
        print(f"too little: {', '.join(outcome.too_little)}")
    print("good" if outcome.good else f"BAD: {dict(kinds)}", flush=True)
    return outcome.good


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="nemesis.run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, help="instead of minutes")
    parser.add_argument("--seed", type=int)
    parser.add_argument(
        "--pace", type=float, default=4.0, help="seconds from one trouble to the next, on average"
    )
    parser.add_argument(
        "--rate", type=float, default=5.0, help="operations a second of each producer, on average"
    )
    parser.add_argument("--directory", type=Path, help="where runs are kept")
    parser.add_argument(
        "--judge", type=Path, metavar="DIR", help="nothing but the verdict over a run that was kept"
    )
    parser.add_argument(
        "--plain", action="store_true", help="without namespaces: no cuts, no full disks"
    )
    parser.add_argument("--keep", action="store_true", help="keep a good run, too")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
