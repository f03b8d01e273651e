"""End-to-end latency at a fixed rate, in two processes with one clock.

It is the time from the producer's call to the consumer's.
"""

from bench.measures import TOPIC, Measure, Reading
from bench.measures.produce import producer_settings
from bench.measures.sync import LATENCIES
from bench.model import Metric, Peer, Scenario
from bench.running import Workshop

# The limit of Kafka's producer, and of every idempotent one. librdkafka's default is a million:
# without linger, each message is then a separate request however many are waiting. Apache Kafka
# reads the next request of a connection only after its response to the last, so it would be
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
