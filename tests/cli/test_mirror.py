"""``millstream mirror`` as a user meets it before Spark has started: mistakes, clusters that are
away, a checkpoint that is in the way.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.local.broker import LocalBroker

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')

Command = Callable[..., subprocess.CompletedProcess[str]]
NOBODY = "127.0.0.1:1"


def mirror(command: Command, *words: str) -> subprocess.CompletedProcess[str]:
    return command("mirror", *words, text=True)


def test_what_is_wrong_is_told_in_one_line(command: Command, tmp_path: Path) -> None:
    ends = ("--from", f"east={NOBODY}", "--to", f"west={NOBODY}", "--checkpoint", str(tmp_path))
    for words, told in (
        ((*ends, "--topics", "t("), "is not a regular expression"),
        (
            (*ends, "--topics", "t", "--once"),
            "cannot reach a broker (127.0.0.1:1: connection refused)",
        ),
    ):
        done = mirror(command, *words)
        assert done.returncode == 1 and done.stderr.count("\n") == 1 and told in done.stderr, done


def test_a_mirror_is_not_resumed_beside_its_checkpoint(
    command: Command, shared_broker: LocalBroker, tmp_path: Path
) -> None:
    (tmp_path / "mirror-a-b" / "a-to-b" / "offsets").mkdir(parents=True)
    ends = ("--from", f"a={shared_broker.bootstrap}", "--to", f"b={NOBODY}")
    done = mirror(command, *ends, "--topics", "t", "--resume", "--checkpoint", str(tmp_path))
    assert (
        done.returncode == 1
        and "--resume cannot be used with the existing checkpoint" in done.stderr
    )
