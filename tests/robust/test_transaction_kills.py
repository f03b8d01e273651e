"""kill -9 of the producer, and of the broker, between every two steps of a transaction; then at
random in a running loop.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.local.broker import LocalBroker
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from millstream.wire.messages.end_txn import EndTxnRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from support.processes import complaints, wait_until
from support.raw import RawClient, create_topic
from support.transactions.rounds import WORKER, Rounds
from support.transactions.worker import PATIENT, STEPS

SEED = int(os.environ.get("MILLSTREAM_KILL_SEED", "9"))
PATIENCE_S = 120.0
QUICK = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "log.cleaner.enable": "false",
}


@pytest.fixture
def own_broker(broker: Callable[..., LocalBroker]) -> Iterator[LocalBroker]:
    made = broker(QUICK)
    with RawClient(made.bootstrap) as client:
        for topic in ("input", "output"):
            create_topic(client, topic, 2)
    yield made
    assert complaints(made.log_file.read_text(errors="replace")) == []


def transactional(bootstrap: str, name: str = "one") -> Producer:
    made = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0, **PATIENT}
    )
    made.init_transactions(PATIENCE_S)
    return made


def committed_values(bootstrap: str) -> list[bytes]:
    """What a reader of committed records finds in partition 0 of the output."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "checker",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            **PATIENT,
        }
    )
    consumer.assign([TopicPartition("output", 0, 0)])
    found: list[Any] = []

    def at_end() -> bool:
        found.extend(consumer.consume(100, 0.05))
        return any(m.error() is not None and m.error().name() == "_PARTITION_EOF" for m in found)

    try:
        wait_until(at_end, "the end of the output")
    finally:
        consumer.close()
    return [m.value() for m in found if m.error() is None]


def group_offset(bootstrap: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", **PATIENT})
    try:
        [found] = consumer.committed([TopicPartition("input", 0)], timeout=PATIENCE_S)
        return int(found.offset)
    finally:
        consumer.close()


# ---- the producer dies ----


def test_a_producer_killed_behind_any_step_leaves_all_or_nothing(own_broker: LocalBroker) -> None:
    """Its next instance aborts what was open; nothing of it is seen, and its offsets do not count,
    unless it had ended.
    """
    wanted: list[bytes] = []
    for step in STEPS:
        kill_behind(own_broker.bootstrap, step)
        again = transactional(own_broker.bootstrap)
        if step == "end":
            wanted.append(b"of the killed")
        assert group_offset(own_broker.bootstrap) == (5 if step == "end" else -1001), step
        again.begin_transaction()
        again.produce("output", step.encode(), partition=0)
        again.commit_transaction(PATIENCE_S)
        wanted.append(step.encode())
        wait_until(
            lambda: committed_values(own_broker.bootstrap) == wanted, f"{wanted} after {step}"
        )


def kill_behind(bootstrap: str, step: str) -> None:
    options = {"job": "steps", "bootstrap": bootstrap, "id": "one", "group": "g", "until": step}
    words = json.dumps(options | {"input": "input", "output": "output"})
    process = subprocess.Popen(
        [sys.executable, str(WORKER), words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip().decode() == step:
                return
        raise AssertionError(f"it ended before {step}")
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


# ---- the broker dies ----


def test_a_transaction_lives_through_kills_of_the_broker_between_all_steps(
    own_broker: LocalBroker,
) -> None:
    """One producer, one transaction per kill: each ends as it was told to, with its records and
    offsets.
    """
    writer = transactional(own_broker.bootstrap)
    reader = Consumer({"bootstrap.servers": own_broker.bootstrap, "group.id": "g", **PATIENT})
    wanted: list[bytes] = []
    for number, killed_behind in enumerate(("begin", "produce", "offsets", "end")):
        for step in ("begin", "produce", "offsets", "end"):
            if step == "begin":
                writer.begin_transaction()
            elif step == "produce":
                writer.produce("output", killed_behind.encode(), partition=0)
                assert writer.flush(PATIENCE_S) == 0
            elif step == "offsets":
                offsets = [TopicPartition("input", 0, number + 1)]
                writer.send_offsets_to_transaction(
                    offsets, reader.consumer_group_metadata(), PATIENCE_S
                )
            else:
                writer.commit_transaction(PATIENCE_S)
            if step == killed_behind:
                own_broker.restart(kill=True)
        wanted.append(killed_behind.encode())
        wait_until(lambda: committed_values(own_broker.bootstrap) == wanted, f"{wanted}")
        assert group_offset(own_broker.bootstrap) == number + 1
    reader.close()


def test_an_outcome_that_was_asked_for_is_carried_out_whenever_the_broker_dies(
    own_broker: LocalBroker,
) -> None:
    """EndTxn is sent and the broker killed at once, in the middle of it: asked again it says the
    same, and every partition ends.
    """
    dice = random.Random(SEED)
    with RawClient(own_broker.bootstrap) as client:
        client.call(find_coordinator("raw"), 4)
    for _ in range(5):
        with RawClient(own_broker.bootstrap) as client:
            begun = begin(client)
            client.send(begun, 3)
            wait_a_little(dice)
            own_broker.kill()
        own_broker.start()
        with RawClient(own_broker.bootstrap) as client:
            # Either it had been heard or it is heard now.
            wait_until(lambda: client.call(begun, 3).error_code == 0, "the outcome")  # noqa: B023
        transactional(own_broker.bootstrap, "raw")  # waits until the markers are written
        states = transaction_states(own_broker.bootstrap)
        assert states == {"raw": "CompleteCommit"} or states == {"raw": "Empty"}, states


def wait_a_little(dice: random.Random) -> None:
    """Between nothing and a few milliseconds: there is no event to wait for, the moment itself is
    what is tried.
    """
    for _ in range(dice.randrange(20_000)):
        pass


def find_coordinator(name: str) -> Any:
    from millstream.wire.messages.find_coordinator import FindCoordinatorRequest

    return FindCoordinatorRequest(key_type=1, coordinator_keys=[name])


def begin(client: RawClient) -> EndTxnRequest:
    """A transaction with both partitions of the output; the request that ends it."""
    asked = InitProducerIdRequest(transactional_id="raw", transaction_timeout_ms=60_000)
    answers: list[Any] = []

    def ready() -> bool:
        answers.append(client.call(asked, 4))
        return bool(answers[-1].error_code == 0)

    wait_until(ready, "the producer id")
    who = {"producer_id": answers[-1].producer_id, "producer_epoch": answers[-1].producer_epoch}
    added = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="raw",
        v3_and_below_producer_id=who["producer_id"],
        v3_and_below_producer_epoch=who["producer_epoch"],
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="output", partitions=[0, 1])],
    )
    results = client.call(added, 3).results_by_topic_v3_and_below
    assert [
        row.partition_error_code for topic in results for row in topic.results_by_partition
    ] == [0, 0]
    return EndTxnRequest(transactional_id="raw", committed=True, **who)


def transaction_states(bootstrap: str) -> dict[str, str]:
    from millstream.wire.messages.list_transactions import ListTransactionsRequest

    with RawClient(bootstrap) as client:
        listed = client.call(ListTransactionsRequest(), 0).transaction_states
        return {
            row.transactional_id: row.transaction_state
            for row in listed
            if row.transactional_id == "raw"
        }


# ---- both, at random ----


@pytest.mark.timeout(300)
def test_every_input_has_its_result_once_when_workers_and_broker_are_killed(
    own_broker: LocalBroker, tmp_path: Any
) -> None:
    print(f"MILLSTREAM_KILL_SEED={SEED}")
    with Rounds(own_broker, tmp_path, seed=SEED, workers=2, partitions=2) as rounds:
        rounds.run(6)
        rounds.check()
