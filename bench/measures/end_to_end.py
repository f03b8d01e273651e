"""End-to-end latency at a fixed rate: from the producer's call to the consumer's, in two processes
on one clock.
"""

from bench.measures import TOPIC, Measure, Reading
from bench.measures.produce import producer_settings
from bench.measures.sync import LATENCIES
from bench.model import Metric, Peer, Scenario
from bench.running import Workshop

# As many as Kafka's own producer and every idempotent one keep. librdkafka's default is a million:
# with no linger each message is then a request of its own however many are waiting, and Apache
# Kafka, which takes the next request of a connection when it has answered the last one, would be
# measured by how many small requests it can answer.
IN_FLIGHT = 5


def measure(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    load, rate = scenario.load, scenario.load["rate"]
    messages = int(rate * scenario.amount["seconds"])
    with workshop.broker(peer, scenario.settings) as broker:
        broker.create_topic(TOPIC, load["partitions"], scenario.topic_settings)
        job = {"address": broker.address, "topic": TOPIC, "messages": messages}
        job["message_bytes"] = load["message_bytes"]
        paced = job | {
            "rate": rate,
            "settings": producer_settings(load)
            | {"linger.ms": 0, "max.in.flight.requests.per.connection": IN_FLIGHT},
        }
        tail = job | {"skip": messages // 3, "settings": {}}
        with (
            workshop.load("tail", tail, peer) as reader,
            workshop.load("paced", paced, peer) as writer,
        ):
            reader.wait_ready()
            writer.wait_ready()
            cpu = broker.cpu_s()
            writer.go()
            late_ms = writer.result()["late_ms"]
            result = reader.result()
            values = {name: result[name] for name in ("p50_us", "p99_us")}
            values["cpu_us_per_message"] = (broker.cpu_s() - cpu) * 1e6 / messages
            return Reading(values, result | {"late_ms": late_ms})


METRICS = (*LATENCIES, Metric("cpu_us_per_message", "broker CPU", "µs/msg", "lower"))
MEASURES = (Measure("end-to-end", METRICS, measure),)
