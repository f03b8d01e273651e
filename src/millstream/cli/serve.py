"""``millstream serve`` for completion and help; ``main`` runs the command itself without typer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def serve(
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A server.properties file.")
    ] = None,
    set: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting; overrides the file.")
    ] = None,
    existing: Annotated[
        bool,
        typer.Option("--existing", help="Refuse to start if a data directory is new or empty."),
    ] = False,
) -> None:
    """Run a broker in the foreground."""
    from millstream.broker.main import serve_command

    words = ["--config", str(config)] if config else []
    words += ["--existing"] if existing else []
    raise typer.Exit(
        serve_command([*words, *(word for pair in set or [] for word in ("--set", pair))])
    )
