"""A pipeline whose driver is killed with -9 again and again: its topic and its files have every row once (``make chaos``).

``MILLSTREAM_PIPELINE_KILLS`` says how often (8), ``MILLSTREAM_PIPELINE_RECORDS`` over how many records (4000),
``MILLSTREAM_KILL_SEED`` at which moments.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')

import pyarrow.dataset

from millstream.cli.local_broker import LocalBroker
from millstream.client.admin import Admin
from millstream.client.consumer import consume
from millstream.client.producer import Producer

KILLS = int(os.environ.get("MILLSTREAM_PIPELINE_KILLS", "8"))
SEED = int(os.environ.get("MILLSTREAM_KILL_SEED", time.time_ns() % 100_000))
RECORDS = int(os.environ.get("MILLSTREAM_PIPELINE_RECORDS", "4000"))
BATCH = 200
PATIENCE_S = 1800.0

PIPELINE = f"""
from pyspark.sql import functions as F
from millstream.pipelines import Pipeline, parquet, topic

pipe = Pipeline("fire", retries=1000, dead_letters=False)
pipe.stream("numbers", schema="n int NOT NULL, at timestamp NOT NULL", watermark="at 1 day", source={{"maxOffsetsPerTrigger": {BATCH}}})

@pipe.flow(to=[parquet("lake", by="third"), topic("once", key="n", partitions=3)])
def distinct(numbers):
    return numbers.dropDuplicatesWithinWatermark(["n"]).withColumn("third", F.col("n") % 3)
"""


def start(file: Path, bootstrap: str, log: Path, *more: str) -> subprocess.Popen[bytes]:
    words = [
        "pipeline",
        "run",
        str(file),
        "--master",
        "local[2]",
        "--format",
        "json",
        "--bootstrap",
        bootstrap,
        *more,
    ]
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "millstream", *words], cwd=file.parent, stdout=output, stderr=output
        )


def batches_done(log: Path) -> int:
    return sum('"event": "batch"' in line for line in log.read_text(errors="replace").splitlines())


def kill_while_it_works(process: subprocess.Popen[bytes], log: Path, moments: random.Random) -> bool:
    """Wait for a few batches of this run, then kill it at any moment of the next; whether it was at work."""
    wanted = moments.randrange(3)
    deadline_s = time.monotonic() + PATIENCE_S
    while batches_done(log) < wanted and process.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.02)
    time.sleep(moments.random() * 1.5)
    at_work = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    return at_work


def test_every_row_once_in_topic_and_files_however_often_the_driver_is_killed(broker, tmp_path: Path) -> None:
    own: LocalBroker = broker({"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1})
    moments = random.Random(SEED)
    print(f"seed {SEED}, {KILLS} kills")
    (tmp_path / "fire.py").write_text(PIPELINE)
    with Admin(own.bootstrap) as admin:
        admin.topics.create("numbers", partitions=2)
    with Producer(own.bootstrap) as producer:
        for n in range(RECORDS):
            for _ in range(1 + n % 2):  # every other one twice
                producer.send("numbers", json.dumps({"n": n, "at": "2026-01-01T00:00:00Z"}).encode())
    log = tmp_path / "run.log"
    hits = 0
    for _ in range(KILLS):
        hits += kill_while_it_works(start(tmp_path / "fire.py", own.bootstrap, log), log, moments)
    assert hits >= KILLS // 2, "too few kills hit a run at work"
    last = start(tmp_path / "fire.py", own.bootstrap, log, "--once")
    try:
        assert last.wait(PATIENCE_S) == 0, log.read_text(errors="replace")[-3000:]
    finally:
        last.kill()

    in_topic = sorted(
        json.loads(one.value or b"")["n"] for one in consume(own.bootstrap, "once", timeout_s=60)
    )
    in_files = sorted(
        pyarrow.dataset.dataset(tmp_path / "lake", partitioning="hive")
        .to_table(columns=["n"])["n"]
        .to_pylist()
    )
    assert in_topic == list(range(RECORDS))
    assert in_files == list(range(RECORDS))
