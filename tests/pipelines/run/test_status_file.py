"""The state file of a run: its contents, and when it is due."""

from __future__ import annotations

from pathlib import Path

from millstream.pipelines.declare import Pipeline
from millstream.pipelines.run.layout import Layout
from millstream.pipelines.run.options import RunOptions
from millstream.pipelines.run.progress import Figures
from millstream.pipelines.run.status_file import INTERVAL_MS, StatusFile

START_MS = 1_000_000


def written(directory: Path) -> tuple[StatusFile, Layout]:
    pipeline = Pipeline("orders")
    layout = Layout.of(pipeline, str(directory))
    layout.root.mkdir()
    status = StatusFile(layout, RunOptions(), START_MS)
    assert status.is_due(START_MS)
    status.write(pipeline, "orders.py", "running", [Figures("join", "running")], START_MS)
    return status, layout


def test_the_file_has_the_state_and_the_flows(tmp_path: Path) -> None:
    _, layout = written(tmp_path)
    status = layout.read_status()
    assert status is not None
    assert (status["pipeline"], status["state"]) == ("orders", "running")
    assert [flow["flow"] for flow in status["flows"]] == ["join"]


def test_the_file_is_due_again_after_the_interval(tmp_path: Path) -> None:
    status, _ = written(tmp_path)
    assert not status.is_due(START_MS + INTERVAL_MS - 1)
    assert status.is_due(START_MS + INTERVAL_MS)


def test_only_the_first_batch_of_a_flow_makes_the_file_due(tmp_path: Path) -> None:
    status, _ = written(tmp_path)
    status.batch_done("join")
    assert status.is_due(START_MS + 1)
    status.write(Pipeline("orders"), "orders.py", "running", [], START_MS + 1)
    status.batch_done("join")
    assert not status.is_due(START_MS + 2)
    status.batch_done("archive")
    assert status.is_due(START_MS + 2)
