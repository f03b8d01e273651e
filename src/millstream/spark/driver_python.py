"""Choose the Python that Spark starts for workers: the one that runs the driver.

Spark starts ``python3`` of the ``PATH`` unless ``PYSPARK_PYTHON`` is set. A script that runs as
``venv/bin/python script.py``, without an activated environment, gets a Python without this package,
and Spark fails with DATA_SOURCE_NOT_FOUND. So importing this package sets the variable, unless the
user has.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

VARIABLE = "PYSPARK_PYTHON"
_chosen: str | None = None


def choose() -> None:
    """Set ``PYSPARK_PYTHON`` if Spark would start the Python of another environment."""
    global _chosen
    if not sys.executable or any(
        os.environ.get(name) for name in (VARIABLE, "PYSPARK_DRIVER_PYTHON")
    ):
        return
    default = shutil.which("python3")
    if default is None or not os.path.samefile(Path(default).parent, Path(sys.executable).parent):
        _chosen = os.environ[VARIABLE] = sys.executable


def forget() -> None:
    """Undo ``choose``: executors on other machines may have their Python elsewhere."""
    if _chosen is not None and os.environ.get(VARIABLE) == _chosen:
        del os.environ[VARIABLE]
