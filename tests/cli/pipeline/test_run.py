"""What a run shows of flows in trouble: lines below the table, a few lines at a bad end, and JSON
that stays JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.cli.pipeline.run import Lines, LiveTable, _live_lines, print_figures
from millstream.pipelines.run.failure_log import MAX_BYTES, log_failure
from millstream.pipelines.run.progress import Figures

FLOWS = [
    Figures("paid", "failed", failures=6, reason="Task not serializable"),
    Figures("archive", "stopped", failures=1, reason="the broker is away"),
    Figures("revenue", "stopped", input_rows=5, output_rows=3),
]


def ended(tmp_path: Path, state: str = "failed", flows: list[Figures] = FLOWS) -> Any:
    log = tmp_path / ".failures.log"
    log.write_text("a trace\n")
    return SimpleNamespace(state=state, figures=lambda: flows, layout=SimpleNamespace(failures=log))


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("retrying", "  paid  retrying, failed twice: no disk"),
        ("failed", "  paid  failed twice: no disk"),
        ("running", "  paid  running again, failed twice: no disk"),
    ],
)
def test_table_tells_why_a_flow_is_in_trouble(
    state: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flows = [Figures("paid", state, failures=2, reason="no disk"), Figures("archive", "running")]
    print_figures(flows)
    assert capsys.readouterr().out.splitlines()[3:] == [told]
    assert any(told.strip() in line for line in _live_lines(flows))


def test_table_of_healthy_flows_has_no_line_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_figures([Figures("paid", "running")])
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_bad_end_names_flow_count_reason_and_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    LiveTable().finish(ended(tmp_path))
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1] == " failed: 5 rows in, 3 rows out"
    assert shown.err.splitlines() == [
        "error: flow paid failed 6 times: Task not serializable",
        f"stack traces: {tmp_path / '.failures.log'}",
    ]


def test_good_end_says_nothing_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    LiveTable().finish(ended(tmp_path, "done", [Figures("paid", "done")]))
    assert capsys.readouterr().err == ""


def test_json_of_a_bad_end_is_one_document_with_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Lines().finish(ended(tmp_path))
    shown = capsys.readouterr()
    event = json.loads(shown.out)
    assert (event["event"], event["state"], event["log"]) == (
        "ended",
        "failed",
        str(tmp_path / ".failures.log"),
    )
    assert (event["flows"][0]["failures"], event["flows"][0]["reason"]) == (
        6,
        "Task not serializable",
    )
    assert shown.err == ""
    Lines().finish(ended(tmp_path, "done", [Figures("paid", "done")]))
    assert "log" not in json.loads(capsys.readouterr().out)


def test_failure_log_keeps_the_traces_of_python_and_java(tmp_path: Path) -> None:
    class Captured(Exception):
        _stackTrace = "java.io.IOException: no disk\n\tat a.B.c(B.java:3)"

    log = tmp_path / "new" / ".failures.log"
    for error in (Captured("no disk"), ValueError("x")):
        try:
            raise error
        except Exception as raised:
            log_failure(log, "paid", raised)
    text = log.read_text()
    assert text.count(" flow paid\n") == 2
    assert "B.java:3" in text and "ValueError: x" in text and "test_run.py" in text


def test_failure_log_is_bounded_and_never_in_the_way(tmp_path: Path) -> None:
    log = tmp_path / ".failures.log"
    log.write_bytes(b"x" * (MAX_BYTES + 1))
    log_failure(log, "paid", ValueError("x"))
    assert (
        log.stat().st_size < 1000 and (tmp_path / ".failures.log.1").stat().st_size == MAX_BYTES + 1
    )
    (tmp_path / "file").touch()
    log_failure(tmp_path / "file" / "log", "paid", ValueError("x"))

    class Dead(Exception):
        def __str__(self) -> str:
            raise ConnectionError("the JVM is gone")

    log_failure(log, "paid", Dead())
    assert "Dead" in log.read_text()


def test_lost_jvm_prints_no_python_trace() -> None:
    """py4j logs each call that a dead JVM does not answer, with its trace; the run says in one line
    what happened.
    """
    program = """
import logging
from millstream.cli.pipeline.run import quiet_pyspark
quiet_pyspark()
for file in ("py4j/java_gateway.py", "orders.py"):
    code = compile(f"logging.error('said by {file}')", f"/lib/{file}", "exec")
    exec(code, {"logging": logging})
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "ERROR:root:said by orders.py\n")
