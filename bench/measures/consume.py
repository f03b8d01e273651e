"""Throughput of one librdkafka consumer over a filled topic: from the page cache, or cold from the disk."""

from bench import pages
from bench.measures import TOPIC, Measure, Reading
from bench.measures.produce import RATES, fill, rates
from bench.model import Metric, Peer, Scenario
from bench.running import Workshop


def measure(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    with workshop.broker(peer, scenario.settings) as broker:
        broker.create_topic(TOPIC, scenario.load["partitions"], scenario.topic_settings)
        job = fill(workshop, scenario, broker) | {"settings": {}}
        detail = {}
        if scenario.amount.get("cold"):
            detail["cold_share"] = pages.drop_cached(broker.data)
        with workshop.load("consume", job) as load:
            load.wait_ready()
            cpu = broker.cpu_s()
            load.go()
            result = load.result()
            return Reading(rates(result, broker.cpu_s() - cpu), result | detail)


METRICS: tuple[Metric, ...] = RATES
MEASURES = (Measure("consume", METRICS, measure),)
