"""Hours of kill -9, as many as are asked for: a consume-transform-produce loop stays exact (``make
kills``).

``MILLSTREAM_CHAOS_ROUNDS`` says how many kills (200), ``MILLSTREAM_KILL_SEED`` at which moments;
without it every run has its own, which it prints.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.local.broker import LocalBroker
from support.processes import complaints
from support.raw import RawClient, create_topic
from support.transactions.rounds import Rounds

ROUNDS = int(os.environ.get("MILLSTREAM_CHAOS_ROUNDS", "200"))
SEED = int(os.environ.get("MILLSTREAM_KILL_SEED", time.time_ns() % 100_000))
# Everything that a broker does now and then, it does all the time here; internal topics are
# compacted as they grow.
RESTLESS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.segment.bytes": 1 << 20,
    "transaction.state.log.segment.bytes": 1 << 20,
    "log.cleaner.backoff.ms": 50,
    "log.cleaner.min.cleanable.ratio": 0.01,
    "log.flush.offset.checkpoint.interval.ms": 100,
    "replica.high.watermark.checkpoint.interval.ms": 100,
}


@pytest.mark.timeout(0)
def test_every_input_has_its_result_once(
    broker: Callable[..., LocalBroker], tmp_path: Path
) -> None:
    print(f"MILLSTREAM_KILL_SEED={SEED}")
    made = broker(RESTLESS)
    with RawClient(made.bootstrap) as client:
        for topic in ("input", "output"):
            create_topic(client, topic, 4, internal_segment_bytes=1 << 18)
    with Rounds(made, tmp_path, seed=SEED, workers=3, partitions=4) as rounds:
        for _ in range(max(ROUNDS // 10, 1)):
            rounds.run(10)
            rounds.check()
    assert complaints(made.log_file.read_text(errors="replace")) == []
