"""The Java client and franz-go really speak the newest versions with us; older clients speak
theirs.
"""

from __future__ import annotations

import pytest

from interop.conftest import AGAINST_APACHE, Target
from interop.programs import Program
from interop.rows import expected, records, rows_for

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, INIT_PRODUCER_ID = 0, 1, 2, 3, 18, 22
GET_TELEMETRY_SUBSCRIPTIONS, DESCRIBE_TOPIC_PARTITIONS = 71, 75


needs_telemetry = pytest.mark.skipif(
    AGAINST_APACHE, reason="Apache Kafka offers telemetry only with a receiver plugin"
)


def newest(target: Target, client_id: str) -> dict[int, int]:
    return {key: max(versions) for key, versions in target.proxy.versions(client_id).items()}


def write_and_read(target: Target, program: Program, topic: str) -> dict[int, int]:
    rows = rows_for(program.name)
    program.produce(
        target.bootstrap, topic, rows, client_id=f"{topic}-w", enable_idempotence="true"
    )
    lines = program.consume(target.bootstrap, topic, client_id=f"{topic}-r")
    assert len(records(lines)) == len(expected(rows))
    return newest(target, f"{topic}-w") | newest(target, f"{topic}-r")


def test_java_uses_produce_13_and_fetch_18(target: Target, java: Program, topic_name: str) -> None:
    used = write_and_read(target, java, target.create_topic(topic_name))
    assert (used[PRODUCE], used[FETCH]) == (13, 18)
    assert (used[API_VERSIONS], used[METADATA], used[INIT_PRODUCER_ID]) == (4, 13, 5)
    assert used[LIST_OFFSETS] >= 10


def test_franz_go_uses_produce_13_and_fetch_18(
    target: Target, go: Program, topic_name: str
) -> None:
    used = write_and_read(target, go, target.create_topic(topic_name))
    assert (used[PRODUCE], used[FETCH]) == (13, 18)
    # It asks with ApiVersions v5, and once more with v4 where the broker does not know that.
    assert (used[METADATA], used[INIT_PRODUCER_ID], used[API_VERSIONS]) == (13, 5, 5)


def test_kafkajs_uses_the_old_versions_it_knows(
    target: Target, node: Program, topic_name: str
) -> None:
    used = write_and_read(target, node, target.create_topic(topic_name))
    assert (used[PRODUCE], used[FETCH]) == (7, 11)


@needs_telemetry
def test_java_asks_for_telemetry_when_it_may(
    target: Target, java: Program, topic_name: str
) -> None:
    [on] = java.run(target.bootstrap, "telemetry", client_id=f"{topic_name}-on")
    [off] = java.run(
        target.bootstrap,
        "telemetry",
        client_id=f"{topic_name}-off",
        config={"enable.metrics.push": "false"},
    )
    assert off == {"op": "instance", "id": None}
    assert GET_TELEMETRY_SUBSCRIPTIONS not in target.proxy.versions(f"{topic_name}-off")
    assert target.proxy.versions(f"{topic_name}-on")[GET_TELEMETRY_SUBSCRIPTIONS] == {0}
    assert len(on["id"]) == 22, "an id in base 64, given by the broker"


@needs_telemetry
def test_franz_go_asks_for_telemetry_when_it_may(
    target: Target, go: Program, topic_name: str
) -> None:
    topic = target.create_topic(topic_name)
    off = {"enable.metrics.push": "false"}
    go.run(target.bootstrap, "telemetry", topic=topic, client_id=f"{topic}-on")
    go.run(target.bootstrap, "telemetry", topic=topic, client_id=f"{topic}-off", config=off)
    assert target.proxy.versions(f"{topic}-on")[GET_TELEMETRY_SUBSCRIPTIONS] == {0}
    assert GET_TELEMETRY_SUBSCRIPTIONS not in target.proxy.versions(f"{topic}-off")
