"""Throughput of librdkafka consumers over a filled topic, and while it is being filled.

The topic is read from the page cache, or cold from the disk.
"""

from typing import Any

from bench import pages
from bench.measures import TOPIC, Measure, Reading
from bench.measures.produce import BALLAST, RATES, fill, producer_job, rates
from bench.model import Metric, Peer, Scenario
from bench.running import Workshop

# With librdkafka's default a partition is not fetched for a second after its queue of 64 MB was
# full. A broker that fills the queue faster than the client empties it would be measured by how
# often that happens.
READER = {"fetch.queue.backoff.ms": 10}


def reader_job(scenario: Scenario, filled: dict[str, Any]) -> dict[str, Any]:
    """Return a job to read everything that the producer of this job writes."""
    messages = filled["messages"] + filled["warmup_messages"]
    return filled | {"messages": messages, "groups": scenario.load["groups"], "settings": READER}


def measure(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    with workshop.broker(peer, scenario.settings) as broker:
        broker.create_topic(TOPIC, scenario.load["partitions"], scenario.topic_settings)
        job = reader_job(scenario, fill(workshop, scenario, broker))
        detail = {}
        if scenario.amount.get("cold"):
            detail["cold_share"] = pages.drop_cached(broker.data)
        with workshop.load("consume", job, peer) as load:
            load.wait_ready()
            cpu = broker.cpu_s()
            load.go()
            result = load.result()
            return Reading(rates(result, broker.cpu_s() - cpu), result | detail)


def together(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    """Run a producer and a consumer at full speed; the consumer also reads the warm-up."""
    with workshop.broker(peer, scenario.settings) as broker:
        broker.create_topic(TOPIC, scenario.load["partitions"], scenario.topic_settings)
        job = producer_job(scenario, broker.address)
        workshop.ballast.hold(scenario.amount["megabytes"] * BALLAST)
        with workshop.load("produce", job) as writer:
            writer.wait_ready()
            with workshop.load("consume", reader_job(scenario, job)) as reader:
                reader.wait_ready()
                workshop.ballast.release()
                cpu = broker.cpu_s()
                reader.go()
                writer.go()
                written, read = writer.result(), reader.result()
                values = rates(written, broker.cpu_s() - cpu)
                values["read_per_s"] = read["messages"] / read["seconds"]
                return Reading(values, {"written": written, "read": read})


TOGETHER = (
    Metric("messages_per_s", "produced", "msg/s", "higher"),
    Metric("read_per_s", "consumed", "msg/s", "higher"),
    Metric("megabytes_per_s", "payload produced", "MB/s", "higher"),
    Metric("cpu_us_per_mb", "broker CPU, both", "µs/MB", "lower"),
)
MEASURES = (Measure("consume", RATES, measure), Measure("produce-consume", TOGETHER, together))
