"""``millstream WORDS`` in a process of its own that has the libraries already: importing them is
most of what such a command takes.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from millstream.cli.commands import COMMANDS
from millstream.cli.main import main

# One server for a test process, made with its first command. It has no threads, so it can be forked
# whenever a command comes.
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    [
        "confluent_kafka.admin",
        "millstream.cli.app",
        *(f"millstream.client.{module}" for module in ("admin.client", "consumer", "producer")),
        *("millstream.client.admin.transactions", "millstream.client.dead_letters.redrive"),
        *(command.module for command in COMMANDS),
    ]
)


def run_forked(
    words: list[str],
    timeout_s: float,
    *,
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
    together: bool = False,
) -> subprocess.CompletedProcess[str]:
    """What a command prints, its errors ``together`` with the rest or apart, and its exit code; in
    this directory.
    """
    with tempfile.TemporaryDirectory() as place:
        files = [
            Path(place, one) for one in ("stdin", "stdout", "stdout" if together else "stderr")
        ]
        for one, text in zip(files, (stdin, "", ""), strict=True):
            one.write_text(text, encoding="utf-8")
        given = dict(os.environ if environment is None else environment)
        process = _server.Process(target=_command, args=(words, os.getcwd(), given, files))
        process.start()
        process.join(timeout_s)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"{words} does not end")
        out, err = files[1].read_text(encoding="utf-8"), files[2].read_text(encoding="utf-8")
        return subprocess.CompletedProcess(words, process.exitcode, out, "" if together else err)


def _command(
    words: list[str], directory: str, environment: dict[str, str], files: list[Path]
) -> None:
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    for number, file in enumerate(files):
        os.dup2(os.open(file, os.O_RDWR | os.O_APPEND), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - multiprocessing put an empty one there
    sys.exit(main(words))
