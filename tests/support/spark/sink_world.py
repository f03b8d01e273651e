"""What the sink's tests share: topics, a reader of what is committed, and a proxy that loses
answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.client import Producer
from millstream.local.broker import LocalBroker
from millstream.spark.sink.topic_sink import TopicSink
from support.places import ROOT, SUPPORT, TESTS

PATIENCE_S = 100.0


def create_topic(bootstrap: str, name: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)


def messages(bootstrap: str, topic: str, *, isolation: str = "read_committed") -> list:
    """Every message of a topic up to its last stable (or last) offset, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        found = []
        partitions = sorted(
            consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
        )
        for partition in partitions:
            consumer.assign([TopicPartition(topic, partition, 0)])
            found += _until_end(consumer)
        return found
    finally:
        consumer.close()


def _until_end(consumer: Consumer) -> list:
    found = []
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error() is None:
            found.append(message)
        elif message.error().name() == "_PARTITION_EOF":
            return found
    raise AssertionError("no end of the partition in sight")


def committed(bootstrap: str, topic: str) -> list[bytes | None]:
    """The values that a read_committed reader finds."""
    return [message.value() for message in messages(bootstrap, topic)]


def start_behind(
    proxy: DroppingProxy, start: Callable[..., LocalBroker], **settings: object
) -> LocalBroker:
    """A broker that clients reach through the proxy only."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    proxy.upstream = ("127.0.0.1", port)
    listeners = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "advertised.listeners": f"PLAINTEXT://{proxy.bootstrap}",
    }
    return start(listeners | settings)


def produce(bootstrap: str, topic: str, values: list[str], key: str | None = None) -> None:
    with Producer(bootstrap) as producer:
        for value in values:
            producer.send(topic, key=key, value=value)


class World:
    """Input, sinks, and queries that run until there is nothing more to read. Input is lines of
    files, which Spark starts reading at once; ``per_batch`` of them make a micro-batch.
    """

    def __init__(self, spark: Any, broker: LocalBroker, name: str, directory: Path) -> None:
        self.spark, self.bootstrap, self.name, self.directory = (
            spark,
            broker.bootstrap,
            name,
            directory,
        )
        self.target = f"{name}-out"
        self.per_batch = 1_000_000
        self._files = 0
        (directory / "input").mkdir()

    def topics(self, partitions: int = 3) -> None:
        create_topic(self.bootstrap, self.target, partitions)

    def put(self, *values: str) -> None:
        for start in range(0, len(values), self.per_batch):
            self._files += 1
            draft = self.directory / f".{self._files}"
            draft.write_text("\n".join(values[start : start + self.per_batch]) + "\n")
            os.utime(draft, (self._files, self._files))  # the order in which they are read
            draft.rename(self.directory / "input" / str(self._files))

    def rows(self) -> Any:
        lines = self.spark.readStream.option("maxFilesPerTrigger", 1).text(
            str(self.directory / "input")
        )
        return lines.selectExpr("cast(null as binary) as key", "cast(value as binary) as value")

    def sink(self, **more: Any) -> TopicSink:
        more.setdefault("topic", self.target)
        return TopicSink(self.bootstrap, f"{self.name}-sink", **more)

    def run(
        self, df: Any, sink: TopicSink, mode: str = "append", checkpoint: str = "checkpoint"
    ) -> TopicSink:
        writer = df.writeStream.outputMode(mode).trigger(availableNow=True)
        query = sink.start(writer.option("checkpointLocation", str(self.directory / checkpoint)))
        assert query.awaitTermination(PATIENCE_S), "the query did not end"
        return sink

    def values(self, topic: str | None = None) -> list[str]:
        return sorted(
            (value or b"").decode() for value in committed(self.bootstrap, topic or self.target)
        )


class TopicWorld(World):
    """The same with a topic as the input, which drivers in other processes read too."""

    def __init__(
        self, spark: Any, stream: Any, broker: LocalBroker, name: str, directory: Path
    ) -> None:
        super().__init__(spark, broker, name, directory)
        self.source = f"{name}-in"
        self._stream = stream

    def topics(self, partitions: int = 3) -> None:
        create_topic(self.bootstrap, self.source, 2)
        super().topics(partitions)

    def put(self, *values: str) -> None:
        produce(self.bootstrap, self.source, list(values))

    def rows(self) -> Any:
        limit = {"maxOffsetsPerTrigger": self.per_batch}
        return self._stream(
            self.source, bootstrap=self.bootstrap, startingOffsets="earliest", **limit
        )


class Driver:
    """A driver process (``sink_driver.py``) and what the test asks of it."""

    def __init__(self, directory: Path, **asked: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.log = directory / "driver.log"
        paths = [str(TESTS), os.environ.get("PYTHONPATH", ""), str(ROOT / "src")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(one for one in paths if one)}
        words = [
            sys.executable,
            str(SUPPORT / "spark" / "sink_driver.py"),
            json.dumps({"directory": str(directory)} | asked),
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    def wait(self, timeout_s: float = 300.0) -> int:
        """The exit code; negative for the signal that ended it."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the driver did not end:\n{self.output()[-3000:]}") from None

    def wait_paused(self, timeout_s: float = 300.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not (self.directory / "paused").exists():
            assert self.process.poll() is None, self.output()[-3000:]
            assert time.monotonic() < deadline, self.output()[-3000:]
            time.sleep(0.05)

    def go(self) -> None:
        (self.directory / "go").touch()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def output(self) -> str:
        return self.log.read_text(errors="replace")


class DroppingProxy:
    """Passes connections on to ``upstream``; ``drop_answers`` cuts a connection instead of giving
    the next answers of an API.
    """

    def __init__(self, upstream: tuple[str, int] | None = None) -> None:
        self.upstream = upstream
        self.dropped = 0
        self._left = 0
        self._api = -1
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.on_request = None  # called with the API key of every request, before it goes on
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def drop_answers(self, api: int, times: int) -> None:
        with self._lock:
            self._api, self._left = api, times

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in [*self._open]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """One request at a time: answers come back in order, so the API of each is known."""
        try:
            server = socket.create_connection(self.upstream or ("127.0.0.1", 1))
        except OSError:
            client.close()
            return
        self._open |= {client, server}
        asked: list[int] = []
        answers = threading.Thread(target=self._answers, args=(server, client, asked), daemon=True)
        answers.start()
        with contextlib.suppress(OSError):
            while frame := _frame(client):
                api = struct.unpack_from(">h", frame, 4)[0]
                asked.append(api)
                if self.on_request is not None:
                    self.on_request(api)
                server.sendall(frame)
        for end in (client, server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        answers.join()
        for end in (client, server):
            end.close()
        self._open -= {client, server}

    def _answers(self, server: socket.socket, client: socket.socket, asked: list[int]) -> None:
        with contextlib.suppress(OSError):
            while frame := _frame(server):
                if self._takes(asked.pop(0)):
                    break
                client.sendall(frame)
        for end in (client, server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _takes(self, api: int) -> bool:
        with self._lock:
            if api != self._api or not self._left:
                return False
            self._left -= 1
            self.dropped += 1
            return True

    def __enter__(self) -> DroppingProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _frame(peer: socket.socket) -> bytes:
    head = _exactly(peer, 4)
    return head + _exactly(peer, int.from_bytes(head, "big")) if head else b""


def _exactly(peer: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = peer.recv(min(count - len(data), 1 << 18))
        if not piece:
            return b""
        data += piece
    return bytes(data)
