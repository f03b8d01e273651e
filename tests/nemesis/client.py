"""A client of a run as a process of its own, so that it can be killed and paused: ``python -m
nemesis.client '{"role": ...}'``.

It works until SIGTERM, writes down everything it does (``records.py``), and ends by itself when its
library can go no further; whoever started it starts another, with another name. Only what cannot
have happened is told as failed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from millstream.client.library import close_member
from millstream.sim.checks.history import (
    ASSIGN,
    FAIL,
    INFO,
    OK,
    PEEK,
    POLL,
    SEND,
    SUBSCRIBE,
    TXN,
    Op,
    Poll,
    Send,
)
from millstream.sim.checks.state_checks import OffsetEvent
from nemesis.records import Recorder, decode, encode

# librdkafka may wait beyond every timeout it was given; a client that stands still for so many
# times its patience is ended by its alarm.
HANGS = 2.25
ABORT = 0.12
READERS, COPIERS = "readers", "copiers"
# How librdkafka says that a log ended before the place where a consumer was: a record that was read
# is gone.
_TRUNCATED = {
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError._LOG_TRUNCATION,
    KafkaError.OFFSET_OUT_OF_RANGE,
}

Rows = dict[str, list[tuple[int, str]]]


class GivesUp(Exception):
    """This client can go no further; the next one is another process."""


def key_of(message: Message) -> str:
    return f"{message.topic()}-{message.partition()}"


def split(key: str) -> tuple[str, int]:
    topic, _, partition = key.rpartition("-")
    return topic, int(partition)


class Client:
    """What all roles have in common."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.name: str = options["name"]
        self.keys: list[str] = options["keys"]
        self.dice = random.Random(options["seed"])
        self.recorder = Recorder(Path(options["history"]), self.name)
        self.stopping = False
        self.patience_s: float = options["patience_s"]
        self._count = 0
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def goes_on(self) -> bool:
        self.lives()
        return not self.stopping

    def lives(self) -> None:
        signal.alarm(int(HANGS * self.patience_s))

    def values(self, count: int) -> list[str]:
        self._count += count
        return [f"{self.name}:{number}" for number in range(self._count - count, self._count)]

    def config(self, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.options["bootstrap"],
            "client.id": self.name,
            "metadata.recovery.strategy": "none",
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 500,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 300,
            "socket.timeout.ms": 4_000,
            "socket.connection.setup.timeout.ms": 2_000,
            "topic.metadata.refresh.interval.ms": 3_000,
            "log_level": 7,
            **{name.replace("_", "."): value for name, value in more.items()},
        }

    def producer(self, **more: Any) -> Producer:
        dice = self.dice
        return Producer(
            self.config(
                enable_idempotence=True,
                acks="all",
                linger_ms=dice.choice((0, 2, 20)),
                compression_type=dice.choice(("none", "lz4", "zstd")),
                request_timeout_ms=4_000,
                **more,
            )
        )

    def consumer(self, **more: Any) -> Consumer:
        return Consumer(
            self.config(
                enable_auto_commit=False,
                auto_offset_reset="error",
                fetch_wait_max_ms=100,
                fetch_message_max_bytes=self.dice.choice((4_096, 65_536, 1_048_576)),
                **more,
            )
        )

    def padding(self) -> int:
        return self.dice.choice((10, 100, 100, 1_000, self.dice.randint(0, 8_000)))

    # ---- reading ----

    def consume(self, consumer: Consumer, count: int, timeout_s: float) -> Rows:
        """Records by key; what was polled before an error counts."""
        rows: Rows = {}
        for message in consumer.consume(count, timeout_s):
            error = message.error()
            if error is None:
                rows.setdefault(key_of(message), []).append(
                    (message.offset(), decode(message.value()))
                )
            elif error.code() in _TRUNCATED:
                self.recorder.tell(
                    "truncated", key=key_of(message), offset=message.offset(), error=str(error)
                )
                raise GivesUp(str(error))
        return rows

    def moved(self, f: str) -> None:
        """From here on a consumer's positions are new."""
        self.recorder.complete(self.recorder.invoke(f, ()), OK, ())


class Sending(Client):
    """Idempotent, several requests in flight, records of one operation for one partition."""

    def run(self) -> None:
        # Longer than any trouble lasts: a producer that gives a record up goes on with a new epoch,
        # and what it had sent before it sends again, as if for the first time. No broker can tell.
        producer = self.producer(message_timeout_ms=120_000)
        self._open = 0
        self._failed = False
        while self.goes_on() and not self._failed:
            key = self.dice.choice(self.keys)
            values = self.values(self.dice.choice((1, 1, 2, 5, 20)))
            Delivery(self, producer, key, values)
            producer.poll(self.dice.expovariate(self.options["rate"]))
            while self._open > 20 and self.goes_on():
                producer.poll(0.1)
        producer.flush(2 * self.patience_s)

    def opened(self) -> None:
        self._open += 1

    def closed(self, failed: bool) -> None:
        self._open -= 1
        self._failed = self._failed or (failed and self.dice.random() < 0.5)


class Delivery:
    """The records of one operation, until the last of them has its answer."""

    def __init__(self, client: Sending, producer: Producer, key: str, values: list[str]) -> None:
        self._client, self._key = client, key
        self._op = client.recorder.invoke(SEND, [Send(key, value) for value in values])
        self._left = len(values)
        self._ok: list[Send] = []
        self._unknown: list[Send] = []
        self._error = ""
        client.opened()
        topic, partition = split(key)
        for value in values:
            data = encode(value, client.padding())
            producer.produce(topic, data, partition=partition, on_delivery=self._delivered)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        # librdkafka reports the records of a partition in the order in which they were sent.
        value = decode(message.value())
        if error is None:
            self._ok.append(Send(self._key, value, message.offset()))
        else:
            self._unknown.append(Send(self._key, value))
            self._error = str(error)
        self._left -= 1
        if not self._left:
            self._done()

    def _done(self) -> None:
        recorder = self._client.recorder
        if self._ok:
            recorder.complete(self._op, OK, self._ok)
        if self._unknown:
            recorder.complete(self._op, INFO, self._unknown, self._error)
        self._client.closed(bool(self._unknown))


class Transacting(Client):
    """Several records for several partitions, together or not at all; an id may be another client's
    as well, which is then fenced.
    """

    def run(self) -> None:
        producer = self.transactional(f"txn-{self.dice.randrange(3)}")
        while self.goes_on():
            keys = [self.dice.choice(self.keys) for _ in range(self.dice.randint(1, 4))]
            sends = [
                Send(key, value) for key in keys for value in self.values(self.dice.randint(1, 5))
            ]
            op = self.recorder.invoke(TXN, sends)
            self.transaction(producer, op, sends, commit=self.dice.random() >= ABORT)
            time.sleep(self.dice.expovariate(self.options["rate"]))

    def transactional(self, name: str) -> Producer:
        producer = self.producer(transactional_id=name, transaction_timeout_ms=10_000, debug="eos")
        self._again(lambda: producer.init_transactions(self.patience_s))
        return producer

    def transaction(
        self,
        producer: Producer,
        op: Op,
        sends: list[Send],
        *,
        commit: bool,
        polled: tuple[Poll, ...] = (),
        offsets: Any = None,
    ) -> bool:
        """Whether it is committed. Before the commit is asked for it cannot have happened; after
        that an error leaves it open.
        """
        told = {(send.key, send.value): send for send in sends}
        commit_requested: float | None = None
        outcome, why = INFO, ""

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                sent = Send(key_of(message), decode(message.value()), message.offset())
                told[sent.key, sent.value] = sent

        try:
            producer.begin_transaction()
            for send in sends:
                topic, partition = split(send.key)
                data = encode(send.value, self.padding())
                producer.produce(topic, data, partition=partition, on_delivery=delivered)
            if offsets is not None:
                self._again(lambda: producer.send_offsets_to_transaction(*offsets, self.patience_s))
            producer.flush(self.patience_s)
            if commit:
                commit_requested = time.monotonic()
                self._again(lambda: producer.commit_transaction(self.patience_s))
                outcome = OK
            else:
                outcome, why = FAIL, "on purpose"
                self._again(lambda: producer.abort_transaction(self.patience_s))
        except KafkaException as error:
            outcome, why = self._ended(producer, error, commit_requested is not None)
        finally:
            self.recorder.complete(
                op, outcome, [*polled, *told.values()], why, commit_requested=commit_requested
            )
        return outcome == OK

    def _ended(self, producer: Producer, error: KafkaException, ending: bool) -> tuple[str, str]:
        """An error that asks for an abort, and an abort that succeeds: then it did not happen,
        whatever was asked for before.
        """
        why = str(error)
        if not error.args[0].txn_requires_abort():
            self._last_error = why
            self.stopping = True
            return (INFO if ending else FAIL), why
        try:
            self._again(lambda: producer.abort_transaction(self.patience_s))
            return FAIL, why
        except KafkaException as second:
            self.stopping = True
            return (INFO if ending else FAIL), f"{why}, then {second}"

    def _again(self, step: Any) -> None:
        until = time.monotonic() + self.patience_s
        while True:
            self.lives()
            try:
                step()
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > until:
                    raise
                time.sleep(0.05)


class Reading(Client):
    """Assigned to everything, from the start or from near the end, for a while; ``peek`` reads what
    is not committed, too.
    """

    def run(self) -> None:
        peeks = self.options["role"] == "peek"
        consumer = self.consumer(
            isolation_level="read_uncommitted" if peeks else "read_committed",
            group_id=f"alone-{self.name}",
        )
        consumer.assign([self._start(consumer, key) for key in self.keys])
        self.moved(ASSIGN)
        until = time.monotonic() + self.dice.uniform(5.0, 40.0)
        while self.goes_on() and time.monotonic() < until:
            rows = self.consume(consumer, self.dice.choice((1, 50, 500)), 0.3)
            if rows:
                op = self.recorder.invoke(PEEK if peeks else POLL, ())
                self.recorder.complete(op, OK, [Poll(rows)])

    def _start(self, consumer: Consumer, key: str) -> TopicPartition:
        place = TopicPartition(*split(key), 0)
        if self.dice.random() < self.options["recent"]:
            try:
                _, end = consumer.get_watermark_offsets(place, timeout=5)
                place.offset = max(end - 300, 0)
            except KafkaException:
                pass
        return place


class Belonging(Client):
    """A member of a group: what it has read is committed, and nothing is committed that it has not
    read.
    """

    group = READERS

    def run(self) -> None:
        consumer = self.member()
        until = time.monotonic() + self.dice.uniform(8.0, 60.0)
        while self.goes_on() and (time.monotonic() < until or self.options["patient"]):
            rows = self.consume(consumer, 100, 0.3)
            if not rows:
                continue
            op = self.recorder.invoke(POLL, ())
            self.recorder.complete(op, OK, [Poll(rows)])
            ends = {key: records[-1][0] + 1 for key, records in rows.items()}
            self._commit(consumer, ends)
        if self.dice.random() < 0.5:
            close_member(consumer)

    def member(self) -> Consumer:
        protocol = self.options["protocol"]
        more: dict[str, Any] = {"group_protocol": "consumer"}
        if protocol != "consumer":
            more = {
                "partition_assignment_strategy": protocol,
                "session_timeout_ms": 4_000,
                "heartbeat_interval_ms": 500,
            }
        consumer = self.consumer(isolation_level="read_committed", group_id=self.group, **more)
        topics = sorted({split(key)[0] for key in self.keys})
        consumer.subscribe(
            topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        return consumer

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        started = time.monotonic()
        if places:
            try:
                places = consumer.committed(places, timeout=self.patience_s)
            except KafkaException as error:
                raise GivesUp(f"no committed offsets: {error}") from error
        for place in places:
            if place.error is not None:
                raise GivesUp(f"no committed offset: {place.error}")
            key = f"{place.topic}-{place.partition}"
            now = time.monotonic()
            self.recorder.offset(
                OffsetEvent(started, now, self.group, key, max(place.offset, -1), True, self.name)
            )
            place.offset = max(place.offset, 0)
        if self.options["protocol"] in ("cooperative-sticky", "consumer"):
            consumer.incremental_assign(places)
        else:
            consumer.assign(places)
        self.moved(SUBSCRIBE)
        self.recorder.tell("assigned", count=len(places))

    def _revoked(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self.moved(SUBSCRIBE)

    def _commit(self, consumer: Consumer, ends: dict[str, int]) -> None:
        started = time.monotonic()
        offsets = [TopicPartition(*split(key), end) for key, end in ends.items()]
        try:
            done = consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            return  # nobody knows; the next fetch tells
        for place in done or ():
            if place.error is None:
                key = f"{place.topic}-{place.partition}"
                now = time.monotonic()
                self.recorder.offset(
                    OffsetEvent(started, now, self.group, key, place.offset, False, self.name)
                )


class Copying(Belonging, Transacting):
    """Reads a partition, writes what it read to the partition of the same number of another topic,
    and its offsets with it.
    """

    group = COPIERS

    def run(self) -> None:
        producer = self.transactional(f"copier-{self.options['slot']}")
        consumer = self.member()
        attempt = 0
        while self.goes_on():
            rows = self.consume(consumer, 50, 0.3)
            if not rows:
                continue
            attempt += 1
            tag = f"{self.name}/{attempt}"
            sends = [
                Send(_copy(key), f"{value}|{tag}/{offset}")
                for key, records in rows.items()
                for offset, value in records
            ]
            ends = [
                TopicPartition(*split(key), records[-1][0] + 1) for key, records in rows.items()
            ]
            polled = Poll(rows)
            op = self.recorder.invoke(TXN, [polled, *sends])
            started = time.monotonic()
            offsets = (ends, consumer.consumer_group_metadata())
            if not self.transaction(
                producer, op, sends, commit=True, polled=(polled,), offsets=offsets
            ):
                raise GivesUp(
                    "a copy was not committed: the next copier reads where the last commit is"
                )
            now = time.monotonic()
            for end in ends:
                key = f"{end.topic}-{end.partition}"
                self.recorder.offset(
                    OffsetEvent(started, now, self.group, key, end.offset, False, self.name)
                )


def _copy(key: str) -> str:
    return f"copies-{split(key)[1]}"


ROLES: dict[str, type[Client]] = {
    "send": Sending,
    "transact": Transacting,
    "read": Reading,
    "peek": Reading,
    "member": Belonging,
    "copy": Copying,
}


def main() -> None:
    options = json.loads(sys.argv[1])
    client = ROLES[options["role"]](options)
    code = 0
    try:
        client.run()  # type: ignore[attr-defined]
    except GivesUp as error:
        print(f"{client.name}: {error}", file=sys.stderr)
        code = 3
    except (
        KafkaException,
        SystemError,
    ) as error:  # the library's own way to say that a callback came at a bad time
        print(f"{client.name}: {error}", file=sys.stderr)
        code = 4
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    # Not through the interpreter's end: after fail-overs librdkafka may wait for ever when it is
    # destroyed.
    os._exit(code)


if __name__ == "__main__":
    main()
