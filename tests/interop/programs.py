"""The clients of the other languages as Python callables, and librdkafka with the same face.

``client.run(bootstrap, scenario, **options)`` gives the JSON lines that the program printed.
``produce`` and ``consume`` are the two that every client has.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

Line = dict[str, Any]
Row = dict[str, Any]
SHORT_BYTES = 64
PATIENCE_S = 120


class ProgramFailed(AssertionError):
    """The program ended with an error: its last output is the message."""


class Client(Protocol):
    name: str

    def produce(
        self, bootstrap: str, topic: str, rows: Sequence[Row], **config: str
    ) -> list[Line]: ...

    def consume(self, bootstrap: str, topic: str, **config: str) -> list[Line]: ...


def shown(data: bytes | None) -> str | None:
    """Short bytes as they are, long ones by their digest, as the programs print them."""
    if data is None:
        return None
    if len(data) <= SHORT_BYTES:
        return "b64:" + base64.b64encode(data).decode()
    return f"sha256:{hashlib.sha256(data).hexdigest()}:{len(data)}"


class Program:
    """A client program in another language, run once per scenario."""

    def __init__(self, name: str, command: Sequence[str], scratch: Path) -> None:
        self.name = name
        self._command = list(command)
        self._scratch = scratch
        self._runs = 0

    def run(self, bootstrap: str, scenario: str, **options: Any) -> list[Line]:
        options.setdefault("client_id", self.name)
        command = [*self._command, bootstrap, scenario, json.dumps(options)]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            raise ProgramFailed(
                f"{self.name} {scenario}: no end after {PATIENCE_S} s; {late.stdout!r:.500}"
            ) from None
        if done.returncode:
            raise ProgramFailed(
                f"{self.name} {scenario}: {done.stderr[-2000:]}\n{done.stdout[-500:]}"
            )
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def produce(self, bootstrap: str, topic: str, rows: Sequence[Row], **config: str) -> list[Line]:
        self._runs += 1
        file = self._scratch / f"{self.name}-{self._runs}.json"
        file.write_text(json.dumps(rows))
        client_id = config.pop("client_id", self.name)
        return self.run(
            bootstrap,
            "produce",
            topic=topic,
            file=str(file),
            client_id=client_id,
            config=_java_names(config),
        )

    def consume(self, bootstrap: str, topic: str, **config: str) -> list[Line]:
        client_id = config.pop("client_id", self.name)
        return self.run(
            bootstrap, "consume", topic=topic, client_id=client_id, config=_java_names(config)
        )


def _java_names(config: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in config.items()}


class Librdkafka:
    """confluent-kafka, taking the same rows and giving the same lines."""

    name = "librdkafka"

    def produce(self, bootstrap: str, topic: str, rows: Sequence[Row], **config: str) -> list[Line]:
        return self.produce_batches(bootstrap, topic, [rows], **config)

    def produce_batches(
        self, bootstrap: str, topic: str, batches: Iterable[Sequence[Row]], **config: str
    ) -> list[Line]:
        """One producer; each group of rows (of one partition) becomes one record batch,
        acknowledged before the next.
        """
        base = {
            "bootstrap.servers": bootstrap,
            "client.id": self.name,
            "message.max.bytes": 20_000_000,
        }
        producer = Producer(base | {"linger.ms": 5000} | _librdkafka_names(config))
        lines: list[Line] = []
        for rows in batches:
            lines += _send(producer, topic, rows)
        return lines

    def consume(self, bootstrap: str, topic: str, **config: str) -> list[Line]:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": self.name,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_uncommitted",
                "fetch.message.max.bytes": 20_000_000,
            }
            | _librdkafka_names(config)
        )
        try:
            return _read_all(consumer, topic)
        finally:
            consumer.close()


def _send(producer: Producer, topic: str, rows: Sequence[Row]) -> list[Line]:
    lines: list[Line] = [{} for _ in rows]
    for number, row in enumerate(rows):
        producer.produce(topic, **_message(row), on_delivery=_noter(lines, number))
    left = producer.flush(PATIENCE_S)
    assert left == 0, f"{left} records were not acknowledged"
    return lines


def _librdkafka_names(config: Mapping[str, str]) -> dict[str, str]:
    return {
        name.replace("compression.type", "compression.codec"): v
        for name, v in _java_names(config).items()
    }


def _message(row: Row) -> dict[str, Any]:
    def data(text: str | None) -> bytes | None:
        return None if text is None else base64.b64decode(text)

    message = {
        "partition": row.get("partition", 0),
        "key": data(row.get("key")),
        "value": data(row.get("value")),
        "headers": [(name, data(value)) for name, value in row.get("headers", [])],
    }
    return message | ({} if row.get("timestamp") is None else {"timestamp": row["timestamp"]})


def _noter(lines: list[Line], number: int) -> Any:
    def note(error: KafkaError | None, message: Any) -> None:
        if error:
            lines[number] = {"op": "refused", "error": error.name()}
        else:
            lines[number] = {
                "op": "ack",
                "partition": message.partition(),
                "offset": message.offset(),
            }

    return note


def _read_all(consumer: Consumer, topic: str) -> list[Line]:
    partitions = sorted(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
    unfinished, lines = set(partitions), []
    deadline = time.monotonic() + PATIENCE_S
    while unfinished:
        assert time.monotonic() < deadline, f"partitions without an end: {sorted(unfinished)[:10]}"
        for message in consumer.consume(1000, timeout=1.0):
            if (error := message.error()) is None:
                lines.append(_record_line(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                unfinished.discard(message.partition())
            else:
                raise KafkaException(error)
    return lines


def _record_line(message: Any) -> Line:
    kind, timestamp = message.timestamp()
    return {
        "op": "record",
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp,
        "timestamp_type": {1: "CreateTime", 2: "LogAppendTime"}.get(kind, "NoTimestampType"),
        "key": shown(message.key()),
        "value": shown(message.value()),
        "headers": [[name, shown(value)] for name, value in message.headers() or []],
    }
