"""Bootstrap addresses, and the diagnosis of unreachable brokers."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Sequence

import pytest

from millstream.client import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    BrokerUnreachable,
    ClientError,
    Consumer,
    Producer,
    consume,
    produce,
)
from millstream.client.connection import Connection, explain_silence, parse_bootstrap


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("localhost:9092", [("localhost", 9092)]),
        ("kafka", [("kafka", 9092)]),
        ("a:1, b:2,", [("a", 1), ("b", 2)]),
        ("[::1]:9093", [("::1", 9093)]),
        ("[::1]", [("::1", 9092)]),
        ("PLAINTEXT://127.0.0.1:9094", [("127.0.0.1", 9094)]),
    ],
)
def test_bootstrap_addresses_are_parsed(text: str, addresses: list[tuple[str, int]]):
    assert parse_bootstrap(text) == addresses


@pytest.mark.parametrize("text", ["", " , ", "host:", "host:abc", "host:0", "host:70000", ":9092"])
def test_bad_bootstrap_address_is_a_client_error(text: str):
    with pytest.raises(ClientError) as caught:
        parse_bootstrap(text)
    assert "localhost:9092" in str(caught.value)


@pytest.mark.parametrize(
    "use",
    [
        lambda address: Admin(address).topics.names(),
        lambda address: Producer(address),
        lambda address: Consumer(address, "orders"),
    ],
    ids=["admin", "producer", "consumer"],
)
def test_refused_connection_names_address_and_next_step(use, free_port: int):
    with pytest.raises(BrokerUnreachable) as caught:
        use(f"127.0.0.1:{free_port}")
    assert f"127.0.0.1:{free_port}: connection refused" in str(caught.value)
    assert "millstream serve" in str(caught.value)


def test_server_that_is_not_a_broker_is_recognised():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(BrokerUnreachable) as caught:
            Admin(address, timeout_s=0.3).topics.names()
    assert str(caught.value).startswith(
        f"cannot list the topics: {address} accepts connections but does not answer"
    )


def test_unreachable_advertised_address_is_named(free_port: int):
    error = explain_silence(
        Connection("127.0.0.1:9"), {3: ("127.0.0.1", free_port)}, "create topic 'a'"
    )
    assert str(error) == (
        f"cannot create topic 'a': broker 3 advertises 127.0.0.1:{free_port}, which cannot be reached from here "
        "(connection refused); set advertised.listeners of that broker to an address that its clients can reach"
    )


def test_unknown_option_is_rejected(shared_broker):
    with pytest.raises(ClientError, match=r'No such configuration property: "no.such"'):
        Producer(shared_broker.bootstrap, options={"no.such": 1})


def test_errors_and_addresses_do_not_load_librdkafka():
    code = "import sys, millstream.client.errors, millstream.client.connection; print('confluent_kafka' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


@pytest.mark.parametrize(
    "bootstrap", [["127.0.0.1:1", "ADDRESS"], ("ADDRESS",)], ids=["list", "tuple"]
)
def test_every_client_takes_a_list_of_addresses(
    shared_broker, topic_name: str, bootstrap: Sequence[str]
):
    addresses = [address.replace("ADDRESS", shared_broker.bootstrap) for address in bootstrap]
    with Admin(addresses) as admin:
        admin.topics.create(topic_name, partitions=1)
    with Producer(addresses) as producer:
        producer.send(topic_name, b"1")
    assert produce(addresses, topic_name, [b"2"]) == 1
    with Consumer(addresses, topic_name, until_end=True) as consumer:
        assert [record.value for record in consumer] == [b"1", b"2"]
    assert len(consume(addresses, topic_name)) == 2

    async def both() -> list[bytes | None]:
        async with AsyncProducer(addresses) as producer:
            await producer.send(topic_name, b"3")
        async with AsyncConsumer(addresses, topic_name, until_end=True) as consumer:
            return [record.value async for record in consumer]

    assert asyncio.run(both()) == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    "bootstrap", [9092, None, b"localhost:9092", ("localhost", 9092), {"localhost": 9092}]
)
@pytest.mark.parametrize(
    "client", [Admin, Producer, lambda bootstrap: Consumer(bootstrap, "orders")]
)
def test_invalid_address_is_rejected_with_its_value(client, bootstrap: object):
    with pytest.raises(ClientError) as refused:
        client(bootstrap)
    assert str(refused.value).startswith(
        f'{bootstrap!r} is not a bootstrap address; give "host:port"'
    )
