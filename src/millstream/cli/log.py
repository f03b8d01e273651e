"""``millstream log``: look into the files of a broker. The only command that reads a disk instead of asking a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millstream.client.errors import ClientError

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def log() -> None:
    """Look into the files of a broker."""


@app.command()
def dump(
    files: Annotated[
        list[Path],
        typer.Argument(exists=True, help="Segments, indexes, snapshots, or a partition's directory."),
    ],
    deep: Annotated[bool, typer.Option("--deep", help="Also the records inside the batches.")] = False,
) -> None:
    """Print what is in segment, index and snapshot files."""
    from millstream.log.dump import dump as dump_file

    for path in files:
        try:
            for line in dump_file(str(path), deep=deep):
                print(line)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise ClientError(f"cannot read {path}: {error.strerror or error}") from None
