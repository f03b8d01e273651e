"""The time from exec to the first acknowledged record after kill -9, with an unclosed log."""

import shutil
import time

from bench.first_record import write
from bench.measures import TOPIC, Measure, Reading
from bench.measures.produce import fill
from bench.model import Metric, Peer, Scenario
from bench.processes import BenchFailed
from bench.running import Workshop


def measure(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    work = workshop.new_work()
    try:
        with workshop.broker(peer, scenario.settings, warm=False, work=work) as broker:
            broker.create_topic(TOPIC, scenario.load["partitions"], scenario.topic_settings)
            job = fill(workshop, scenario, broker)
            broker.kill()
        with workshop.broker(peer, scenario.settings, warm=False, work=work) as broker:
            offset = write(broker, TOPIC)
            recovery_s = time.perf_counter() - broker.exec_at
            if offset != job["messages"]:
                raise BenchFailed(
                    f"{job['messages']} messages were acknowledged, the next offset is {offset}"
                )
            values = {"recovery_s": recovery_s, "cpu_s": broker.cpu_s()}
            return Reading(values, {"answered_s": broker.started_s})
    finally:
        shutil.rmtree(work, ignore_errors=True)


METRICS = (
    Metric("recovery_s", "start to first acknowledged record", "s", "lower"),
    Metric("cpu_s", "broker CPU until then", "s", "lower"),
)
MEASURES = (Measure("recovery", METRICS, measure),)
