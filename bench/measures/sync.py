"""Latency of a librdkafka producer with one message in flight and no linger."""

from bench.measures import TOPIC, Measure, Reading
from bench.measures.produce import producer_settings
from bench.model import Metric, Peer, Scenario
from bench.running import Workshop


def measure(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    load, messages = scenario.load, scenario.amount["messages"]
    with workshop.broker(peer, scenario.settings) as broker:
        broker.create_topic(TOPIC, load["partitions"], scenario.topic_settings)
        job = {
            "address": broker.address,
            "topic": TOPIC,
            "message_bytes": load["message_bytes"],
            "messages": messages,
            "warmup_messages": messages // 10,
            "settings": producer_settings(load) | {"linger.ms": 0},
        }
        with workshop.load("sync", job) as generator:
            generator.wait_ready()
            generator.go()
            result = generator.result()
            return Reading({name: result[name] for name in ("p50_us", "p99_us")}, result)


LATENCIES = (Metric("p50_us", "p50", "µs", "lower"), Metric("p99_us", "p99", "µs", "lower"))
MEASURES = (Measure("sync-produce", LATENCIES, measure),)
