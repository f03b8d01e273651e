"""``millstream serve`` for completion and help; ``main`` runs the command itself without click."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from millstream.cli.support import declare

app = declare.Application()


class ReadyFormat(StrEnum):
    """The format of the line that says the broker is ready."""

    text = "text"
    json = "json"


@app.command()
def serve(
    config: Annotated[
        Path | None, declare.Option(metavar="FILE", help="A server.properties file.")
    ] = None,
    set: Annotated[
        list[str] | None,
        declare.Option(metavar="NAME=VALUE", help="A setting; overrides the file."),
    ] = None,
    existing: Annotated[
        bool,
        declare.Option("--existing", help="Refuse to start if a data directory is new or empty."),
    ] = False,
    ephemeral: Annotated[
        bool,
        declare.Option(
            "--ephemeral",
            help="For tests: a free port, temporary data, and an end with the parent process.",
        ),
    ] = False,
    format: Annotated[
        ReadyFormat,
        declare.Option(help="Format of the line that the broker prints when it is ready."),
    ] = ReadyFormat.text,
    ready_fd: Annotated[
        int | None,
        declare.Option(
            metavar="N", help="Write that line as JSON to this file descriptor as well."
        ),
    ] = None,
) -> None:
    """Run a broker in the foreground."""
    from millstream.broker.main import serve_command

    words = ["--config", str(config)] if config else []
    words += ["--existing"] if existing else []
    words += ["--ephemeral"] if ephemeral else []
    words += ["--format", format.value]
    words += ["--ready-fd", str(ready_fd)] if ready_fd is not None else []
    raise declare.Exit(
        serve_command([*words, *(word for pair in set or [] for word in ("--set", pair))])
    )
