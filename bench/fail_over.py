"""The pause of writes when a broker fails: `python -m bench.fail_over [--rounds N]`.

Three broker processes and a ZooKeeper server run on this machine, with the settings of `millstream
up`. A librdkafka producer (acks=all, idempotent, other settings only as in the table) sends a small
record every 5 ms to one partition with three replicas. Then the leader, or a follower, is killed,
frozen or stopped. The figure is the longest time between two acknowledgements around that moment.
At the end every acknowledged record is read back exactly once.
"""

import argparse
import itertools
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from millstream.client import Admin, Consumer
from millstream.local.broker import LocalBroker
from millstream.local.cluster import cluster_settings
from millstream.local.zookeeper import LocalZooKeeper

TOPIC = "fail-over"
EVERY_S = 0.005
WARM_UP_S = 2.0
AFTERWARDS_S = 3.0
PATIENCE_S = 90.0


class Writer:
    """Sends continuously, and stores when each record was acknowledged."""

    def __init__(self, bootstrap: str, settings: Mapping[str, object]) -> None:
        from confluent_kafka import Producer

        common = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        self._producer: Any = Producer({**common, **settings})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.acknowledged: list[tuple[float, int]] = []
        self.failed: list[str] = []

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(PATIENCE_S)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            self._producer.produce(
                TOPIC, str(number), partition=0, on_delivery=self._reporter(number)
            )
            self._producer.poll(EVERY_S)
            number += 1

    def _reporter(self, number: int) -> Callable[[Any, Any], None]:
        def report(error: Any, _message: Any) -> None:
            if error is not None:
                self.failed.append(str(error))
            else:
                self.acknowledged.append((time.monotonic(), number))

        return report

    def gap_s(self, since: float) -> float:
        """Return the longest time between acknowledgements, the second of them after ``since``."""
        times = [at for at, _ in self.acknowledged]
        return max(later - at for at, later in itertools.pairwise(times) if later > since)

    def wait_after(self, moment: float) -> None:
        """Wait until records are acknowledged again, and a while longer."""
        deadline = moment + PATIENCE_S
        while True:
            times = [at for at, _ in self.acknowledged[-200:]]
            if len(times) == 200 and times[0] > moment + 0.5:
                break
            if time.monotonic() > deadline:
                raise SystemExit("writes did not resume")
            time.sleep(0.05)
        time.sleep(AFTERWARDS_S)


class Trial:
    """A cluster, and the operations on its leader."""

    def __init__(self, directory: Path) -> None:
        self._stack = ExitStack()
        zookeeper = self._stack.enter_context(LocalZooKeeper(directory / "zookeeper"))
        settings = cluster_settings(3) | {
            "zookeeper.connect": zookeeper.address,
            "auto.leader.rebalance.enable": "false",
        }
        self.brokers = [
            LocalBroker(directory / f"b{n}", settings | {"node.id": str(n)}) for n in range(3)
        ]
        for broker in self.brokers:
            self._stack.callback(broker.kill)
            broker.spawn()
        for broker in self.brokers:
            broker.wait_ready()
        self.bootstrap = ",".join(broker.bootstrap for broker in self.brokers)
        with Admin(self.bootstrap) as admin:
            admin.topics.create(TOPIC, partitions=1, replication_factor=3)

    def close(self) -> None:
        self._stack.close()

    def leader(self) -> int:
        with Admin(self.bootstrap) as admin:
            return admin.topics.get(TOPIC).partitions[0].leader or 0

    def controller(self) -> int:
        with Admin(self.bootstrap) as admin:
            return admin.cluster.describe().controller or 0

    def settle(self) -> None:
        """Start brokers that are down, and wait until all three replicas are in sync."""
        for broker in self.brokers:
            if not broker.running:
                broker.start()
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with Admin(self.bootstrap) as admin:
                if len(admin.topics.get(TOPIC).partitions[0].isr) == 3:
                    return
            time.sleep(0.2)
        raise SystemExit("the replicas did not get in sync")

    def arrange(self, controller_leads: bool) -> int:
        """Make the controller, or another node, the leader; return the leader."""
        from millstream.core.types import TopicPartition

        self.settle()
        leader = self.controller()
        if not controller_leads:
            leader = next(node for node in range(3) if node != leader)
        others = [node for node in range(3) if node != leader]
        tp = TopicPartition(TOPIC, 0)
        with Admin(self.bootstrap) as admin:
            admin.reassignments.start({tp: [leader, *others]})
            admin.reassignments.elect_leaders([tp], unclean=False)
        while self.leader() != leader:
            time.sleep(0.1)
        return leader


class Failure(NamedTuple):
    """The operation, and the broker that suffers it."""

    act: Callable[[LocalBroker], object]
    controller_leads: bool = False
    to_follower: bool = False
    # Settings of the producer.
    settings: Mapping[str, object] = MappingProxyType({})


# A frozen broker keeps its connections open. The client decides how long a request waits for it: 60
# s in librdkafka, 30 s in Java.
_IMPATIENT = MappingProxyType({"socket.timeout.ms": 1000})

FAILURES = {
    "leader killed with -9": Failure(LocalBroker.kill),
    "leader and controller killed with -9": Failure(LocalBroker.kill, controller_leads=True),
    "leader and controller frozen (SIGSTOP), socket.timeout.ms=1000": Failure(
        LocalBroker.pause, True, settings=_IMPATIENT
    ),
    "follower killed with -9": Failure(LocalBroker.kill, to_follower=True),
    "leader stopped (SIGTERM)": Failure(LocalBroker.stop),
    "leader and controller stopped (SIGTERM)": Failure(LocalBroker.stop, controller_leads=True),
    "follower stopped (SIGTERM)": Failure(LocalBroker.stop, to_follower=True),
}


def measure(trial: Trial, failure: str) -> tuple[float, Writer]:
    act, controller_leads, to_follower, settings = FAILURES[failure]
    leader = trial.arrange(controller_leads)
    victim = trial.brokers[leader if not to_follower else (leader + 1) % len(trial.brokers)]
    with Writer(trial.bootstrap, settings) as writer:
        time.sleep(WARM_UP_S)
        moment = time.monotonic()
        act(victim)
        try:
            writer.wait_after(moment)
        finally:
            if act is LocalBroker.pause:
                victim.resume()
    if writer.failed:
        raise SystemExit(f"{len(writer.failed)} records failed: {writer.failed[0]}")
    return writer.gap_s(moment), writer


def check(trial: Trial, writers: Sequence[Writer]) -> int:
    """Check that every acknowledged record exists once, and those of one writer in order."""
    trial.settle()
    with Consumer(trial.bootstrap, TOPIC, until_end=True) as consumer:
        numbers = [int(record.value or b"") for record in consumer]
    rest = iter(numbers)
    for writer in writers:
        for _, number in sorted(writer.acknowledged, key=lambda pair: pair[1]):
            if next(rest, None) != number:
                raise SystemExit(f"record {number} is lost or out of order")
    return len(numbers)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="run only failures whose name contains this")
    options = parser.parse_args()
    gaps: dict[str, list[float]] = {failure: [] for failure in FAILURES if options.only in failure}
    writers: list[Writer] = []
    with tempfile.TemporaryDirectory() as directory:
        trial = Trial(Path(directory))
        try:
            for number in range(options.rounds):
                for failure in gaps:
                    gap_s, writer = measure(trial, failure)
                    gaps[failure].append(gap_s)
                    writers.append(writer)
                    print(f"round {number + 1}: {failure}: {gap_s:.2f} s", flush=True)
            records = check(trial, writers)
        finally:
            trial.close()
    print(f"\n{records} records; each acknowledged record was read back once\n")
    print("| | median | longest |\n|---|---|---|")
    for failure, times_s in gaps.items():
        print(f"| {failure} | {statistics.median(times_s):.2f} s | {max(times_s):.2f} s |")


if __name__ == "__main__":
    main()
