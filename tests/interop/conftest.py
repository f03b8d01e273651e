"""Fixtures of the interop tests: client programs of other languages, and the broker they are run
against.

The broker stands behind a recording proxy, so that a test can ask which protocol versions a client
used. With ``INTEROP_TARGET=apache`` the same tests run against Apache Kafka: that shows the
programs and expectations to be right.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from interop import toolchain
from interop.apache_kafka import ApacheKafka, free_port
from interop.programs import Client, Librdkafka, Program
from millstream.local.broker import LocalBroker
from support.proxy import RecordingProxy

BrokerStarter = Callable[..., LocalBroker]

TOPIC_TIMEOUT_S = 30
AGAINST_APACHE = os.environ.get("INTEROP_TARGET") == "apache"


class Target:
    """The broker under test: where clients connect (the proxy), and what passed there."""

    def __init__(self, proxy: RecordingProxy, broker: LocalBroker | ApacheKafka) -> None:
        self.proxy = proxy
        self.broker = broker
        self.bootstrap = proxy.bootstrap
        self.admin = AdminClient({"bootstrap.servers": proxy.bootstrap})

    def create_topic(self, name: str, partitions: int = 1, **configs: object) -> str:
        wanted = {key.replace("_", "."): str(value) for key, value in configs.items()}
        [made] = self.admin.create_topics([NewTopic(name, partitions, 1, config=wanted)]).values()
        made.result(TOPIC_TIMEOUT_S)
        self._wait_led(name, partitions)
        return name

    def _wait_led(self, topic: str, partitions: int) -> None:
        """Apache Kafka answers before the partitions are open; a client that sends again would
        write twice.
        """
        wanted = {TopicPartition(topic, p): OffsetSpec.latest() for p in range(partitions)}
        deadline = time.monotonic() + TOPIC_TIMEOUT_S
        while any(answer.exception() for answer in self._answered(wanted)):
            assert time.monotonic() < deadline, f"{topic} has partitions without a leader"
            time.sleep(0.1)

    def _answered(self, wanted: dict[TopicPartition, OffsetSpec]) -> list[Future[object]]:
        answers = list(self.admin.list_offsets(wanted, request_timeout=TOPIC_TIMEOUT_S).values())
        wait(answers)
        return answers


@pytest.fixture(scope="session")
def java_command() -> list[str]:
    """``java`` with everything on its class path: our program, Apache Kafka's broker and tools."""
    return toolchain.skip_if_missing(toolchain.java_command)


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("interop")


@pytest.fixture(scope="session")
def java(java_command: list[str], scratch: Path) -> Program:
    return Program("java", [*java_command, "Interop"], scratch)


@pytest.fixture(scope="session")
def go(scratch: Path) -> Program:
    return Program("go", toolchain.skip_if_missing(toolchain.go_program), scratch)


@pytest.fixture(scope="session")
def node(scratch: Path) -> Program:
    return Program("node", toolchain.skip_if_missing(toolchain.node_program), scratch)


@pytest.fixture(scope="session")
def librdkafka() -> Librdkafka:
    return Librdkafka()


@pytest.fixture(params=["java", "go", "node"])
def program(request: pytest.FixtureRequest) -> Program:
    """Each of the programs in turn."""
    found: Program = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Callable[[str], Client]:
    """A client by its name, for tests that pair them."""
    return lambda name: request.getfixturevalue(name)


@pytest.fixture(scope="session")
def start_apache(request: pytest.FixtureRequest) -> Iterator[Callable[..., ApacheKafka]]:
    """A factory of Apache Kafka brokers, ended with the session."""
    java_command = request.getfixturevalue("java_command")
    started: list[ApacheKafka] = []

    def start(directory: Path, settings: Mapping[str, object] | None = None) -> ApacheKafka:
        started.append(ApacheKafka(java_command, directory, settings).start())
        return started[-1]

    yield start
    for kafka in started:
        kafka.kill()


@pytest.fixture
def start_millstream() -> Iterator[BrokerStarter]:
    """A factory of Millstream brokers with their data in ``directory / "data"``, ended with the
    test.
    """
    started: list[LocalBroker] = []

    def start(directory: Path, settings: Mapping[str, object] | None = None) -> LocalBroker:
        started.append(LocalBroker(directory, settings))
        return started[-1].start()

    yield start
    for broker in started:
        if broker.running:
            broker.kill()


@pytest.fixture(scope="session")
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    with RecordingProxy() as proxy:
        directory = tmp_path_factory.mktemp("target")
        settings = {"advertised.listeners": f"PLAINTEXT://{proxy.bootstrap}"}
        if AGAINST_APACHE:
            kafka = request.getfixturevalue("start_apache")(directory, settings)
            proxy.upstream = ("127.0.0.1", kafka.port)
            yield Target(proxy, kafka)
            return
        port = free_port()
        proxy.upstream = ("127.0.0.1", port)
        settings |= {
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "auto.create.topics.enable": "false",
        }
        broker = LocalBroker(directory, settings).start()
        yield Target(proxy, broker)
        # thousands of partitions: a clean stop takes its time, and other tests look at it
        broker.kill()
