"""A transactional client as a process that can be killed: ``python worker.py '{"job": ...}'``.

- ``steps`` goes through one transaction, prints the name of each step, and stops for ever after the
  step that the job names.
- ``transform`` reads numbers from a topic and writes ``2 * number`` to another, with the offsets in
  the same transaction, until it is killed. Any error ends it, and the test starts another.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

PATIENCE_S = 120.0
# librdkafka comes back quickly after a kill. Starting over from the bootstrap servers, its default
# when all brokers are gone, it may wait for ever for a coordinator that it has forgotten
# (confluentinc/librdkafka#5511).
PATIENT = {
    "metadata.recovery.strategy": "none",
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 100,
    "socket.timeout.ms": 10_000,
    "log_level": 0,
}
# librdkafka 2.16 may wait for ever, beyond every timeout it was given, for the coordinator of a
# group on a broker that was away from the metadata for a moment. A worker that stands still for so
# long ends, and whoever started it starts another.
HANGS_S = 15
STEPS = ("init", "begin", "produce", "offsets", "end")


def producer(options: dict[str, Any]) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": options["bootstrap"],
            "transactional.id": options["id"],
            "linger.ms": 0,
            **PATIENT,
        }
    )
    made.init_transactions(PATIENCE_S)
    return made


def consumer(options: dict[str, Any]) -> Consumer:
    made = Consumer(
        {
            "bootstrap.servers": options["bootstrap"],
            "group.id": options["group"],
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 1_500,
            "heartbeat.interval.ms": 200,
            "fetch.wait.max.ms": 50,
            "topic.metadata.refresh.interval.ms": 2_000,
            **PATIENT,
        }
    )
    return made


def steps(options: dict[str, Any]) -> None:
    reader = consumer(options)
    for step in STEPS:
        if step == "init":
            writer = producer(options)
        elif step == "begin":
            writer.begin_transaction()
        elif step == "produce":
            writer.produce(options["output"], b"of the killed", partition=0)
            assert writer.flush(PATIENCE_S) == 0
        elif step == "offsets":
            offsets = [TopicPartition(options["input"], 0, 5)]
            writer.send_offsets_to_transaction(
                offsets, reader.consumer_group_metadata(), PATIENCE_S
            )
        elif step == "end":
            writer.commit_transaction(PATIENCE_S)
        print(step, flush=True)
        if step == options["until"]:
            signal.pause()


def transform(options: dict[str, Any]) -> None:
    writer, reader = producer(options), consumer(options)
    reader.subscribe([options["input"]])
    print("ready", flush=True)
    while True:
        signal.alarm(HANGS_S)
        found = [message for message in reader.consume(20, 0.05) if message.error() is None]
        if not found:
            continue
        writer.begin_transaction()
        for message in found:
            writer.produce(
                options["output"], b"%d" % (2 * int(message.value())), partition=message.partition()
            )
        ends = {message.partition(): message.offset() + 1 for message in found}
        offsets = [
            TopicPartition(options["input"], partition, end) for partition, end in ends.items()
        ]
        writer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), PATIENCE_S)
        writer.commit_transaction(PATIENCE_S)


JOBS = {"steps": steps, "transform": transform}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    try:
        JOBS[given["job"]](given)
    except BaseException:
        # Not through the interpreter's end: after fail-overs librdkafka may wait for ever for a
        # broker's thread when it is destroyed.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
