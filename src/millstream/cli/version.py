"""``millstream version``."""

from __future__ import annotations

import typer

from millstream import __version__

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def version() -> None:
    """Print the version."""
    print(f"millstream {__version__}")
