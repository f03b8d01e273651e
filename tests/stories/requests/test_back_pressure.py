"""Clients that ask and never take: what they cost in memory is bounded, and everybody else is
served meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.local.broker import LocalBroker
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.records.batch import Record, build_batch
from millstream.wire.schema import Struct
from support.processes import complaints, memory_mib, wait_until
from support.raw import (
    RawClient,
    api_of,
    create_topic,
    fetch,
    fetch_request,
    produce,
    produce_request,
    request_frame,
)

MIB = 1 << 20
# For twenty clients that together ask for a hundred gigabytes: one or two megabytes each, and what
# Python keeps.
GROWTH_MIB = 150


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A broker with a topic of 64 MB, and one of many partitions."""
    with LocalBroker(tmp_path_factory.mktemp("large")).start() as broker:
        with RawClient(broker.bootstrap) as client:
            create_topic(client, "large")
            create_topic(client, "wide", 1_000)
            batch = build_batch([Record(n, -1, None, bytes(100_000), ()) for n in range(10)])
            for _ in range(64):
                assert produce(client, "large", 0, batch).error_code == 0
        yield broker


def greedy(broker: LocalBroker, data: bytes, receive_buffer: int = 4096) -> RawClient:
    """Sends all of it, as far as the broker takes it, and reads nothing."""
    client = RawClient(broker.bootstrap, receive_buffer=receive_buffer)
    client.socket.setblocking(False)
    sent = 0
    try:
        while sent < len(data):
            sent += client.socket.send(data[sent : sent + 65536])
    except BlockingIOError:
        pass
    return client


def frames(message: Struct, version: int, count: int) -> bytes:
    return request_frame(api_of(message), version, message) * count


@pytest.mark.parametrize(
    ("message", "version", "count"),
    [
        (fetch_request("large", max_bytes=50 * MIB), 11, 20),
        (fetch_request("large", max_bytes=50 * MIB), 3, 20),
        (fetch_request("large", max_bytes=50 * MIB), 0, 20),
        (MetadataRequest(topics=None), 9, 4),
    ],
    ids=["fetch", "fetch as magic 1", "fetch as magic 0", "metadata"],
)
def test_clients_that_never_read_cost_bounded_memory(
    large: LocalBroker, message: Struct, version: int, count: int
) -> None:
    with RawClient(large.bootstrap) as client:
        client.call(message, version)  # whatever has to be imported or started is
        before = memory_mib(large.pid)
        clients = [greedy(large, frames(message, version, 100)) for _ in range(count)]
        # All of them have got what there is room for when their sockets are full; others are served
        # all the time.
        settled = 0.0
        for _ in range(50):
            assert (
                produce(client, "large", 0, build_batch([Record(0, -1, None, b"v", ())])).error_code
                == 0
            )
            assert fetch(client, "large", 0, 0, max_bytes=1000).error_code == 0
            settled = max(settled, memory_mib(large.pid))
        assert settled - before < GROWTH_MIB
        for one in clients:
            one.close()
    wait_until(
        lambda: memory_mib(large.pid) - before < GROWTH_MIB / 2, "the memory to be given back"
    )
    assert complaints(large.output()) == []


def test_answers_behind_a_waiting_fetch_cost_bounded_memory(large: LocalBroker) -> None:
    """Nothing can be sent before the fetch in front is answered: what comes behind must not pile
    up.
    """
    with RawClient(large.bootstrap) as client:
        client.call(MetadataRequest(topics=None), 9)
        before = memory_mib(large.pid)
        parked = frames(fetch_request("wide", max_wait_ms=60_000), 11, 1)
        clients = [
            greedy(large, parked + frames(MetadataRequest(topics=None), 9, 400)) for _ in range(6)
        ]
        for _ in range(10):
            client.call(MetadataRequest(topics=None), 9)
            # Without a bound each would hold 400 answers of 26 kB.
            assert memory_mib(large.pid) - before < 30
        for one in clients:
            one.close()
    assert complaints(large.output()) == []


def test_requests_that_never_end_cost_what_was_sent_and_no_more(large: LocalBroker) -> None:
    before = memory_mib(large.pid)
    head = (90 * MIB).to_bytes(4, "big")
    clients = [greedy(large, head + bytes(100_000)) for _ in range(200)]
    with RawClient(large.bootstrap) as client:
        assert fetch(client, "large", 0, 0, max_bytes=1000).error_code == 0
    assert memory_mib(large.pid) - before < GROWTH_MIB
    for one in clients:
        one.close()


def test_large_produces_at_once_cost_what_they_are(large: LocalBroker) -> None:
    with RawClient(large.bootstrap) as client:
        create_topic(client, "deep", max_message_bytes=20 * MIB)
        before = memory_mib(large.pid)
        batch = build_batch([Record(n, -1, None, bytes(1_000_000), ()) for n in range(10)])
        for _ in range(2):
            clients = [RawClient(large.bootstrap) for _ in range(4)]
            for one in clients:
                one.send(produce_request("deep", 0, batch), 9)
            for one in clients:
                assert one.receive()[1].responses[0].partition_responses[0].error_code == 0
                one.close()
    assert memory_mib(large.pid, "VmHWM") - before < GROWTH_MIB + 4 * 16
