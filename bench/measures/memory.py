"""Resident memory of the broker's processes: idle, and its growth during a long produce."""

import threading
import time

from bench.measures import TOPIC, Measure, Reading
from bench.measures.produce import produce, producer_job
from bench.model import Metric, Peer, Scenario
from bench.running import Broker, Workshop

MIB = 1 << 20
SAMPLE_S = 0.05


def idle(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    with workshop.broker(peer, scenario.settings, warm=False) as broker:
        time.sleep(scenario.amount["seconds"])
        return Reading({"resident_mib": broker.resident_bytes() / MIB})


class Sampler:
    """Samples resident memory in a thread."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.samples = [broker.resident_bytes()]
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def _sample(self) -> None:
        while not self._done.wait(SAMPLE_S):
            self.samples.append(self.broker.resident_bytes())

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def growth(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    """Compare a new broker with its peak while producing and its size afterwards."""
    with workshop.broker(peer, scenario.settings, warm=False) as broker:
        broker.create_topic(TOPIC, scenario.load["partitions"], scenario.topic_settings)
        with Sampler(broker) as sampler:
            produce(workshop, broker, producer_job(scenario, broker.address))
        before, after = sampler.samples[0], broker.resident_bytes()
        values = {
            "peak_mib": max(sampler.samples) / MIB,
            "peak_growth_mib": (max(sampler.samples) - before) / MIB,
            "growth_mib": (after - before) / MIB,
        }
        series = [round(sample / MIB, 1) for sample in sampler.samples]
        return Reading(values, {"resident_mib": series, "sample_s": SAMPLE_S})


MEASURES = (
    Measure("idle-memory", (Metric("resident_mib", "resident memory", "MiB", "lower"),), idle),
    Measure(
        "memory-growth",
        (
            Metric("peak_mib", "peak", "MiB", "lower"),
            Metric("peak_growth_mib", "peak above idle", "MiB", "lower"),
            Metric("growth_mib", "above idle afterwards", "MiB", "lower"),
        ),
        growth,
    ),
)
