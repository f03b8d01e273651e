"""``millstream version``."""

from __future__ import annotations

from millstream import __version__
from millstream.cli.support import declare
from millstream.cli.support.options import Format, OutputFormat
from millstream.cli.support.output import print_json

app = declare.Application()


@app.command()
def version(format: OutputFormat = Format.table) -> None:
    """Print the version."""
    print_json({"version": __version__}) if format is Format.json else print(
        f"millstream {__version__}"
    )
