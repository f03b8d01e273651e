"""The demo as a scenario: the CPU of all processes counts, including killed ones."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bench.__main__ import Runner
from bench.load import demo, demo_spark

from support.bench.small_scenarios import tiny

# Starts a child that computes for a while, and dies with -9 without waiting for it, as the demo's
# driver does.
KILLED = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time\\nwhile time.process_time() < 1.0: pass"])
time.sleep(0.2)
os.kill(os.getpid(), 9)
"""
COUNT = """
import json, subprocess, sys
from bench.load import demo
adopted = demo.adopt_orphans()
process = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
code = None
import time
while code is None or demo.family():
    code = demo.reap(process.pid) if code is None else code
    demo.reap(process.pid)
    time.sleep(0.01)
print(json.dumps([adopted, code, demo.cpu_s()]))
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has child subreapers (prctl), which adopt orphans"
)
def test_cpu_time_of_orphans_is_counted() -> None:
    root = str(Path(__file__).parents[2])
    counted = subprocess.run(
        [sys.executable, "-c", COUNT, KILLED],
        env=os.environ | {"PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    adopted, code, spent_s = json.loads(counted.stdout)
    assert (adopted, code) == (True, -9)
    assert spent_s >= 1.0


def test_queries_are_counted_by_their_checkpoints(tmp_path: Path) -> None:
    for name in ("paid_orders", "archive"):
        (tmp_path / "millstream-demo-x" / "checkpoints" / "demo" / name / "offsets").mkdir(
            parents=True
        )
    (tmp_path / "millstream-demo-x" / "checkpoints" / "demo" / ".inputs").mkdir()
    assert demo.queries(tmp_path) == 2


def test_rows_without_a_column_are_broken_for_spark() -> None:
    assert (
        demo_spark._good("id string, amount decimal(12,2)")
        == "v.id IS NOT NULL AND v.amount IS NOT NULL"
    )


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_scenario_yields_figures_of_both_sides_or_the_reason(
    runner_of: Callable[[str], Runner],
) -> None:
    pytest.importorskip("pyspark")
    outcome = runner_of("millstream").scenario(tiny("demo", {"seconds": 5, "rate": 100}), 1, "")
    assert outcome.absent == {}
    (reading,) = outcome.readings["millstream"]
    assert reading.values["ours_queries"] >= 3 and reading.values["ours_processes"] >= 4
    assert reading.values["ours_cpu_s"] > reading.values["ours_first_row_cpu_s"] > 1
    assert reading.values["ours_seconds"] > reading.values["ours_first_row_s"] > 1
    assert all(check.endswith(" OK") for check in reading.detail["ours"]["checks"])
    assert "spark_cpu_s" in reading.values or reading.detail["missing"]
