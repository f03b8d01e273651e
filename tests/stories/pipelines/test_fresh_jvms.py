"""Queries that start at the same time in fresh JVMs; FRESH_JVMS says in how many."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millstream.spark.session import python_path
from support.places import SUPPORT, TESTS
from support.spark.pipeline_world import create, send

FLOWS, ROWS = 7, 20
JVMS = int(os.environ.get("FRESH_JVMS", "30"))


@pytest.mark.long
@pytest.mark.timeout(240 * JVMS)
def test_seven_flows_start_at_once_in_fresh_jvms(
    shared_broker: Any, topic_name: str, tmp_path: Path
) -> None:
    create(shared_broker.bootstrap, topic_name)
    send(shared_broker.bootstrap, topic_name, [{"id": number} for number in range(ROWS)])
    program = SUPPORT / "spark" / "fresh_jvm.py"
    failed = {}
    for number in range(JVMS):
        words = [shared_broker.bootstrap, topic_name, str(FLOWS), str(tmp_path / str(number))]
        ran = subprocess.run(
            [sys.executable, str(program), *words],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([python_path(), str(TESTS)])},
        )
        assert ran.returncode == 0, ran.stderr
        seen = json.loads(ran.stdout.splitlines()[-1])
        if seen != {"rows": [ROWS] * FLOWS, "errors": []}:
            failed[number] = seen
    assert not failed
