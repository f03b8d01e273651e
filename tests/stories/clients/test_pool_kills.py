"""A worker pool that is killed repeatedly loses no record."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.client import Admin
from millstream.testing import Kafka
from millstream.testing.waiting import wait_until
from support.places import SUPPORT

WORKER = SUPPORT / "client" / "pool_worker.py"


def start(kafka: Kafka, results: Path, how: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, WORKER, kafka.bootstrap, "orders", results, how])


def handled(results: Path) -> list[bytes]:
    return results.read_bytes().split() if results.exists() else []


@pytest.mark.timeout(1200)
@pytest.mark.millstream(settings={"group.min.session.timeout.ms": 100})
@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.long)])
def test_pool_loses_no_record_over_kills(millstream: Kafka, tmp_path: Path, kills: int) -> None:
    results, dice = tmp_path / "results", random.Random(kills)
    millstream.topic("orders", 4)
    sent = 0
    for _round in range(kills):
        millstream.produce("orders", [(str(n % 17), str(n)) for n in range(sent, sent + 400)])
        sent += 400
        before, progress = len(handled(results)), dice.randrange(1, 300)
        process = start(millstream, results, "for-ever")
        try:
            wait_until(
                lambda target=before + progress: len(handled(results)) >= target,
                f"{progress} more are handled",
            )
        finally:
            process.kill()
            process.wait()
    # A worker that reads to the end stops with the records it received. While the group has a dead
    # member, that may be none.
    with Admin(millstream.bootstrap) as admin:
        wait_until(lambda: not admin.groups.get("pool").members, "the last one is missed")
    assert start(millstream, results, "to-the-end").wait(timeout=120) == 0
    records = handled(results)
    assert set(records) == {str(n).encode() for n in range(sent)}
    assert (
        len(records) - sent < kills * 400
    )  # some records in flight are duplicated, not all of them
