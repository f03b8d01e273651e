"""``millstream serve`` for completion and help; ``main`` runs the command itself without click."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from millstream.cli.support import declare

app = declare.Application()


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
) -> None:
    """Run a broker in the foreground."""
    from millstream.broker.main import serve_command

    words = ["--config", str(config)] if config else []
    words += ["--existing"] if existing else []
    raise declare.Exit(
        serve_command([*words, *(word for pair in set or [] for word in ("--set", pair))])
    )
