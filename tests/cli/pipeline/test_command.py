"""``millstream pipeline`` as a user meets it: mistakes, check, a run that is looked at, doubled and
interrupted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]
PATIENCE_S = 300.0

PIPELINE = """
from millstream.pipelines import Pipeline, topic

pipe = Pipeline("{name}", dead_letters=False)
pipe.stream("orders", topic="{topic}", schema="id string, amount int")
pipe.sql("big", "SELECT * FROM orders WHERE amount > 10", to=topic("{topic}-big", key="id"))
"""


def command_environment(bootstrap: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")
    }
    return kept | {"MILLSTREAM_BOOTSTRAP": bootstrap}


@pytest.fixture
def file(tmp_path: Path, topic: str) -> Path:
    path = tmp_path / "shop.py"
    path.write_text(PIPELINE.format(name=topic, topic=topic))
    return path


def run(*words: str, bootstrap: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "millstream", "pipeline", *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=cwd,
        env=command_environment(bootstrap),
    )


def test_names_are_checked_without_spark(shared_broker, file: Path, tmp_path: Path) -> None:
    file.write_text(file.read_text().replace("FROM orders", "FROM oders"))
    checked = run("check", str(file), bootstrap=shared_broker.bootstrap, cwd=tmp_path)
    assert checked.returncode == 1
    assert (
        checked.stderr
        == "error: shop.py:6: flow big reads 'oders', which is not declared; did you mean 'orders'?\n"
    )


def test_a_file_that_is_not_there(shared_broker, tmp_path: Path) -> None:
    for verb in ("run", "check"):
        told = run(verb, "nowhere.py", bootstrap=shared_broker.bootstrap, cwd=tmp_path)
        assert (told.returncode, told.stdout) == (1, "")
        assert (
            told.stderr
            == "error: file nowhere.py does not exist; pass the Python file that declares the pipeline\n"
        )


def test_a_topic_that_is_not_there_is_told_before_spark_starts(
    shared_broker, file: Path, topic: str, tmp_path: Path
) -> None:
    file.write_text(file.read_text().replace(f'topic="{topic}"', f'topic="{topic}x"'))
    told = run("run", str(file), bootstrap=shared_broker.bootstrap, cwd=tmp_path)
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr == (
        f"error: shop.py:5: the topic '{topic}x' of stream orders does not exist; did you mean '{topic}'?\n"
    )


def test_status_of_what_never_ran(shared_broker, tmp_path: Path) -> None:
    told = run("status", bootstrap=shared_broker.bootstrap, cwd=tmp_path)
    assert (told.returncode, told.stdout) == (0, "")
    assert "no pipelines have run here" in told.stderr
    told = run("status", "shop", bootstrap=shared_broker.bootstrap, cwd=tmp_path)
    assert told.returncode == 1 and "no run of shop found below" in told.stderr


def test_check_shows_flows_and_schemas(
    shared_broker, file: Path, topic: str, tmp_path: Path
) -> None:
    checked = run(
        "check", str(file), "--format", "json", bootstrap=shared_broker.bootstrap, cwd=tmp_path
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    assert json.loads(checked.stdout) == {
        "pipeline": topic,
        "ok": True,
        "flows": [
            {
                "flow": "big",
                "mode": "append",
                "inputs": [f"stream orders (topic {topic})"],
                "targets": [f"topic {topic}-big"],
                "schema": [{"name": "id", "type": "string"}, {"name": "amount", "type": "int"}],
            }
        ],
        "problems": [],
    }
    assert not (tmp_path / "millstream-checkpoints").exists()


class Running:
    """``millstream pipeline run`` in a process of its own, its events as they come."""

    def __init__(self, file: Path, bootstrap: str, cwd: Path) -> None:
        self.output = cwd / "events.jsonl"
        with self.output.open("wb") as output, (cwd / "errors.txt").open("wb") as errors:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "millstream",
                    "pipeline",
                    "run",
                    str(file),
                    "--master",
                    "local[2]",
                    "--format",
                    "json",
                ],
                cwd=cwd,
                stdout=output,
                stderr=errors,
                env=command_environment(bootstrap),
            )

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = self.output.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            for event in self.events:
                if condition(event):
                    return event
            assert self.process.poll() is None, "the pipeline ended"
            assert time.monotonic() < deadline_s
            time.sleep(0.1)


def test_a_run_is_seen_from_outside_refuses_a_second_one_and_stops_cleanly(
    shared_broker, millstream, file: Path, topic: str, tmp_path: Path
) -> None:
    bootstrap = shared_broker.bootstrap
    millstream(
        "produce", topic, stdin="".join(f'{{"id": "o{n}", "amount": {n}}}\n' for n in range(20))
    )
    running = Running(file, bootstrap, tmp_path)
    try:
        running.wait_for(
            lambda one: one["event"] == "figures" and one["flows"][0]["output_rows"] == 9
        )
        status = run("status", "--format", "json", bootstrap=bootstrap, cwd=tmp_path)
        (shown,) = json.loads(status.stdout)
        assert (shown["pipeline"], shown["state"], shown["running"]) == (topic, "running", True)
        assert [(flow["flow"], flow["state"]) for flow in shown["flows"]] == [("big", "running")]
        assert "big" in run("status", topic, bootstrap=bootstrap, cwd=tmp_path).stdout
        second = run("run", str(file), "--once", bootstrap=bootstrap, cwd=tmp_path)
        assert second.returncode == 1
        assert (
            f"error: pipeline {topic} is already running (process {running.process.pid} on "
            in second.stderr
        )
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(PATIENCE_S) == 130
    finally:
        if running.process.poll() is None:
            os.kill(running.process.pid, signal.SIGKILL)
            running.process.wait()
    assert (tmp_path / "errors.txt").read_text() == ""
    assert running.events[-1]["event"] == "ended" and running.events[-1]["state"] == "stopped"
    (shown,) = json.loads(
        run("status", "--format", "json", bootstrap=bootstrap, cwd=tmp_path).stdout
    )
    assert (shown["state"], shown["running"]) == ("stopped", False)
    listed = millstream("consume", f"{topic}-big", "--exit", "-f", "%k\\n").stdout.split()
    assert sorted(listed) == sorted(f"o{n}" for n in range(11, 20))


def test_records_that_are_skipped_are_told_on_stderr(
    shared_broker, file: Path, topic: str, tmp_path: Path
) -> None:
    from millstream.client.admin.client import Admin
    from millstream.client.producer import Producer
    from millstream.core.types import TopicPartition

    bootstrap = shared_broker.bootstrap
    skipping = 'schema="id string, amount int", source={"failOnDataLoss": "false"}'
    file.write_text(file.read_text().replace('schema="id string, amount int"', skipping))
    for first in (0, 2):
        with Producer(bootstrap) as producer:
            for number in range(first, first + 2):
                producer.send(
                    topic, json.dumps({"id": str(number), "amount": 99}).encode(), partition=0
                )
        if first:
            with Admin(bootstrap) as admin:
                admin.offsets.delete_records({TopicPartition(topic, 0): 3})
        told = run("run", str(file), "--once", bootstrap=bootstrap, cwd=tmp_path)
        assert told.returncode == 0, told.stderr
    gone = f"{topic}-0: offsets 2 to 2 (1 offsets) were deleted"
    assert told.stderr.startswith(f"millstream: skipped, because failOnDataLoss is false: {gone}")
    assert told.stderr.count("\n") == 1
