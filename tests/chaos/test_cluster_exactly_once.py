"""Brokers of a cluster, and the workers of a consume-transform-produce loop, are killed as often as
is asked for (``make kills``).

``MILLSTREAM_CHAOS_ROUNDS`` says how many kills (200), ``MILLSTREAM_KILL_SEED`` of whom and at which
moments; without it every run has its own, which it prints. Now and then all brokers are killed at
once.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.clusters import ProcessCluster
from support.processes import complaints, wait_until
from support.transactions.rounds import Rounds

ROUNDS = int(os.environ.get("MILLSTREAM_CHAOS_ROUNDS", "200"))
SEED = int(os.environ.get("MILLSTREAM_KILL_SEED", time.time_ns() % 100_000))
WORKERS = PARTITIONS = 3
TOPICS = ("input", "output", "__consumer_offsets", "__transaction_state")


class AnyOfThem:
    """Whichever broker the dice say; sometimes the whole cluster, sometimes in good order."""

    def __init__(self, cluster: ProcessCluster, seed: int) -> None:
        self._cluster = cluster
        self._dice = random.Random(seed)
        self.bootstrap = cluster.bootstrap

    def restart(self, *, kill: bool) -> None:
        fate = self._dice.random()
        if fate < 0.05:
            self._cluster.kill_all()
            self._cluster.__enter__()
        else:
            self._dice.choice(self._cluster.brokers).restart(kill=fate < 0.8)


@pytest.mark.timeout(0)
def test_every_input_has_its_result_once(
    process_cluster: Callable[..., ProcessCluster], tmp_path: Path
) -> None:
    print(f"MILLSTREAM_KILL_SEED={SEED}")
    with process_cluster(3, {"group.min.session.timeout.ms": 500}) as cluster:
        for topic in TOPICS[:2]:
            cluster.create_topic(topic, PARTITIONS)
        victims = AnyOfThem(cluster, SEED)
        with Rounds(victims, tmp_path, seed=SEED, workers=WORKERS, partitions=PARTITIONS) as rounds:
            for _ in range(max(ROUNDS // 10, 1)):
                rounds.run(10)
                rounds.check()
        for topic in TOPICS:
            wait_until(lambda: cluster.in_sync(topic) == 3, f"{topic} in sync")  # noqa: B023
        assert complaints(cluster.logs()) == []
