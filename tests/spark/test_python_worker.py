"""Spark's workers exclude loaded modules from garbage collection; other processes do not."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyspark")

PROGRAM = """
import gc, sys
from pyspark import TaskContext
from millstream.spark.python_worker import settle
if sys.argv[1] == "task":
    TaskContext._setTaskContext(TaskContext())
settle()
frozen = gc.get_freeze_count()
settle()
print(frozen > 1000, gc.get_freeze_count() == frozen)
"""


@pytest.mark.parametrize(("where", "printed"), [("task", "True True"), ("driver", "False True")])
def test_loaded_modules_are_excluded_from_garbage_collection_once(where: str, printed: str) -> None:
    command = [sys.executable, "-c", PROGRAM, where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == printed


@pytest.mark.parametrize(
    "module",
    ["pyspark_millstream", "millstream.spark.source.stream_reader", "millstream.pipelines.runner"],
)
def test_processes_of_sources_and_drivers_start_without_pandas(module: str) -> None:
    program = f"import sys, {module}\nprint('pandas' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=110, check=True
    )
    assert done.stdout.strip() == "False"
