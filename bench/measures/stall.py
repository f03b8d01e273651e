"""How long one callback blocks the event loop during heavy work.

The broker runs in bench.timed_loop (on asyncio's loop, whose callbacks can be timed), and a probe
sends ApiVersions every millisecond from outside. The scenario names the work as its activity.
"""

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bench import pages
from bench.measures import TOPIC, Measure, Reading
from bench.measures.compaction import compact
from bench.measures.consume import reader_job
from bench.measures.produce import fill
from bench.model import Metric, Peer, Scenario
from bench.processes import BenchFailed, wait_for
from bench.running import Broker, Workshop
from bench.topics import create_topics, delete_topics

PROBE_MS = 1


class Activity:
    """Heavy work. `run` is measured, `prepare` is not."""

    def __init__(self, workshop: Workshop, scenario: Scenario, broker: Broker) -> None:
        self.workshop, self.scenario, self.broker = workshop, scenario, broker

    def prepare(self) -> None:
        self.broker.create_topic(
            TOPIC, self.scenario.load["partitions"], self.scenario.topic_settings
        )

    def run(self) -> None:
        raise NotImplementedError


class Idle(Activity):
    """Only the probe: the influence of the machine on the figures."""

    def run(self) -> None:
        time.sleep(self.scenario.amount["seconds"])


class FirstUse(Activity):
    """The first produce of a new broker, including its imports and opening of files."""

    def run(self) -> None:
        fill(self.workshop, self.scenario, self.broker)


class Produce(FirstUse):
    """Producing after a first megabyte."""

    def prepare(self) -> None:
        super().prepare()
        fill(
            self.workshop,
            replace(self.scenario, amount=dict(self.scenario.amount) | {"megabytes": 1}),
            self.broker,
        )


class ColdRead(Activity):
    """Consuming from the disk."""

    def prepare(self) -> None:
        super().prepare()
        self.job = reader_job(self.scenario, fill(self.workshop, self.scenario, self.broker))
        pages.drop_cached(self.broker.data)

    def run(self) -> None:
        with self.workshop.load("consume", self.job) as load:
            load.wait_ready()
            load.go()
            load.result()


class Compact(Activity):
    """Compaction of a full topic, until its segments have shrunk."""

    def prepare(self) -> None:
        super().prepare()
        fill(self.workshop, self.scenario, self.broker)

    def run(self) -> None:
        compact(self.broker, share=0.5)


class DeleteTopics(Activity):
    """Deleting many topics, until their directories are removed."""

    def prepare(self) -> None:
        self.names = [f"{TOPIC}-{i}" for i in range(self.scenario.amount["topics"])]
        create_topics(self.broker.address, self.names, 1, self.scenario.topic_settings)

    def run(self) -> None:
        delete_topics(self.broker.address, self.names)
        wait_for(
            lambda: not any(self.broker.data.glob(f"{TOPIC}-*")),
            "removal of the topics' directories",
        )


class Crowd(Activity):
    """Thousands of members that join one group of the consumer protocol at once."""

    def prepare(self) -> None:
        self.broker.create_topic(
            TOPIC, self.scenario.amount["partitions"], self.scenario.topic_settings
        )
        self._join("warm-up", 20)

    def run(self) -> None:
        self._join("crowd", self.scenario.amount["members"])

    def _join(self, group: str, members: int) -> None:
        amount = self.scenario.amount
        job = {name: amount[name] for name in ("partitions", "connections", "interval_ms")}
        job |= {"address": self.broker.address, "topic": TOPIC, "group": group, "members": members}
        with self.workshop.load("crowd", job) as load:
            load.wait_ready()
            load.go()
            load.result()


ACTIVITIES = {
    "idle": Idle,
    "first-use": FirstUse,
    "produce": Produce,
    "cold-read": ColdRead,
    "compaction": Compact,
    "delete-topics": DeleteTopics,
    "crowd": Crowd,
}


def _reading(report: dict[str, Any], probe: dict[str, Any], seconds: float) -> Reading:
    if not report["callbacks"]:
        raise BenchFailed("no callback was timed: the broker does not run on asyncio's loop")
    first = report["slowest"][0]
    values = {
        "longest_ms": first["wall_ms"],
        "longest_cpu_ms": max(entry["cpu_ms"] for entry in report["slowest"]),
        "probe_worst_ms": probe["max_us"] / 1000,
        "activity_s": seconds,
    }
    return Reading(
        values, {"callback": first["callback"], "slowest": report["slowest"], "probe": probe}
    )


def _watched(workshop: Workshop, broker: Broker, run: Callable[[], None]) -> Reading:
    with workshop.load("probe", {"address": broker.address, "interval_ms": PROBE_MS}) as probe:
        probe.wait_ready()
        broker.reset_callbacks()
        started = time.perf_counter()
        run()
        seconds = time.perf_counter() - started
        report = broker.callbacks()
        probe.go()  # a line on its stdin ends it
        return _reading(report, probe.result(), seconds)


def measure(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    name = scenario.activity["name"]
    with workshop.broker(peer, scenario.settings, timed=True) as broker:
        activity = ACTIVITIES[name](workshop, scenario, broker)
        activity.prepare()
        return _watched(workshop, broker, activity.run)


def recovery(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    """Kill a full broker with -9 and restart it, then measure two seconds of responses.

    A broker that does not listen yet cannot stall a client. Its callbacks before that count as the
    duration of the start, and are stored in the JSON.
    """
    work = workshop.new_work()
    try:
        with workshop.broker(peer, scenario.settings, work=work) as broker:
            broker.create_topic(TOPIC, scenario.load["partitions"], scenario.topic_settings)
            fill(workshop, scenario, broker)
            broker.kill()
        with workshop.broker(peer, scenario.settings, timed=True, work=work) as broker:
            starting = broker.callbacks()["slowest"]
            reading = _watched(workshop, broker, lambda: time.sleep(2.0))
            values = dict(reading.values) | {"activity_s": broker.started_s}
            return Reading(values, dict(reading.detail) | {"starting": starting})
    finally:
        shutil.rmtree(work, ignore_errors=True)


METRICS = (
    Metric("longest_ms", "longest callback", "ms", "lower", worst=True),
    Metric("longest_cpu_ms", "longest on CPU", "ms", "lower", worst=True),
    Metric("probe_worst_ms", "worst probe answer", "ms", "lower", worst=True),
    Metric("activity_s", "duration", "s", "lower"),
)
MEASURES = (Measure("stall", METRICS, measure), Measure("stall-recovery", METRICS, recovery))
