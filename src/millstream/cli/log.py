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
    """Print what is in segment, index and snapshot files. Exit code 1 where something is wrong with one."""
    faults = [fault for path in files for fault in _dump(path, deep)]
    if faults:
        more = f" (and {len(faults) - 1} more, see above)" if len(faults) > 1 else ""
        raise ClientError(faults[0] + more)


def _dump(path: Path, deep: bool) -> list[str]:
    """Prints all that can be read; what is wrong."""
    from millstream.log.dump import Fault
    from millstream.log.dump import dump as dump_file

    faults = []
    try:
        for line in dump_file(str(path), deep=deep):
            print(line)
            if isinstance(line, Fault):
                faults.append(f"{line.file}: {line.removeprefix('| ')}")
    except BrokenPipeError:
        raise
    except OSError as error:
        faults.append(f"cannot read {error.filename or path}: {error.strerror or error}")
    return faults
