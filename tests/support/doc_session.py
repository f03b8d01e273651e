"""Runs the blocks of a document one after the other, as its reader would: in a directory, with a
broker, in a shell and in Python.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import psutil
import pytest

from millstream.testing import Kafka, broker
from support.documents import Block, Step, common, is_shown, pattern, steps
from support.forked_command import run_forked

ADDRESS = re.compile(r"\b(localhost|127\.0\.0\.1):9092\b")
# Run beside the rest of the document, until its end, on ports that are free.
SERVERS = {
    "millstream serve": " --set listeners=PLAINTEXT://127.0.0.1:0 --set group.initial.rebalance.delay.ms=0"
    " --set offsets.topic.num.partitions=1 --set transaction.state.log.num.partitions=1",
    "millstream up --brokers": " --port 0 --zookeeper-port 0",
}
READY = re.compile(r"^(?:millstream )?ready: .*?(127\.0\.0\.1:\d+)", re.M)
TIMEOUT_S = 90.0
# What makes a command more than words: pipes, files, variables, several commands.
SHELL = re.compile(r"[|<>&;$`*\\]")

AnyKafka = TypeVar("AnyKafka", bound=Kafka)


class Session:
    """What a document has done so far: files, names, and the programs it started."""

    def __init__(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch, replaced: Mapping[str, str]
    ) -> None:
        self.directory = directory
        # A JVM keeps the directory that it was started in: what it is to find here is named in
        # full.
        self.replaced = {
            old: new.replace("DIRECTORY", str(directory)) for old, new in replaced.items()
        }
        self.module = ModuleType("document")
        # Runs a pipeline without a JVM of its own.
        self.in_process: Callable[[str], tuple[str, int]] | None = None
        # What is done in the place of a command.
        self.on: dict[str, Callable[[], object]] = {}
        self._open = ExitStack()
        self._server = self._open.enter_context(ExitStack())
        self._monkeypatch = monkeypatch
        self._kafka: Kafka | None = None
        self.bootstrap = ""
        monkeypatch.setitem(sys.modules, self.module.__name__, self.module)
        monkeypatch.chdir(directory)
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        for name in ("COLUMNS", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)

    def close(self) -> None:
        self._open.close()

    @property
    def kafka(self) -> Kafka:
        """A broker for a document that starts none."""
        if self._kafka is None:
            self.use(self.enter(broker()))
        assert self._kafka is not None
        return self._kafka

    def use(self, kafka: AnyKafka) -> AnyKafka:
        """From now on this is the broker, or the cluster, that commands and programs meet."""
        self._kafka = kafka
        self._use(kafka.bootstrap)
        return kafka

    def enter(self, made: AbstractContextManager[AnyKafka]) -> AnyKafka:
        return self._open.enter_context(made)

    def finally_(self, act: Callable[[], object]) -> None:
        self._open.callback(act)

    def _use(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._monkeypatch.setenv("MILLSTREAM_BOOTSTRAP", bootstrap)

    def _replace(self, text: str) -> str:
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        return text

    def text(self, text: str) -> str:
        """As it stands in the document, but for the address of the broker and what the plan
        replaces.
        """
        text = self._replace(text)
        if ADDRESS.search(text) and not self.bootstrap:
            self.kafka  # noqa: B018
        return ADDRESS.sub(self.bootstrap, text)

    def python(self, block: Block) -> None:
        text = self.text(block.text)
        exec(compile(text, str(block), "exec", dont_inherit=True), self.module.__dict__)

    def save(self, block: Block) -> None:
        assert block.file is not None
        (self.directory / block.file).write_text(self.text(block.text), encoding="utf-8")

    def step(self, step: Step) -> None:
        if step.command in self.on:
            self.on[step.command]()
            return
        if step.command.startswith(tuple(SERVERS)):
            self.serve(step.command, step.shown)
            return
        if not self.bootstrap:
            self.kafka  # noqa: B018
        command = self.text(step.command)
        assert command != step.command or not command.startswith("kill"), (
            f"{command}: whose process is that?"
        )
        if self.in_process is not None and command.startswith("millstream pipeline "):
            printed, code = self.in_process(command)
        else:
            printed, code = _run(command)
        fails = any(line.startswith("error: ") for line in step.shown)
        assert code == int(fails), f"$ {step.command}\n{printed}"
        shown, lines = step.shown, printed.splitlines()
        if step.command.startswith("millstream consume ") and not is_shown(shown, lines):
            # Between partitions there is no order, in which a reader gets them neither.
            shown, lines = tuple(sorted(shown)), sorted(lines)
        if shown:
            assert is_shown(shown, lines), f"$ {step.command}\n{printed}"

    def serve(self, command: str, shown: tuple[str, ...] = ()) -> None:
        """Start a program that goes on in place of the one before, and wait until it says that it
        is ready.
        """
        options = next(options for start, options in SERVERS.items() if command.startswith(start))
        command = self._replace(command).partition(" #")[0] + options
        self._server.close()
        log = self.directory / f"program-{time.monotonic_ns()}.log"
        with log.open("w") as out:
            process = subprocess.Popen(["bash", "-c", f"exec {command}"], stdout=out, stderr=out)
        self._server.callback(_stop, process)
        deadline_s = time.monotonic() + TIMEOUT_S
        while not (ready := READY.search(log.read_text())):
            assert process.poll() is None and time.monotonic() < deadline_s, (
                f"$ {command}\n{log.read_text()}"
            )
            time.sleep(0.02)
        self._use(ready[1])
        lines = log.read_text().splitlines()
        for line in shown:
            same = [one for one in lines if pattern(line).fullmatch(common(one))]
            assert same, f"$ {command}\nprints no line like\n{line}\nbut\n{log.read_text()}"
            self._learn(line, same[0])

    def _learn(self, shown: str, printed: str) -> None:
        """A process that the document shows by its id is called by its real one from now on."""
        for old, new in zip(
            re.findall(r"pid (\d+)", shown), re.findall(r"pid (\d+)", printed), strict=False
        ):
            self.replaced[f"kill -9 {old}"] = f"kill -9 {new}"


def _run(command: str) -> tuple[str, int]:
    """What a command prints, errors among the rest, and its exit code."""
    if command.startswith("millstream ") and not SHELL.search(command):
        done = run_forked(shlex.split(command, comments=True)[1:], TIMEOUT_S, together=True)
        return done.stdout, done.returncode
    ran = subprocess.run(
        ["bash", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    return ran.stdout, ran.returncode


def _stop(process: subprocess.Popen[bytes]) -> None:
    """In good order; a cluster that does not end is killed with all its processes."""
    if process.poll() is not None:
        return
    known = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    process.terminate()
    try:
        process.wait(TIMEOUT_S)
    finally:
        for one in known:
            if one.is_running():
                one.kill()
        process.wait()


@contextmanager
def session(
    directory: Path, monkeypatch: pytest.MonkeyPatch, replaced: Mapping[str, str]
) -> Iterator[Session]:
    made = Session(directory, monkeypatch, replaced)
    try:
        yield made
    finally:
        made.close()


def run_block(
    session: Session, block: Block, *, later: str, skipped: Callable[[Step], str | None]
) -> None:
    """One block. ``later`` is the rest of the document: a file that it uses need not be run now,
    nor a test that pytest runs.
    """
    if block.language == "console":
        for step in steps(block):
            if skipped(step) is None:
                session.step(step)
        return
    if block.file:
        session.save(block)
    if not block.tests and not (block.file and block.file in later):
        session.python(block)
