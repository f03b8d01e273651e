"""The GitHub Action: its steps run as a runner does, and start a broker that serves clients."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from millstream.client import consume, produce

ROOT = Path(__file__).parent.parent
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
TIMEOUT_S = 300


class Runner:
    """Runs the steps of the action in a temporary directory, and ends the broker."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.outputs: dict[str, str] = {}

    def run(self, step: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a step with `shell: bash` as GitHub does, with the given variables in its `env`."""
        script, outputs = self.directory / "step.sh", self.directory / "outputs"
        script.write_text(STEPS[step]["run"])
        outputs.touch()
        assert variables.keys() == STEPS[step]["env"].keys()
        runner = {
            "RUNNER_TEMP": str(self.directory),
            "RUNNER_OS": "Linux",
            "GITHUB_OUTPUT": str(outputs),
        }
        # The output goes to files: a broker in the background would keep a pipe open.
        with (self.directory / "step.log").open("w+") as log:
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
                env=os.environ | runner | variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_S,
                text=True,
            )
            log.seek(0)
            done.stdout = log.read()
        self.outputs = dict(line.split("=", 1) for line in outputs.read_text().splitlines())
        return done

    def use_these_sources(self) -> None:
        """Stand in for the step that installs."""
        program = self.directory / "millstream-venv" / "bin" / "millstream"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m millstream "$@"\n')
        program.chmod(0o755)


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    runner = Runner(tmp_path)
    yield runner
    if "pid" in runner.outputs:
        os.kill(int(runner.outputs["pid"]), signal.SIGKILL)


def started_and_used(runner: Runner, settings: str) -> None:
    done = runner.run("Start the broker", PORT="0", SETTINGS=settings)
    assert done.returncode == 0, done.stdout
    bootstrap = runner.outputs["bootstrap"]
    assert bootstrap == f"127.0.0.1:{runner.outputs['port']}"
    assert f"PLAINTEXT://{bootstrap}" in done.stdout
    assert produce(bootstrap, "orders", [b"1"]) == 1
    assert len(consume(bootstrap, "orders", n=1)) == 1


def test_broker_outlives_the_step_and_has_the_settings(runner: Runner) -> None:
    runner.use_these_sources()
    started_and_used(runner, "num.partitions=3\n\nnum.io.threads=8\n")
    assert "without effect: num.io.threads" in Path(runner.outputs["log"]).read_text()


def test_reason_of_a_failed_start_is_the_error_of_the_job(runner: Runner) -> None:
    runner.use_these_sources()
    done = runner.run("Start the broker", PORT="0", SETTINGS="num.partition=3")
    assert done.returncode == 1 and "pid" not in runner.outputs
    assert (
        "::error::the broker did not start: millstream serve: --set num.partition:" in done.stdout
    )


@pytest.mark.long
def test_installation_from_the_repository_starts_a_broker(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    done = runner.run("Install Millstream", PYTHON=sys.executable, REQUIREMENT=str(ROOT))
    assert done.returncode == 0, done.stdout
    started_and_used(runner, "")


def test_outputs_and_inputs_are_those_of_the_steps() -> None:
    expressions: list[str] = re.findall(r"\$\{\{ (.*?) \}\}", (ROOT / "action.yml").read_text())
    inputs = {name for text in expressions for name in re.findall(r"inputs\.([\w-]+)", text)}
    assert inputs == ACTION["inputs"].keys()
    script = STEPS["Start the broker"]["run"]
    outputs: dict[str, Any] = ACTION["outputs"]
    for name, output in outputs.items():
        assert output["value"] == f"${{{{ steps.start.outputs.{name} }}}}"
        assert f"{name}=" in script
