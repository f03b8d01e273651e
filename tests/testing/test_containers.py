"""The testcontainers class: its start script runs as a process, and the interface is Kafka's."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.client import consume, produce

pytest.importorskip("testcontainers", reason="testcontainers is not installed")

from docker.errors import DockerException
from testcontainers.core import container as core
from testcontainers.core.exceptions import ContainerStartException

from millstream.testing import containers
from millstream.testing.containers import KafkaContainer, MillstreamContainer, variable
from support.fake_engine import FakeEngine, free_port

# The entry point of an image: settings from the environment, as the image `apache/kafka` has them.
ENTRY_POINT = """
import os, sys
from millstream.broker.main import serve_command
settings = {name: value for name, value in os.environ.items() if name.startswith("KAFKA_")}
pairs = [f"{n.removeprefix('KAFKA_').lower().replace('_', '.')}={v}" for n, v in settings.items()]
sys.exit(serve_command([*sys.argv[1:], *(word for pair in pairs for word in ("--set", pair))]))
"""
Start = Callable[..., MillstreamContainer]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    image = {
        "Entrypoint": [sys.executable, "-c", ENTRY_POINT],
        "Cmd": ["--set", f"log.dirs={tmp_path / 'data'}"],
    }
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    engine = FakeEngine(tmp_path, image, environment)
    monkeypatch.setattr(core, "DockerClient", lambda **options: engine)
    monkeypatch.setattr(core.c, "ryuk_disabled", True)
    monkeypatch.setattr(containers, "_INSIDE_PORT", free_port())
    return engine


def test_clients_reach_the_broker_at_the_mapped_port(engine: FakeEngine) -> None:
    port = free_port()
    with KafkaContainer(port=port).with_kraft().with_setting("num.partitions", 2) as kafka:
        assert kafka.get_bootstrap_server() == f"127.0.0.1:{port}"
        produce(kafka.get_bootstrap_server(), "orders", [b"1", b"2"])
        assert len(consume(kafka.get_bootstrap_server(), "orders", n=2)) == 2
        log = engine.containers[0].logs().decode()
        assert f"PLAINTEXT://127.0.0.1:{port}, BROKER://" in log
    process = engine.containers[0].process
    assert process is not None and process.poll() is not None


def test_alias_in_the_network_is_advertised_to_other_containers(engine: FakeEngine) -> None:
    inside = f"BROKER://kafka:{containers._INSIDE_PORT}"
    with MillstreamContainer(port=free_port(), network_aliases=["kafka"]):
        assert inside in engine.containers[0].logs().decode()


def test_command_of_the_user_replaces_that_of_the_image(engine: FakeEngine, tmp_path: Path) -> None:
    container = MillstreamContainer(port=free_port())
    with container.with_command(["--set", f"log.dirs={tmp_path / 'other'}"]):
        assert (tmp_path / "other").exists() and not (tmp_path / "data").exists()


def test_broker_that_exits_is_reported_with_its_log(engine: FakeEngine) -> None:
    with (
        pytest.raises(ContainerStartException, match=r"Unknown setting num\.partition;"),
        MillstreamContainer(port=free_port()).with_setting("num.partition", 3),
    ):
        pass


def test_broker_that_is_not_ready_in_time_is_reported(engine: FakeEngine) -> None:
    container = MillstreamContainer(port=free_port(), wait_strategy_check_string="never printed")
    with pytest.raises(TimeoutError, match=r"not ready within 0\.1 s"):
        container.start(timeout=0.1)
    container.stop()


def test_image_serves_clients_where_an_engine_has_it() -> None:
    try:
        container = MillstreamContainer()
        container.get_docker_client().client.images.get(containers.IMAGE)
    except DockerException as missing:
        pytest.skip(f"no container engine with the image {containers.IMAGE}: {missing}")
    with container as kafka:
        produce(kafka.get_bootstrap_server(), "orders", [b"1"])
        assert len(consume(kafka.get_bootstrap_server(), "orders", n=1)) == 1


def test_interface_is_that_of_the_kafka_container() -> None:
    kafka = pytest.importorskip("testcontainers.community.kafka").KafkaContainer
    ours = inspect.signature(MillstreamContainer.__init__).parameters
    assert [*ours] == [*inspect.signature(kafka.__init__).parameters]
    for name in ("get_bootstrap_server", "with_kraft", "with_cluster_id", "start", "stop"):
        theirs = inspect.signature(getattr(kafka, name)).parameters
        assert [*inspect.signature(getattr(MillstreamContainer, name)).parameters] == [*theirs]


def test_security_is_refused(engine: FakeEngine) -> None:
    with pytest.raises(ValueError, match="security_protocol 'SSL' is not supported"):
        MillstreamContainer(security_protocol="SSL")


def test_missing_engine_is_reported_with_an_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    with pytest.raises(DockerException) as caught:
        MillstreamContainer(port=9)
    assert any("millstream.testing.broker()" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("log.retention.hours", "KAFKA_LOG_RETENTION_HOURS"),
        ("a_b-c.d", "KAFKA_A__B___C_D"),
    ],
)
def test_settings_have_the_variables_of_the_official_image(setting: str, name: str) -> None:
    assert variable(setting) == name


def test_missing_testcontainers_is_reported_with_the_remedy() -> None:
    program = (
        "import sys; sys.modules['testcontainers'] = None; import millstream.testing.containers"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install testcontainers" in done.stderr.splitlines()[-1]
