"""Every example of docs/testing-elsewhere.md runs as it is written: files, then commands."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from interop import toolchain
from support.documents import Block, blocks, is_shown, steps
from support.processes import wait_until

DOCUMENT = "docs/testing-elsewhere.md"
ROOT = Path(__file__).resolve().parents[2]
BLOCKS = list(blocks(DOCUMENT))
# The first line of a file: a comment with its name.
FILE = re.compile(r"(?://|#|<!--) ([\w./-]+\.\w+)(?: -->)?\n")
TIMEOUT_S = 600
# The section, its languages, and the programs that it needs.
SECTIONS = {
    "Java, with JUnit": ({"java", "xml", "console"}, ("java", "javac", "mvn")),
    "Go": ({"go", "console"}, ("go",)),
    "Node": ({"js", "console"}, ("node", "npm")),
    "Shell": ({"sh", "console"}, ("sh",)),
}
FETCHES = ("go get", "npm install", "mvn")
FETCH_FAILED = re.compile(
    r"Could not (resolve|transfer)|dial tcp|lookup \S+|npm (ERR!|error) (network|code E)", re.I
)


@pytest.fixture
def program_path(tmp_path: Path) -> Iterator[str]:
    """Put ``millstream`` with the sources of this repository on the PATH."""
    program = tmp_path / "bin" / "millstream"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m millstream "$@"\n')
    program.chmod(0o755)
    yield f"{program.parent}{os.pathsep}{os.environ['PATH']}"


def of_section(section: str) -> list[Block]:
    return [block for block in BLOCKS if block.section == section]


@pytest.mark.parametrize("section", SECTIONS)
def test_example_runs_and_leaves_no_broker(section: str, tmp_path: Path, program_path: str) -> None:
    languages, programs = SECTIONS[section]
    for program in programs:
        toolchain.skip_if_missing(lambda program=program: toolchain.find(program))
    assert {block.language for block in of_section(section)} == languages
    project = tmp_path / "project"
    for block in of_section(section):
        if block.language == "console":
            run_commands(block, project, program_path)
        else:
            write_file(block, project)
    wait_until(lambda: not processes_with(str(project)), "the broker to end with the example")


def write_file(block: Block, project: Path) -> None:
    name = FILE.match(block.text)
    assert name is not None, f"{block}: the first line does not name the file"
    path = project / name[1]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text)


def run_commands(block: Block, project: Path, program_path: str) -> None:
    # Brokers have the project as their working directory and this variable in the environment.
    environment = os.environ | {"PATH": program_path, "PROJECT_OF_TEST": str(project)}
    for step in steps(block):
        done = subprocess.run(
            step.command,
            shell=True,
            cwd=project,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
        )
        if (
            done.returncode
            and step.command.startswith(FETCHES)
            and FETCH_FAILED.search(done.stdout)
        ):
            pytest.skip(f"{step.command}: {done.stdout.strip().splitlines()[-1]}")
        assert done.returncode == 0, f"{step.command}:\n{done.stdout[-3000:]}"
        if step.shown:
            assert is_shown(step.shown, done.stdout.splitlines()), done.stdout


def processes_with(project: str) -> list[str]:
    """Return the command lines of processes with the marker variable of this project."""
    if not Path("/proc/self/environ").exists():
        return []
    marker = f"PROJECT_OF_TEST={project}".encode()
    commands = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if marker in (entry / "environ").read_bytes().split(b"\0"):
                commands.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it ended, or belongs to another user
    return commands


def test_ready_line_has_the_documented_keys(program_path: str) -> None:
    [block] = of_section("")
    [step] = steps(block)
    with subprocess.Popen(
        step.command.split(),
        executable=shutil.which("millstream", path=program_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as broker:
        assert broker.stdout is not None
        ready = json.loads(broker.stdout.readline())
        broker.terminate()
    [documented] = map(json.loads, step.shown)
    assert [*ready] == [*documented]


def test_python_example_runs_with_testcontainers(pytester: pytest.Pytester) -> None:
    """The container is a process here; tests/testing/test_containers.py has the details."""
    pytest.importorskip("testcontainers", reason="testcontainers is not installed")
    [block] = of_section("testcontainers-python")
    details = (ROOT / "tests" / "testing" / "test_containers.py").read_text(encoding="utf-8")
    pytester.makeconftest(
        details[: details.index("def test_")].replace(
            "@pytest.fixture", "@pytest.fixture(autouse=True)"
        )
    )
    pytester.makepyfile(block.text)
    result = pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "-o", f"pythonpath={ROOT / 'tests'}"
    )
    result.assert_outcomes(passed=1)


def test_workflow_uses_inputs_and_outputs_of_the_action() -> None:
    [block] = of_section("GitHub Actions")
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    [job] = yaml.safe_load(block.text)["jobs"].values()
    [step] = [step for step in job["steps"] if step.get("id") == "kafka"]
    assert step["with"].keys() <= action["inputs"].keys()
    outputs = set(re.findall(r"steps\.kafka\.outputs\.(\w+)", block.text))
    assert outputs and outputs <= action["outputs"].keys()
