"""The Python process of a source connects before it imports PySpark."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from millstream.spark.environment_map import WORKER_START
from millstream.spark.worker_start.sitecustomize import RUNNER

SLOW = "import time\ntime.sleep({seconds})\n"


def environment(*paths: Path, **more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))} | more


def test_source_process_connects_before_a_slow_import(tmp_path: Path) -> None:
    """With a slow import of PySpark the connection comes at once, and the process
    id follows on it.
    """
    import pyspark

    slow = tmp_path / "slow" / "pyspark"
    slow.mkdir(parents=True)
    real = Path(pyspark.__file__).parent
    (slow / "__init__.py").write_text(
        f"{SLOW.format(seconds=3)}__path__ = [{str(real)!r}]\n"
        f"exec(compile(open({str(real / '__init__.py')!r}).read(), __file__, 'exec'))\n"
    )
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        server.settimeout(60)
        started_s = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", RUNNER],
            env=environment(
                WORKER_START,
                slow.parent,
                PYTHON_WORKER_FACTORY_SOCK_PATH=path,
                PYTHON_UNIX_DOMAIN_ENABLED="True",
            ),
            stderr=subprocess.DEVNULL,
        )
        try:
            connection, _ = server.accept()
            connected_s = time.monotonic() - started_s
            with connection:
                connection.settimeout(100)
                assert struct.unpack("!i", connection.recv(4)) == (process.pid,)
                assert time.monotonic() - started_s - connected_s > 2
        finally:
            process.kill()
            process.wait()


def test_other_processes_start_as_before(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.marked = __file__\n")
    program = "import sys, socket; print(sys.marked, socket.socket.connect.__name__, sys.path)"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(WORKER_START, tmp_path, PYTHON_WORKER_FACTORY_SOCK_PATH="/nowhere"),
        capture_output=True,
        text=True,
        check=True,
    )
    marked, connect, path = ran.stdout.split(maxsplit=2)
    assert (marked, connect) == (str(tmp_path / "sitecustomize.py"), "connect")
    assert str(WORKER_START) not in path


def test_process_without_another_sitecustomize_starts() -> None:
    ran = subprocess.run(
        [sys.executable, "-S", "-c", "import sitecustomize; print(sitecustomize.__name__)"],
        env=environment(WORKER_START),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "sitecustomize\n"


def test_source_processes_find_worker_start(
    spark: SparkSession, stream: Any, topic: str, run_to_end: Any
) -> None:
    session: Any = spark
    manager = session._jsparkSession.sessionState().dataSourceManager()
    path = manager.lookupDataSource("millstream").dataSourceCls().envVars()["PYTHONPATH"]
    assert path.split(os.pathsep).count(str(WORKER_START)) == 1
    assert run_to_end(stream(topic)).rows == []
