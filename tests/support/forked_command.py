"""``millstream WORDS`` in a process of its own that has the libraries already: importing them is most of what such a command takes."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

from millstream.cli.commands import COMMANDS
from millstream.cli.main import main

# One server for a test process, made with its first command. It has no threads, so it can be forked whenever a command comes.
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    [
        "confluent_kafka.admin",
        "rich.table",
        "pydantic.type_adapter",  # by typer, when a command is made
        "millstream.cli.app",
        *(f"millstream.client.{one}" for one in ("admin", "consumer", "producer", "transactions", "redrive")),
        *(f"millstream.cli.{one.name.replace('-', '_')}" for one in COMMANDS),
    ]
)


def run_forked(words: list[str], timeout_s: float) -> tuple[str, int]:
    """What a command prints, errors among the rest, and its exit code; in this directory and environment."""
    with tempfile.TemporaryDirectory() as place:
        output = os.path.join(place, "output")
        process = _server.Process(target=_command, args=(words, os.getcwd(), dict(os.environ), output))
        process.start()
        process.join(timeout_s)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"{words} does not end")
        return Path(output).read_text(encoding="utf-8"), process.exitcode


def _command(words: list[str], directory: str, environment: dict[str, str], output: str) -> None:
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    opened = os.open(output, os.O_WRONLY | os.O_CREAT)
    for place in (sys.stdout.fileno(), sys.stderr.fileno()):
        os.dup2(opened, place)
    sys.exit(main(words))
