"""A demo that goes wrong says why in a few lines and keeps its logs; the generator keeps true books
however long it waits.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import pytest

from millstream.cli.demo import broker as demo_broker
from millstream.cli.demo import generator
from millstream.cli.demo.directory import PREFIX, DemoFailed, demo_directory
from millstream.cli.demo.driver import Driver, why_it_ended
from millstream.cli.support import declare
from millstream.client.errors import ClientError


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_directory_of_a_good_demo_is_deleted(
    scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with demo_directory() as directory:
        (directory.path / "broker.log").write_text("ready")
    assert list(scratch.iterdir()) == []
    assert capsys.readouterr().err == ""


def test_directory_of_an_interrupted_demo_is_deleted(scratch: Path) -> None:
    with pytest.raises(KeyboardInterrupt), demo_directory():
        raise KeyboardInterrupt
    assert list(scratch.iterdir()) == []


def test_failed_demo_keeps_and_names_its_logs(
    scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(declare.Exit) as ended, demo_directory() as directory:
        (directory.path / "broker").mkdir()
        (directory.path / "broker" / "broker.log").write_text("ready")
        (directory.path / "generator.log").touch()
        raise ClientError("the pipeline ended by itself")
    assert ended.value.exit_code == 1
    (kept,) = scratch.glob(f"{PREFIX}*")
    assert capsys.readouterr().err.splitlines() == [
        "",
        "error: the pipeline ended by itself",
        f"the demo failed; its files are kept in {kept}",
        f"  log  {kept}/broker/broker.log",
    ]


def test_demo_whose_sums_are_wrong_keeps_its_directory(scratch: Path) -> None:
    with demo_directory() as directory:
        directory.keep = True
    assert directory.path.is_dir()


def test_broker_demo_that_finds_a_loss_keeps_its_log(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_broker, "_story", lambda broker, records: False)
    assert demo_broker.broker_demo(1000) is False
    (kept,) = scratch.glob(f"{PREFIX}*")
    shown = capsys.readouterr()
    assert f"  log  {kept}/broker.log" in shown.err and "cleaned up" not in shown.out


FLOWS = [
    {"flow": "paid_orders", "state": "failed", "failures": 6, "reason": "Task not serializable"},
    {"flow": "archive", "state": "stopped", "failures": 0, "reason": ""},
]


def test_driver_that_ended_is_told_by_the_flow_that_failed(tmp_path: Path) -> None:
    log = tmp_path / "pipeline.log"
    log.write_text(json.dumps({"event": "figures", "flows": FLOWS * 500}) + "\n")
    assert why_it_ended(1, FLOWS, log) == (
        "the pipeline exited unexpectedly with exit code 1\n"
        "  flow paid_orders failed 6 times: Task not serializable\n"
        f"  log: {log}"
    )


def test_driver_that_ended_without_a_failed_flow_is_told_by_its_last_words(tmp_path: Path) -> None:
    log = tmp_path / "pipeline.log"
    words = [
        *(f"line {number}" for number in range(9)),
        json.dumps({"event": "figures"}),
        "x" * 20_000,
        "",
    ]
    log.write_text("\n".join(words))
    told = why_it_ended(-9, [], log).splitlines()
    assert told[0] == "the pipeline exited unexpectedly by signal SIGKILL"
    assert [line.strip() for line in told[1:5]] == ["line 5", "line 6", "line 7", "line 8"]
    assert len(told) == 7 and len(told[5]) < 400 and told[6] == f"  log: {log}"


def test_driver_that_ends_is_noticed(tmp_path: Path) -> None:
    driver = Driver("127.0.0.1:1", tmp_path)
    driver._command = [sys.executable, "-c", "raise SystemExit('no broker')"]
    driver.start()
    deadline_s = time.monotonic() + 60
    with pytest.raises(DemoFailed, match="exit code 1\n  no broker\n"):
        while time.monotonic() < deadline_s:
            driver.check()
            time.sleep(0.01)
    driver.kill()


class Sent:
    """Stands for a producer; keeps what was sent."""

    def __init__(self, *given: object, **more: object) -> None:
        self.records: list[tuple[str, bytes]] = []
        Sent.last = self

    last: Sent

    def send(self, topic: str, value: bytes, *, key: str) -> None:
        self.records.append((topic, value))

    def poll(self) -> None:
        pass

    def __enter__(self) -> Sent:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_last_third_of_the_orders_waits_and_leaves_no_gap_in_their_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator, "Producer", Sent)
    monkeypatch.setattr(generator, "BROKEN", 0.0)
    resume, books = tmp_path / "resume", []
    thread = threading.Thread(
        target=lambda: books.append(generator.generate("", 0.3, 1000, resume)), daemon=True
    )
    thread.start()
    time.sleep(1.5)
    assert thread.is_alive()
    assert sum(topic == "orders" for topic, _ in Sent.last.records) == 200
    resume.touch()
    thread.join(60)
    orders = [json.loads(value) for topic, value in Sent.last.records if topic == "orders"]
    assert [one["id"] for one in orders] == [f"order-{number}" for number in range(1, 301)]
    times = [one["at"] for one in orders]
    assert times == sorted(times) and _seconds(times[-1]) - _seconds(times[0]) == pytest.approx(
        0.299, abs=0.01
    )
    assert books[0]["sent"]["orders"] == 300
    assert books[0]["paid"] == sum(topic == "payments" for topic, _ in Sent.last.records)


def _seconds(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()
