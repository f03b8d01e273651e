"""A virtual environment with nothing but Python, into which a built wheel is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# Variables of the developer's environment that a new user does not have. pip's own variables stay:
# they say where packages come from.
FOREIGN = (
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "MILLSTREAM_BOOTSTRAP",
    "SPARK_HOME",
    "JAVA_HOME",
)
# `millstream ready: node 0, ...` of a broker, `ready: HOST:PORT, ...` of a cluster.
READY = "ready: "
STOP_S = 60.0


class Environment:
    """A virtual environment in ``directory``. Programs run in ``home``, an empty directory beside
    it.
    """

    def __init__(self, directory: Path, python: str = sys.executable) -> None:
        self.directory = directory / "venv"
        self.home = directory / "home"
        self.home.mkdir(parents=True)
        subprocess.run(
            [python, "-m", "venv", str(self.directory)], env=self._variables(), check=True
        )

    def install(self, *requirements: str) -> None:
        pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        self.python(*pip, *requirements)

    def python(self, *words: str, **variables: str) -> str:
        return self._run([str(self.directory / "bin" / "python"), *words], "", variables)

    def millstream(self, *words: str, stdin: str = "", **variables: str) -> str:
        """Run a command and return its output; raise RuntimeError with all of it if the command
        fails.
        """
        return self._run([str(self.directory / "bin" / "millstream"), *words], stdin, variables)

    def shell(self, script: Path) -> str:
        """Run a script that finds ``millstream`` in PATH, as in an activated environment."""
        path = os.pathsep.join([str(self.directory / "bin"), os.environ["PATH"]])
        return self._run(["sh", str(script)], "", {"PATH": path})

    @contextmanager
    def running(self, *words: str) -> Iterator[str]:
        """Run ``millstream`` with these words in the background. Yield the output until it is
        ready.
        """
        command = [str(self.directory / "bin" / "millstream"), *words]
        log = self.home / f"{words[0]}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                command, cwd=self.home, env=self._variables(), stdout=output, stderr=output
            )
            try:
                yield _wait_until_ready(process, log)
            finally:
                process.terminate()
                try:
                    process.wait(STOP_S)
                finally:
                    process.kill()

    @contextmanager
    def broker(self) -> Iterator[str]:
        """Run a broker on a free port. Yield its address."""
        with self.running("serve", "--set", "listeners=PLAINTEXT://127.0.0.1:0") as output:
            yield output.partition("PLAINTEXT://")[2].partition(",")[0]

    def _run(self, command: Sequence[str], stdin: str, variables: dict[str, str]) -> str:
        ran = subprocess.run(
            command,
            cwd=self.home,
            env=self._variables() | variables,
            input=stdin,
            capture_output=True,
            text=True,
        )
        if ran.returncode != 0:
            raise RuntimeError(f"{command} exits with {ran.returncode}:\n{ran.stdout}{ran.stderr}")
        return ran.stdout

    @staticmethod
    def _variables() -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name not in FOREIGN}


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    while READY not in (output := log.read_text()):
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        raise RuntimeError(f"{process.args!r} exits with {process.returncode}:\n{log.read_text()}")
    return output
