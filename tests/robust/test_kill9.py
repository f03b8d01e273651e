"""kill -9 at random moments under load, and again, and again: what was acknowledged is there, once,
in order.

Segments are tiny, so that rolls, flushes, checkpoints, retention and compaction are going on at any
moment; topics are created and deleted and records deleted meanwhile. ``MILLSTREAM_KILL_SEED``
chooses other moments.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.local.broker import LocalBroker
from millstream.log.dump import dump
from robust.churn import Churn
from robust.load import (
    Load,
    by_producer,
    first_occurrences,
    missing,
    number_of,
    read_topic,
    reused_offsets,
)
from support.processes import alive, children_of, complaints, wait_until
from support.raw import RawClient, create_topic

SEED = int(os.environ.get("MILLSTREAM_KILL_SEED", "9"))
ROUNDS = 8
PARTITIONS = 3
MARKER = ".kafka_cleanshutdown"

# Everything that a broker does now and then, it does all the time here.
RESTLESS = {
    "log.cleaner.backoff.ms": 20,
    "log.retention.check.interval.ms": 100,
    "log.segment.delete.delay.ms": 50,
    "log.flush.offset.checkpoint.interval.ms": 100,
    "log.flush.start.offset.checkpoint.interval.ms": 100,
    "replica.high.watermark.checkpoint.interval.ms": 100,
    "log.index.interval.bytes": 512,
    "log.writeback.bytes": 65536,
    "auto.create.topics.enable": "false",
}
TOPICS: dict[str, dict[str, object]] = {
    "kept": {"internal_segment_bytes": 65536, "retention_ms": -1},
    "flushed": {"internal_segment_bytes": 65536, "flush_messages": 1},
    "short": {
        "internal_segment_bytes": 32768,
        "retention_bytes": 131072,
        "file_delete_delay_ms": 20,
    },
    "compacted": {
        "internal_segment_bytes": 32768,
        "cleanup_policy": "compact",
        "min_cleanable_dirty_ratio": 0.01,
        "file_delete_delay_ms": 20,
    },
}
IDEMPOTENT = {"enable.idempotence": True, "acks": "all"}
IN_ORDER = {"enable.idempotence": False, "max.in.flight": 1}


def loads(bootstrap: str) -> list[Load]:
    return [
        Load(bootstrap, "kept", "idempotent-gzip", {**IDEMPOTENT, "compression.type": "gzip"}),
        Load(bootstrap, "kept", "idempotent-zstd", {**IDEMPOTENT, "compression.type": "zstd"}),
        Load(bootstrap, "kept", "plain-lz4", {**IN_ORDER, "acks": 1, "compression.type": "lz4"}),
        Load(
            bootstrap,
            "kept",
            "plain-all",
            {**IN_ORDER, "acks": "all", "compression.type": "snappy"},
        ),
        Load(bootstrap, "flushed", "flushed", IDEMPOTENT, records_per_turn=3, pause_s=0.02),
        Load(bootstrap, "short", "short", IDEMPOTENT),
        Load(
            bootstrap, "compacted", "compacted", {**IDEMPOTENT, "compression.type": "lz4"}, keys=40
        ),
    ]


@pytest.fixture
def restless(tmp_path: Path) -> Iterator[LocalBroker]:
    broker = LocalBroker(tmp_path / "restless", RESTLESS).start()
    yield broker
    if broker.running:
        broker.kill()


@pytest.mark.timeout(300)
def test_nothing_acknowledged_is_lost_doubled_or_reordered_by_kill_9(restless: LocalBroker) -> None:
    dice = random.Random(SEED)
    print(f"MILLSTREAM_KILL_SEED={SEED}")
    with RawClient(restless.bootstrap) as client:
        for name, config in TOPICS.items():
            create_topic(client, name, PARTITIONS, **config)
        create_topic(client, "trimmed", 1, internal_segment_bytes=16384)
    workers = loads(restless.bootstrap)
    churn = Churn(restless.bootstrap, dice.randrange(1 << 30))
    for worker in [*workers, churn]:
        worker.start()
    log = ""
    for _ in range(ROUNDS):
        wait_for_progress(workers)
        time.sleep(dice.uniform(0, 0.3))
        kill(restless)
        log += restless.output()
        churn.broker_is_back(restless.start())
    wait_until(lambda: churn.has_done_enough, "topics to come and go")
    wait_for_compaction(restless)
    ledgers = {worker.name: worker.finish() for worker in workers}
    churn.finish()
    churn.check(restless.bootstrap)
    check_stop(restless)
    check_files(restless.data_dir)
    log += restless.output()
    restless.start()
    logs = {name: read_topic(restless.bootstrap, name, PARTITIONS) for name in TOPICS}
    churn.check(restless.bootstrap)
    for worker in workers:
        assert ledgers[worker.name].failures[:3] == [], worker.name
        assert worker.sent == len(ledgers[worker.name].acknowledged) > 500
        rows = ledgers[worker.name].acknowledged
        if worker.topic != "compacted":
            assert missing(rows, logs[worker.topic])[:3] == [], worker.name
    for name in TOPICS:
        of_topic = [ledgers[worker.name] for worker in workers if worker.topic == name]
        assert reused_offsets(of_topic)[:3] == []
    check_order(workers, logs)
    check_compacted(ledgers["compacted"].acknowledged, logs["compacted"])
    assert all(rows[0].offset > 0 for rows in logs["short"].values()), "retention did nothing"
    assert complaints(log + restless.output()) == []


def wait_for_progress(workers: list[Load]) -> None:
    """Until every producer has been answered again: a kill that nobody notices tells nothing."""
    before = {worker.name: len(worker.ledger.acknowledged) for worker in workers}
    wait_until(
        lambda: all(
            len(worker.ledger.acknowledged) > before[worker.name] + 20 for worker in workers
        ),
        "every producer to be answered",
    )


def kill(broker: LocalBroker) -> None:
    """Dead at once, with its children soon after, and without a word of a clean shutdown."""
    children = children_of(broker.pid)
    broker.kill()
    assert not (broker.data_dir / MARKER).exists()
    wait_until(lambda: not any(map(alive, children)), "children to end")


def check_stop(broker: LocalBroker) -> None:
    assert broker.stop() == 0
    assert (broker.data_dir / MARKER).exists()


def check_files(data_dir: Path, at_least: int = PARTITIONS * len(TOPICS)) -> None:
    """Every index entry points to a batch of the log beside it, and every log ends in a whole
    batch.
    """
    partitions = [
        path for path in data_dir.iterdir() if path.is_dir() and not path.name.endswith("-delete")
    ]
    assert len(partitions) >= at_least
    for path in partitions:
        wrong = [
            line
            for line in dump(str(path))
            if any(
                word in line
                for word in ("mismatch", "corrupt", "invalid", "isvalid: false", "bytes of a batch")
            )
        ]
        assert wrong == [], path
        assert not list(path.glob("*.cut")), "recovery had to cut whole batches"


def check_order(workers: list[Load], logs: dict[str, dict[int, list]]) -> None:
    for topic in ("kept", "flushed", "short"):
        for rows in logs[topic].values():
            numbers = by_producer(rows)
            for worker in workers:
                found = numbers.get(worker.name.encode(), [])
                if worker.topic != topic:
                    assert found == []
                elif worker.idempotent:
                    assert found == sorted(set(found)), f"{worker.name}: double or out of order"
                else:
                    assert first_occurrences(found) == sorted(set(found)), (
                        f"{worker.name}: out of order"
                    )


def check_compacted(acknowledged: list, logs: dict[int, list]) -> None:
    """Of every key the last value is there, offsets only rise, and what is left stands where it was
    acknowledged.
    """
    last: dict[bytes, int] = {}
    for row in acknowledged:
        last[row.key] = max(last.get(row.key, -1), number_of(row.value))
    told = {(row.partition, row.offset): row for row in acknowledged}
    found: dict[bytes, int] = {}
    total = 0
    for rows in logs.values():
        offsets = [row.offset for row in rows]
        assert offsets == sorted(set(offsets))
        for row in rows:
            assert told[row.partition, row.offset] == row
            found[row.key] = number_of(row.value)
        total += len(rows)
    assert found == last
    assert total < len(acknowledged), "compaction did nothing"


@pytest.mark.timeout(300)
def test_kill_9_in_the_middle_of_compaction_loses_no_key_and_brings_none_back(
    restless: LocalBroker,
) -> None:
    """Killed when the files of a compaction are there: half cleaned, half swapped, half deleted."""
    dice = random.Random(SEED)
    print(f"MILLSTREAM_KILL_SEED={SEED}")
    config = {**TOPICS["compacted"], "file_delete_delay_ms": 0, "internal_segment_bytes": 16384}
    with RawClient(restless.bootstrap) as client:
        create_topic(client, "compacted", PARTITIONS, **config)
    worker = Load(
        restless.bootstrap, "compacted", "compacted", IDEMPOTENT, keys=60, records_per_turn=40
    )
    worker.start()
    caught: set[str] = set()
    for _ in range(5):
        wait_for_progress([worker])
        caught |= kill_while(restless, dice.choice((".cleaned", ".swap", ".deleted")))
        restless.start()
    wait_for_compaction(restless)
    rows = worker.finish().acknowledged
    check_stop(restless)
    check_files(restless.data_dir, at_least=PARTITIONS)
    assert not [
        path.name for path in restless.data_dir.glob("*/*") if path.suffix in (".cleaned", ".swap")
    ]
    restless.start()
    assert worker.ledger.failures == [] and len(rows) == worker.sent
    check_compacted(rows, read_topic(restless.bootstrap, "compacted", PARTITIONS))
    assert len(caught) > 1, f"the kills met only {caught}"
    assert complaints(restless.log_file.read_text(errors="replace")) == []


def kill_while(broker: LocalBroker, suffix: str) -> set[str]:
    """Kills as soon as a file of that kind is seen (or of another, when it is never caught); the
    kinds that are left.
    """
    wait_until(lambda: kinds_in(broker), "a compaction")
    deadline = time.monotonic() + 1.5
    while not any(broker.data_dir.glob(f"**/*{suffix}")) and time.monotonic() < deadline:
        time.sleep(0.0005)
    kill(broker)
    return kinds_in(broker)


def kinds_in(broker: LocalBroker) -> set[str]:
    kinds = (".cleaned", ".swap", ".deleted")
    return {kind for kind in kinds if any(broker.data_dir.glob(f"**/*{kind}"))}


def wait_for_compaction(broker: LocalBroker) -> None:
    """Until one has been completed: on a busy machine the child that does it comes late."""
    wait_until(
        (broker.data_dir / "cleaner-offset-checkpoint").exists, "a compaction to be completed"
    )
