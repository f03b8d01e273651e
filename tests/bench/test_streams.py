"""Other systems as peers: real servers if installed, and parts of their generators without one."""

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench.__main__ import Runner
from bench.measures import all_measures
from bench.model import load_peers, load_scenarios
from bench.running import missing
from bench.streams import BlockWriter, Line, nats, rabbitmq, redis

from bench import rabbitmq_server
from support.bench.small_scenarios import tiny

TINY = {"megabytes": 0.2, "seconds": 0.2}
SCENARIOS = ("start", "produce-100b", "consume-1-partition", "end-to-end-1k")


def run_all(runner_of: Callable[[str], Runner], peer: str) -> None:
    # Servers from Debian. None of them has to be installed; the report then shows it as missing.
    if reason := missing(load_peers()[peer].requires):
        pytest.skip(reason)
    for name in SCENARIOS:
        scenario = tiny(name, TINY)
        outcome = runner_of(peer).scenario(scenario, 1, "")
        assert outcome.absent == {}
        (reading,) = outcome.readings[peer]
        assert set(reading.values) >= {
            metric.name for metric in all_measures()[scenario.measure].metrics
        }


@pytest.mark.parametrize("peer", ["redis", "nats"])
def test_server_yields_every_metric(runner_of: Callable[[str], Runner], peer: str) -> None:
    run_all(runner_of, peer)


@pytest.mark.long
def test_rabbitmq_yields_every_metric(runner_of: Callable[[str], Runner]) -> None:
    run_all(runner_of, "rabbitmq")


def test_peers_take_part_in_scenarios_they_name() -> None:
    peers, scenarios = load_peers(), {s.name: s for s in load_scenarios()}
    for name in ("redis", "nats", "rabbitmq"):
        assert set(peers[name].scenarios) <= set(scenarios)
        assert scenarios["consume-1-partition"].concerns(peers[name])
        assert not scenarios["transactions"].concerns(peers[name])


class Fives(BlockWriter):
    """Messages of five bytes, each acknowledged with one byte."""

    def block(self, count: int) -> bytes:
        return b"12345" * count

    def acknowledged(self, data: bytes) -> int:
        return len(data)


@pytest.fixture
def echo_socket() -> Iterator[socket.socket]:
    """A socket whose other end sends one byte for each five."""
    mine, other = socket.socketpair()

    def answer() -> None:
        rest = 0
        while data := other.recv(1 << 16):
            rest += len(data)
            other.sendall(b"x" * (rest // 5))
            rest %= 5

    thread = threading.Thread(target=answer)
    thread.start()
    yield mine
    mine.close()
    thread.join()
    other.close()


def test_writer_returns_when_everything_is_acknowledged(echo_socket: socket.socket) -> None:
    writer = Fives(echo_socket, 5)
    writer.per_block = 1000
    writer.send(12_345)
    assert not writer.unsent


def test_posted_messages_are_acknowledged_later(echo_socket: socket.socket) -> None:
    writer = Fives(echo_socket, 5)
    waiting = sum(1 - writer.post(b"12345") for _ in range(100))
    writer.settle(waiting)
    echo_socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        echo_socket.recv(1)


def test_line_returns_requested_bytes_and_keeps_the_rest() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = Line(f"127.0.0.1:{server.getsockname()[1]}")
        with line.sock, server.accept()[0] as other:
            other.sendall(b"INFO x\r\nabcdef")
            assert (line.until(b"\r\n"), line.take(3), line.take(3)) == (
                b"INFO x\r\n",
                b"abc",
                b"def",
            )


def test_messages_before_the_response_are_kept() -> None:
    """NATS pushes to a new consumer before the response to its creation."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as other:
                other.sendall(b"INFO {}\r\nPONG\r\n")
                other.sendall(
                    b'MSG bench 2 ack.1 5\r\nfirst\r\nPING\r\nMSG _INBOX.answer 9 11\r\n{"ok":true}\r\n'
                )
                other.sendall(b"MSG bench 2 ack.2 6\r\nsecond\r\n")
                while other.recv(1 << 16):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        client = nats.Client(f"127.0.0.1:{server.getsockname()[1]}")
        with client.line.sock:
            assert client.request("anything", {}) == {"ok": True}
            assert [client.next(), client.next()] == [b"first", b"second"]
        thread.join()


def test_frames_match_the_protocols() -> None:
    assert redis.command(b"XADD", b"s", b"*") == b"*3\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n"
    assert rabbitmq.frame(rabbitmq.CREDIT, b"\0\0\1") == b"\0\0\0\7\0\x09\0\1\0\0\1"
    assert nats._HEAD.match(b"MSG bench 2 $JS.ACK.BENCH.reader.1.1.1.0.0 100\r\n") is not None


def test_rabbitmq_stores_everything_in_one_folder(tmp_path: Path) -> None:
    rabbitmq_server.prepare(tmp_path, 5552)
    assert "stream.listeners.tcp.1 = 127.0.0.1:5552\n" in (tmp_path / "rabbitmq.conf").read_text()
    settings = rabbitmq_server.environment(tmp_path, 4369)
    paths = [
        value for name, value in settings.items() if name.startswith("RABBITMQ_") and "/" in value
    ]
    assert len(paths) >= 5 and all(value.startswith(str(tmp_path)) for value in paths)
