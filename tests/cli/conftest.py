"""Running the real command in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from millstream.local import cluster_file
from support.forked_command import run_forked
from support.local_up import Up
from support.processes import alive
from support.zookeeper import skip_without_zookeeper

Run = Callable[..., subprocess.CompletedProcess[str]]


def command_environment(bootstrap: str | None) -> dict[str, str]:
    """The environment of the command: no colours, no width of the terminal that runs the tests."""
    kept = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")
    }
    return kept | ({"MILLSTREAM_BOOTSTRAP": bootstrap} if bootstrap else {})


def run_command(
    *words: str, bootstrap: str | None = None, **more: Any
) -> subprocess.CompletedProcess[Any]:
    """``millstream WORDS`` with its output, stderr and exit code."""
    return subprocess.run(
        [sys.executable, "-m", "millstream", *words],
        capture_output=True,
        timeout=60,
        env=command_environment(bootstrap),
        **more,
    )


@pytest.fixture
def command() -> Callable[..., subprocess.CompletedProcess[Any]]:
    """Run a command against whatever ``bootstrap`` says, or nothing."""
    return run_command


def run_quickly(
    *words: str, bootstrap: str | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """The same, texts in and texts out, in a process that has its libraries already."""
    return run_forked(list(words), 60, stdin=stdin, environment=command_environment(bootstrap))


@pytest.fixture
def quick_command() -> Run:
    """For what a command says and does: most of what `command` costs is to start from nothing."""
    return run_quickly


@pytest.fixture
def millstream(shared_broker) -> Run:
    """Run a command against the shared broker."""
    return partial(run_quickly, bootstrap=shared_broker.bootstrap)


@pytest.fixture
def topic(millstream: Run, topic_name: str) -> str:
    """A topic with three partitions, made by the command."""
    created = millstream("topics", "create", topic_name, "--partitions", "3")
    assert (created.stdout, created.stderr, created.returncode) == (
        f"created topic {topic_name}\n",
        "",
        0,
    )
    return topic_name


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    skip_without_zookeeper()
    started: list[Up] = []

    def run(*words: str) -> Up:
        started.append(Up(tmp_path / "cluster", *words))
        return started[-1]

    yield run
    for one in started:
        pids = one.pids() if (one.data / cluster_file.FILE).exists() else []
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()
        for pid in pids:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
