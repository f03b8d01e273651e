"""Starting and stopping: a mistake is told in one line with exit code 1 (2 for misuse), and the
data stays as it is.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.local.broker import BrokerFailed, LocalBroker
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.records.batch import Record, build_batch
from support.processes import complaints, wait_until
from support.raw import Closed, RawClient, create_topic, fetch_request, produce

MARKER = ".kafka_cleanshutdown"
BrokerFactory = Callable[..., LocalBroker]


def serve(
    *words: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs ``millstream serve`` to its end, which must come by itself."""
    return subprocess.run(
        [sys.executable, "-m", "millstream", "serve", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **(environment or {})},
        check=False,
    )


def settings(data: Path, **more: object) -> list[str]:
    rows = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": data, **more}
    return [word for name, value in rows.items() for word in ("--set", f"{name}={value}")]


def one_line(ran: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The complaint of a start that failed as it should."""
    assert ran.returncode == code, ran
    assert ran.stdout == "" and "Traceback" not in ran.stderr
    line = ran.stderr.strip().splitlines()[-1]
    assert line.startswith("millstream serve: "), ran.stderr
    return line.removeprefix("millstream serve: ")


def batch(text: bytes = b"v", count: int = 1) -> bytes:
    return build_batch([Record(n, 1_700_000_000_000, b"k", text, ()) for n in range(count)])


# ---- settings ----


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        (
            "log.retention.hour=1",
            "Unknown setting log.retention.hour; did you mean log.retention.hours?",
        ),
        (
            "num.partitions=many",
            "Invalid value many for configuration num.partitions: expected a whole number",
        ),
        (
            "num.partitions=0",
            "Invalid value 0 for configuration num.partitions: Value must be at least 1",
        ),
        (
            "listeners=9092",
            "Invalid value 9092 for configuration listeners: expected NAME://HOST:PORT",
        ),
        (
            "listeners=SSL://127.0.0.1:0",
            "listener SSL has protocol SSL; only PLAINTEXT is supported",
        ),
        (
            "advertised.listeners=PLAINTEXT://0.0.0.0:1",
            "advertised.listeners has 0.0.0.0; use an address that clients can reach",
        ),
    ],
)
def test_a_wrong_setting_is_told(tmp_path: Path, setting: str, complaint: str) -> None:
    ran = serve(*settings(tmp_path / "data"), "--set", setting)
    assert one_line(ran).startswith(f"--set {setting.partition('=')[0]}: {complaint}")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (
            "log.retention.hour=1",
            "Unknown setting log.retention.hour; did you mean log.retention.hours?",
        ),
        ("num.partitions = many", "Invalid value many for configuration num.partitions"),
        ("log.dirs=", "log.dirs is empty"),
        ("listeners=9092", "Invalid value 9092 for configuration listeners"),
    ],
)
def test_a_wrong_setting_in_a_file_is_told_with_its_line(
    tmp_path: Path, line: str, complaint: str
) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"# settings\nlog.dir={tmp_path / 'data'}\n{line}\n")
    assert one_line(serve("--config", str(file))).startswith(f"{file}, line 3: {complaint}")


@pytest.mark.parametrize("name", ["set.acl", "ssl.client.enable"])
def test_zookeeper_settings_that_promise_security_are_refused(tmp_path: Path, name: str) -> None:
    ran = serve(*settings(tmp_path / "data"), "--set", f"zookeeper.{name}=true")
    assert one_line(ran) == (
        f"--set zookeeper.{name}: zookeeper.{name} is refused: "
        "the connection to ZooKeeper is not encrypted, and nodes there get no ACLs"
    )


def test_zookeeper_setting_that_no_kafka_has_is_refused(tmp_path: Path) -> None:
    ran = serve(*settings(tmp_path / "data"), "--set", "zookeeper.set=true")
    assert one_line(ran) == (
        "--set zookeeper.set: zookeeper.set is not supported; supported are "
        "zookeeper.connect, zookeeper.session.timeout.ms, zookeeper.connection.timeout.ms"
    )


def test_settings_of_the_file_that_kafka_ships_start_a_broker(broker: BrokerFactory) -> None:
    shipped = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.bootstrap.servers": "localhost:9093",
        "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "advertised.listeners": "PLAINTEXT://localhost:0,CONTROLLER://localhost:0",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
        "num.recovery.threads.per.data.dir": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "inter.broker.protocol.version": "3.9",
    }
    started = broker(shipped)
    [ready] = [
        line for line in started.output().splitlines() if line.startswith("millstream ready")
    ]
    assert "CONTROLLER" not in ready
    assert served(started.bootstrap)


def test_a_timeout_for_zookeeper_without_its_address_is_refused(tmp_path: Path) -> None:
    ran = serve(*settings(tmp_path / "data"), "--set", "zookeeper.session.timeout.ms=9000")
    assert one_line(ran) == (
        "--set zookeeper.session.timeout.ms: zookeeper.session.timeout.ms is for a cluster; "
        "give zookeeper.connect too"
    )


def test_an_address_of_zookeeper_that_is_none_is_refused(tmp_path: Path) -> None:
    ran = serve(*settings(tmp_path / "data"), "--set", "zookeeper.connect=localhost:port/kafka")
    assert one_line(ran) == (
        "--set zookeeper.connect: Invalid value localhost:port/kafka for configuration zookeeper.connect: "
        "'localhost:port' is not HOST:PORT"
    )


def test_a_zookeeper_that_does_not_answer_is_told(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        more = (f"zookeeper.connect={address}/kafka", "zookeeper.connection.timeout.ms=300")
        ran = serve(
            *settings(tmp_path / "data"), *(word for one in more for word in ("--set", one))
        )
    assert one_line(ran) == f"no ZooKeeper answers at {address} within 0.3 s"
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", ["log.dirs", "log.dir", "listeners"])
def test_a_place_that_is_empty_is_refused(tmp_path: Path, name: str) -> None:
    """Rather than to keep the data in some directory that nobody named."""
    complaint = one_line(serve(*settings(tmp_path / "data"), "--set", f"{name}="))
    assert complaint.startswith(f"--set {name}: {name} is empty")


def test_a_settings_file_that_is_not_there_or_not_text_is_told(tmp_path: Path) -> None:
    assert "cannot read /no/such/file: No such file" in one_line(serve("--config", "/no/such/file"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert "it is not text" in one_line(serve("--config", str(tmp_path / "binary")))


@pytest.mark.parametrize("words", [["--set"], ["--set", "novalue"], ["--nonsense"], ["--config"]])
def test_misuse_is_exit_code_2_with_a_hint(words: list[str]) -> None:
    ran = serve(*words)
    said, hint = ran.stderr.splitlines()
    assert ran.returncode == 2 and ran.stdout == ""
    assert said.startswith("millstream serve: ") and hint == "Try: millstream serve --help"


def test_settings_without_a_meaning_here_are_said_in_one_line(broker: BrokerFactory) -> None:
    given = {"num.io.threads": 8, "num.network.threads": 3, "process.roles": "broker,controller"}
    warnings = [line for line in broker(given).output().splitlines() if "WARNING" in line]
    assert len([line for line in warnings if "num.io.threads" in line]) == 1
    assert any(
        line.endswith("num.io.threads, num.network.threads, process.roles") for line in warnings
    )
    assert not [
        line for line in warnings if "process.roles" in line and "num.io.threads" not in line
    ]


# ---- places ----


def test_a_second_broker_on_the_same_directory_is_refused(broker: BrokerFactory) -> None:
    first = broker()
    complaint = one_line(serve(*settings(first.data_dir)))
    assert complaint == f"the data directory {first.data_dir} is in use by another broker"
    with RawClient(first.bootstrap) as client:
        create_topic(client, "still-works")
    assert first.stop() == 0 and (first.data_dir / MARKER).exists()


def test_a_port_in_use_is_told_with_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = serve(*settings(tmp_path / "data", listeners=f"PLAINTEXT://127.0.0.1:{port}"))
    complaint = one_line(ran)
    assert f"cannot listen on 127.0.0.1:{port} (Address already in use)" in complaint
    assert "--set listeners=" in complaint


def test_an_address_that_is_not_of_this_machine_is_told(tmp_path: Path) -> None:
    for host in ("192.0.2.1", "no-such-host.invalid"):
        ran = serve(*settings(tmp_path / "data", listeners=f"PLAINTEXT://{host}:0"))
        assert f"cannot listen on {host}:0" in one_line(ran)


@pytest.mark.parametrize("name", ["log.dirs", "metadata.log.dir"])
def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path, name: str) -> None:
    """A file is in the way: that stops root as well."""
    (tmp_path / "file").write_text("in the way")
    place = tmp_path / "file" / "below"
    complaint = one_line(serve(*settings(tmp_path / "data", **{name: place})))
    assert str(place) in complaint and "Not a directory" in complaint


@pytest.mark.parametrize("others", ["", ",{good}"])
def test_the_reason_of_a_failed_start_is_said_once(tmp_path: Path, others: str) -> None:
    """Whether the only directory cannot be used, or the one that holds the metadata store."""
    (tmp_path / "file").write_text("in the way")
    dirs = str(tmp_path / "file" / "below") + others.format(good=tmp_path / "good")
    ran = serve(*settings(tmp_path / "data", **{"log.dirs": dirs}))
    assert "Not a directory" in one_line(ran)
    assert ran.stderr.count("Not a directory") == 1 and "ERROR" not in ran.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o500)
    assert "Permission denied" in one_line(serve(*settings(tmp_path / "data")))


def test_a_read_only_file_system_is_told(tmp_path: Path) -> None:
    """Which stops root as well, who alone can mount one."""
    place = tmp_path / "read-only"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro", "none", str(place)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        for data in (place, place / "data"):
            complaint = one_line(serve(*settings(data)))
            assert str(data) in complaint and "Read-only file system" in complaint
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_of_two_directories_one_is_enough(broker: BrokerFactory, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    good = tmp_path / "good"
    started = broker({"log.dirs": f"{good},{tmp_path / 'file' / 'bad'}"})
    assert "is offline" in started.output()
    with RawClient(started.bootstrap) as client:
        create_topic(client, "t")
        assert produce(client, "t", 0, batch()).error_code == 0
    assert complaints(started.output()) == []


# ---- stopping ----


def test_sigterm_and_sigint_stop_cleanly(broker: BrokerFactory) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        started = broker()
        process = started._process
        assert process is not None
        process.send_signal(number)
        assert process.wait(30) == 0
        assert (started.data_dir / MARKER).exists()
        assert complaints(started.output()) == []


def test_sigterm_answers_a_waiting_fetch_first(broker: BrokerFactory) -> None:
    started = broker()
    with RawClient(started.bootstrap) as client:
        create_topic(client, "quiet")
        client.send(fetch_request("quiet", max_wait_ms=700), 11)
        with RawClient(started.bootstrap) as other:  # answered behind the fetch: it waits by then
            other.call(ApiVersionsRequest(), 0)
        assert started._process is not None
        started._process.send_signal(signal.SIGTERM)
        assert client.receive()[1].responses[0].partitions[0].error_code == 0
        assert started._process.wait(30) == 0


def test_a_second_signal_ends_the_broker_at_once(broker: BrokerFactory) -> None:
    started = broker()
    process = started._process
    assert process is not None
    with RawClient(started.bootstrap) as client:
        create_topic(client, "quiet")
        client.send(fetch_request("quiet", max_wait_ms=60_000), 11)  # keeps the shutdown waiting
        client.send(ApiVersionsRequest(), 0)
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: refused(started.bootstrap), "the first signal to be heard")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    assert not (started.data_dir / MARKER).exists()
    assert complaints(started.output()) == []


def refused(bootstrap: str) -> bool:
    try:
        RawClient(bootstrap).close()
    except ConnectionError:
        return True
    return False


def test_a_low_limit_of_open_files_is_told_and_lived_with(
    broker: BrokerFactory, tmp_path: Path
) -> None:
    """More clients than descriptors: some have to wait, the others are served, and the broker goes
    on.
    """
    data = tmp_path / "few"
    log = tmp_path / "log"
    command = [sys.executable, "-m", "millstream", "serve", *settings(data)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["sh", "-c", 'ulimit -n 40; exec "$@"', "sh", *command], stdout=out, stderr=out
        )
    try:
        wait_until(lambda: "millstream ready" in log.read_text(), "the broker to be ready")
        assert "only 40 files may be open" in log.read_text()
        bootstrap = log.read_text().split("PLAINTEXT://")[1].split(",")[0]
        with RawClient(bootstrap) as first:
            clients = [RawClient(bootstrap) for _ in range(60)]
            assert first.call(ApiVersionsRequest(), 0).error_code == 0
            for client in clients:
                client.close()
        wait_until(lambda: served(bootstrap), "a place to be free again")
        with RawClient(bootstrap) as client:
            create_topic(client, "t")
            assert produce(client, "t", 0, batch()).error_code == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert complaints(log.read_text()) == []
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def served(bootstrap: str) -> bool:
    try:
        with RawClient(bootstrap) as client:
            return bool(client.call(ApiVersionsRequest(), 0).error_code == 0)
    except (Closed, ConnectionError):
        return False


def test_a_broker_that_cannot_start_leaves_no_process_behind(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path, {"no.such.setting": 1})
    began = time.monotonic()
    with pytest.raises(BrokerFailed, match=r"Unknown setting no\.such\.setting"):
        broker.start()
    assert not broker.running and time.monotonic() - began < 60
