"""The cost of our clients on top of librdkafka, the scaling of a worker pool, and test broker
startup.
"""

from typing import Any

from bench.measures import TOPIC, Measure, Reading
from bench.measures.produce import producer_settings
from bench.model import Metric, Peer, Scenario
from bench.running import Workshop


def _run(
    workshop: Workshop, generator: str, job: dict[str, Any], metrics: tuple[Metric, ...]
) -> Reading:
    with workshop.load(generator, job) as load:
        load.wait_ready()
        load.go()
        result = load.result()
        return Reading({metric.name: result[metric.name] for metric in metrics}, result)


def produce(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    load = scenario.load
    with workshop.broker(peer, scenario.settings) as broker:
        broker.create_topic(TOPIC, load["partitions"], scenario.topic_settings)
        job = dict(scenario.amount) | {
            "address": broker.address,
            "topic": TOPIC,
            "message_bytes": load["message_bytes"],
            "settings": producer_settings(load) | {"enable.idempotence": False},
        }
        return _run(workshop, "client_produce", job, PRODUCE)


def pool(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    with workshop.broker(peer, scenario.settings) as broker:
        broker.create_topic(TOPIC, scenario.load["partitions"], scenario.topic_settings)
        job = dict(scenario.amount) | {"address": broker.address, "topic": TOPIC}
        return _run(workshop, "client_pool", job, POOL)


def test_broker(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    return _run(workshop, "test_broker", dict(scenario.amount), TEST_BROKER)


PRODUCE = (
    Metric("messages_per_s", "messages", "msg/s", "higher"),
    Metric("share_of_bare", "of bare confluent-kafka", "x", "higher"),
    Metric("cpu_share_of_bare", "of it, by processor time", "x", "higher"),
)
POOL = (
    Metric("waiting_speedup", "handlers that wait, 16 workers to 1", "x", "higher"),
    Metric("computing_speedup", "handlers that compute, 2 workers to 1", "x", "higher"),
)
TEST_BROKER = (
    Metric("first_s", "first broker of a process", "s", "lower"),
    Metric("further_s", "every further one", "s", "lower"),
)
MEASURES = (
    Measure("client-produce", PRODUCE, produce),
    Measure("client-pool", POOL, pool),
    Measure("test-broker", TEST_BROKER, test_broker),
)
