"""Brokers are killed one after another under real clients.

Groups and transactions continue, and every input has its result exactly once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from support.clusters import ProcessCluster
from support.processes import complaints
from support.transactions.rounds import Rounds

# One kill of each broker.
ROUNDS = int(os.environ.get("MILLSTREAM_FAIL_OVER_ROUNDS", "3"))
SEED = int(os.environ.get("MILLSTREAM_KILL_SEED", "5"))
WORKERS = PARTITIONS = 3


def test_transactional_loop_stays_exactly_once_while_brokers_are_killed(
    process_cluster: Callable[..., ProcessCluster], tmp_path: Path
) -> None:
    with process_cluster(3, {"group.min.session.timeout.ms": 500}) as cluster:
        for topic in ("input", "output"):
            cluster.create_topic(topic, PARTITIONS)
        with Rounds(
            cluster, tmp_path, seed=SEED, workers=WORKERS, partitions=PARTITIONS, kill_workers=False
        ) as rounds:
            rounds.run(ROUNDS)
            rounds.check()
        assert complaints(cluster.logs()) == []
