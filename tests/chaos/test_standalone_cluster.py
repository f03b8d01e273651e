"""The revenue pipeline on a Spark cluster whose Python has nothing of ours: the same results as in
local mode, though an executor is killed half-way.

``millstream spark up`` starts a master and two workers from the pip install. What executors run is
sent to them by the driver. An executor is killed with -9 while a transaction is open; Spark starts
another one, and the flow begins its batch again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')

import psutil
import pyarrow.dataset

from chaos.fire_world import EXECUTOR, QUICK, WORKER, Transactions
from millstream.client.admin.client import Admin
from millstream.client.consumer import Consumer
from millstream.client.producer import Producer
from millstream.local.broker import LocalBroker

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "revenue.py"
ORDERS = 2000
CUSTOMERS = {"ada": "SE", "bob": "FR", "cyd": "DE"}
FLOWS = ("paid_orders", "revenue_by_minute", "archive", "big_orders")
SETTINGS = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
SMALL = ("--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.executor.memory=1g", *QUICK)
PATIENCE_S = 900.0


def minute(number: int) -> int:
    """The first half is one batch. What comes later may be several, in any order, and none of it
    may be late: it is of one minute, well behind.
    """
    return number % 5 if number < ORDERS // 2 else 10


def order(number: int) -> dict[str, str]:
    return {
        "id": f"o{number}",
        "customer": list(CUSTOMERS)[number % 3],
        "amount": f"{number * 7 % 12000}.25",
        "at": f"2026-01-01T00:{minute(number):02}:{number % 50:02}Z",
    }


def fill(bootstrap: str, numbers: range, *, begin: bool) -> None:
    """Orders, of which all but every tenth are paid."""
    with Admin(bootstrap) as admin:
        if begin:
            for name in ("orders", "payments"):
                admin.topics.create(name, partitions=2)
            admin.topics.create("customers", partitions=1, configs={"cleanup.policy": "compact"})
    with Producer(bootstrap) as producer:
        if begin:
            for customer, country in CUSTOMERS.items():
                row = {"customer": customer, "country": country}
                producer.send("customers", json.dumps(row).encode(), key=customer.encode())
        for number in numbers:
            one = order(number)
            producer.send("orders", json.dumps(one).encode(), key=one["id"].encode())
            if number % 10:
                paid = {
                    "order_id": one["id"],
                    "paid_at": f"2026-01-01T00:{minute(number) + 5:02}:{number % 50:02}Z",
                }
                producer.send("payments", json.dumps(paid).encode(), key=one["id"].encode())


def committed(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    with Admin(bootstrap) as admin:
        if topic not in admin.topics.names():
            return []
    with Consumer(bootstrap, topic, until_end=True) as consumer:
        return [json.loads(one.value or b"") for one in consumer]


def results(bootstrap: str, directory: Path) -> dict[str, Any]:
    """Everything that the pipeline wrote, as a plain reader finds it."""
    revenue = {
        (one["minute"]["start"], one["country"]): Decimal(str(one["revenue"]))
        for one in committed(bootstrap, "revenue-by-minute")
    }
    lake = directory / "lake" / "paid-orders"
    files = (
        pyarrow.dataset.dataset(lake, partitioning="hive").to_table().to_pylist()
        if lake.exists()
        else []
    )
    return {
        "paid": sorted(one["id"] for one in committed(bootstrap, "paid-orders")),
        "revenue": revenue,
        "big": sorted(one["id"] for one in committed(bootstrap, "big-orders")),
        "archived": sorted(one["id"] for one in files),
    }


def start(words: list[str], directory: Path, log: Path) -> subprocess.Popen[bytes]:
    directory.mkdir(exist_ok=True)
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "millstream", *words],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@pytest.fixture
def revenue(tmp_path: Path) -> Path:
    """The example, without a second query for each topic: nothing in this test fails to parse."""
    file = tmp_path / "revenue.py"
    text = EXAMPLE.read_text()
    file.write_text(
        text.replace('Pipeline("revenue", ', 'Pipeline("revenue", dead_letters=False, ')
    )
    assert file.read_text() != text
    return file


def pipeline_words(file: Path, bootstrap: str, master: str, *more: str) -> list[str]:
    words = ["pipeline", "run", str(file), "--bootstrap", bootstrap, "--master", master]
    return [*words, "--format", "json", *SMALL, *more]


def wait_until(condition: Callable[[], object], *logs: Path) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        told = "\n".join(one.read_text(errors="replace")[-4000:] for one in logs)
        assert time.monotonic() < deadline_s, f"it did not happen\n{told}"
        time.sleep(0.1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A master and two workers; their address, and the process that they are children of."""
    log = tmp_path / "spark-up.log"
    words = [
        "spark",
        "up",
        "--workers",
        "2",
        "--cores",
        "1",
        "--port",
        "0",
        "--web-port",
        "0",
        "--format",
        "json",
    ]
    made = start(words, tmp_path / "spark", log)
    seen = [psutil.Process(made.pid)]
    try:
        wait_until(
            lambda: log.read_text().count('"state": "up"') == 3 or made.poll() is not None, log
        )
        assert made.poll() is None, log.read_text()
        url = json.loads(log.read_text().splitlines()[0])["url"]
        seen += seen[0].children(recursive=True)
        yield url, seen[0]
        made.send_signal(signal.SIGINT)
        assert made.wait(60) == 0
        assert not any(map(is_alive, seen))
    finally:
        for one in seen:
            with contextlib.suppress(psutil.Error):
                one.kill()


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def below(process: psutil.Process, word: str) -> list[psutil.Process]:
    found = []
    for one in process.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if word in " ".join(one.cmdline()):
                found.append(one)
    return found


def has_nothing_of_ours(python: psutil.Process) -> bool:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    tried = subprocess.run(
        [python.exe(), "-c", "import millstream"], env=environment, capture_output=True
    )
    return tried.returncode != 0


@pytest.mark.timeout(0)
def test_results_are_those_of_local_mode_though_an_executor_is_killed(
    broker: Callable[..., LocalBroker],
    cluster: tuple[str, psutil.Process],
    revenue: Path,
    tmp_path: Path,
) -> None:
    master, machine = cluster
    here, there = broker(SETTINGS), broker(SETTINGS)
    fill(here.bootstrap, range(ORDERS), begin=True)
    local, log = tmp_path / "local", tmp_path / "local.log"
    alone = start(pipeline_words(revenue, here.bootstrap, "local[2]", "--once"), local, log)
    try:
        assert alone.wait(PATIENCE_S) == 0, log.read_text()[-4000:]
    finally:
        alone.kill()
    expected = results(here.bootstrap, local)
    assert (
        len(expected["paid"]) == len(expected["archived"]) == ORDERS * 9 // 10
        and expected["revenue"]
    )

    fill(there.bootstrap, range(ORDERS // 2), begin=True)
    remote, log = tmp_path / "remote", tmp_path / "remote.log"
    is_open = Transactions(there.bootstrap, [f"revenue.{flow}" for flow in FLOWS])
    driver = start(pipeline_words(revenue, there.bootstrap, master), remote, log)
    try:
        wait_until(lambda: committed(there.bootstrap, "paid-orders"), log)
        pythons = below(machine, WORKER)
        assert pythons and all(map(has_nothing_of_ours, pythons))
        first = below(machine, EXECUTOR)
        assert len(first) == 2
        fill(there.bootstrap, range(ORDERS // 2, ORDERS), begin=False)
        wait_until(is_open, log)
        first[0].kill()
        wait_until(
            lambda: len({one.pid for one in below(machine, EXECUTOR)} - {first[0].pid}) == 2, log
        )
        wait_until(lambda: results(there.bootstrap, remote) == expected, log)
        driver.send_signal(signal.SIGINT)
        assert driver.wait(120) == 130, log.read_text()[-4000:]
    finally:
        driver.kill()
    assert results(there.bootstrap, remote) == expected
    assert not is_open()
