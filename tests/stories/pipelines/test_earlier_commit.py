"""A pipeline that an earlier commit started goes on from its checkpoints: nothing is lost, nothing
is repeated.

The earlier code comes out of the history of this repository. It runs the pipeline to the end once
and is then killed with -9 while records arrive; the code of today goes on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from millstream.client import consume
from millstream.client.dead_letters.letters import dead_letter
from millstream.spark.session import python_path
from support.spark.pipeline_world import create, received, send, wait_until

# Before dead letters came out of the flows, and with Spark's own checkpoint files.
EARLIER = "537afde"
ROOT = Path(__file__).parents[3]
PIPELINE = """
from millstream.pipelines import Pipeline, parquet, topic

pipe = Pipeline("{name}")
pipe.stream("orders", topic="{name}", schema="id string NOT NULL, at timestamp NOT NULL", watermark="at 1 minute")
pipe.stream("payments", topic="{name}-payments", schema="order_id string NOT NULL, paid_at timestamp NOT NULL",
            watermark="paid_at 1 minute")

pipe.sql("copy", "SELECT id FROM orders", to=[topic("{name}-copy", key="id"), parquet("lake")])
pipe.sql("lake", "SELECT id FROM orders", to=parquet("lake-only"))
pipe.sql("windows", "SELECT window(at, '10 seconds').start AS begin, count(*) AS orders FROM orders "
         "GROUP BY window(at, '10 seconds')", to=topic("{name}-windows"), mode="update")
pipe.sql("joined", "SELECT id FROM orders JOIN payments ON id = order_id "
         "AND paid_at BETWEEN at AND at + INTERVAL 5 MINUTES", to=topic("{name}-joined"))
pipe.sql("after", "SELECT id FROM joined", to=topic("{name}-after"))

@pipe.flow(to=topic("{name}-distinct"))
def distinct(orders):
    return orders.dropDuplicatesWithinWatermark(["id"]).select("id")
"""


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The sources of the earlier commit."""
    made = subprocess.run(["git", "archive", EARLIER, "src"], cwd=ROOT, capture_output=True)
    if made.returncode:
        pytest.skip(f"needs git and a clone whose history has {EARLIER}")
    with tarfile.open(fileobj=BytesIO(made.stdout)) as archive:
        archive.extractall(tmp_path / "earlier", filter="data")
    return tmp_path / "earlier" / "src"


class Shop:
    """The topics of the pipeline, and the command that runs it."""

    def __init__(self, bootstrap: str, name: str, directory: Path) -> None:
        self.bootstrap, self.name, self.directory = bootstrap, name, directory
        self.orders = 0
        self.broken: list[bytes] = []
        directory.mkdir()
        (directory / "shop.py").write_text(PIPELINE.format(name=name))
        create(bootstrap, name, f"{name}-payments")

    def sell(self, count: int) -> None:
        """Orders that are all paid, and a record that does not parse."""
        numbers = range(self.orders, self.orders + count)
        times = [f"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}Z" for number in numbers]
        rows = list(zip((f"o{number}" for number in numbers), times, strict=True))
        self.orders += count
        self.broken.append(b"broken %d" % self.orders)
        send(
            self.bootstrap,
            self.name,
            [*({"id": name, "at": at} for name, at in rows), self.broken[-1]],
        )
        payments = [{"order_id": name, "paid_at": at} for name, at in rows]
        send(self.bootstrap, f"{self.name}-payments", payments)

    def start(self, sources: str, *more: str) -> subprocess.Popen[bytes]:
        words = [
            "pipeline",
            "run",
            "shop.py",
            "--bootstrap",
            self.bootstrap,
            "--master",
            "local[2]",
        ]
        with (self.directory / "run.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "millstream", *words, "--format", "json", *more],
                cwd=self.directory,
                env=os.environ | {"PYTHONPATH": sources},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run_once(self, sources: str) -> None:
        assert self.start(sources, "--once").wait() == 0, (self.directory / "run.log").read_text()[
            -3000:
        ]

    def ids(self, what: str) -> list[str]:
        return sorted(row["id"] for row in received(self.bootstrap, f"{self.name}-{what}"))

    def files(self, what: str) -> list[str]:
        import pyarrow.dataset

        return sorted(
            pyarrow.dataset.dataset(self.directory / what)
            .to_table(columns=["id"])["id"]
            .to_pylist()
        )

    def letters(self) -> Iterator[bytes]:
        for record in consume(self.bootstrap, f"{self.name}.dlq"):
            yield dead_letter(record).record.value or b""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_pipeline_of_an_earlier_commit_goes_on_from_its_checkpoints(
    shared_broker: Any, topic_name: str, tmp_path: Path, earlier: Path
) -> None:
    shop = Shop(shared_broker.bootstrap, topic_name, tmp_path / "shop")
    shop.sell(100)
    shop.run_once(str(earlier))
    before = len(received(shop.bootstrap, f"{topic_name}-copy"))
    assert before == 100

    killed = shop.start(str(earlier))
    try:

        def goes_on() -> bool:
            assert killed.poll() is None, (shop.directory / "run.log").read_text()[-3000:]
            shop.sell(5)
            time.sleep(0.2)
            return len(received(shop.bootstrap, f"{topic_name}-copy")) > before + 50

        wait_until(goes_on, "batches of the earlier commit")
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()

    for _ in range(2):
        shop.sell(50)
        shop.run_once(python_path())
    expected = sorted(f"o{number}" for number in range(shop.orders))
    for what in ("copy", "joined", "after", "distinct"):
        assert shop.ids(what) == expected, what
    assert shop.files("lake") == shop.files("lake-only") == expected
    latest = {
        row["begin"]: row["orders"] for row in received(shop.bootstrap, f"{topic_name}-windows")
    }
    assert sum(latest.values()) == shop.orders
    assert sorted(shop.letters()) == sorted(shop.broken)
    checkpoints = shop.directory / "millstream-checkpoints" / topic_name
    # The query that wrote the dead letters goes on, since the flows have passed what it has not
    # read.
    assert (checkpoints / "dlq.orders").is_dir()
    assert json.loads((checkpoints / ".status.json").read_text())["state"] == "done"
