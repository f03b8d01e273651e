"""``millstream version``."""

from __future__ import annotations

import typer

from millstream import __version__
from millstream.cli.support.options import Format, OutputFormat
from millstream.cli.support.output import print_json

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def version(format: OutputFormat = Format.table) -> None:
    """Print the version."""
    print_json({"version": __version__}) if format is Format.json else print(
        f"millstream {__version__}"
    )
