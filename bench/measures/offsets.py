"""OffsetCommit from a raw generator: the round trip of single ones, and the rate when pipelined."""

from bench.measures import TOPIC, Measure, Reading
from bench.measures.requests import METRICS, send
from bench.measures.sync import LATENCIES
from bench.model import Peer, Scenario
from bench.running import Workshop


def measure(workshop: Workshop, scenario: Scenario, peer: Peer) -> Reading:
    with workshop.broker(peer, scenario.settings) as broker:
        broker.create_topic(TOPIC, scenario.load["partitions"], scenario.topic_settings)
        single = send(workshop, scenario, broker, requests=scenario.amount["round_trips"], depth=1)
        pipelined = send(workshop, scenario, broker)
        latencies = {name: single.values[name] for name in ("p50_us", "p99_us")}
        return Reading(
            dict(pipelined.values) | latencies,
            {"alone": single.detail, "pipelined": pipelined.detail},
        )


MEASURES = (Measure("offset-commit", (*LATENCIES, *METRICS), measure),)
