"""``millstream demo`` on Spark, small: a driver killed on purpose, sums that agree, nothing left
behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from millstream.cli.demo.driver import FLOWS
from millstream.pipelines.dead_letters.ownership import plan_dead_letters
from millstream.pipelines.load import load_pipeline

MOST_QUERIES = 4


def test_demo_needs_at_most_four_queries() -> None:
    """One for each flow, and one for the dead letters of the table; those of streams come out of
    the flows.
    """
    pipeline = load_pipeline(str(FLOWS))
    flows = list(pipeline.flows.values())
    plan = plan_dead_letters(pipeline, flows, {}, lambda flow: False)
    names = [flow.name for flow in (*flows, *plan.queries)]
    assert len(names) <= MOST_QUERIES, names
    assert set(plan.owned) == {"orders", "payments", "paid_orders"}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_demo_kills_its_driver_and_its_sums_agree(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    ran = subprocess.run(
        [sys.executable, "-m", "millstream", "demo", "--seconds", "5", "--rate", "200"],
        env=os.environ | {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(tmp_path / "local")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=840,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "killed the driver and its JVM with kill -9" in ran.stdout and "FAILED" not in ran.stdout
    for name in ("orders", "revenue", "archive", "letters"):
        (line,) = [
            one
            for one in ran.stdout.splitlines()
            if one.startswith(f" {name} ") and one.endswith("OK")
        ]
        assert line
    assert not list(scratch.glob("millstream-demo-*"))
