"""``millstream log``: look into the files of a broker. The only command that reads a disk instead of asking a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.support.options import Format, OutputFormat
from millstream.cli.support.output import print_json_rows
from millstream.cli.support.record_json import as_json
from millstream.client.errors import ClientError

if TYPE_CHECKING:
    from millstream.log.dump import Line

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def log() -> None:
    """Look into the files of a broker."""


@app.command()
def dump(
    files: Annotated[
        list[Path],
        typer.Argument(
            exists=True, help="Segments, indexes, snapshots, or directories: of a partition, or of a broker."
        ),
    ],
    deep: Annotated[bool, typer.Option("--deep", help="Also the records inside the batches.")] = False,
    format: OutputFormat = Format.table,
) -> None:
    """Print what is in segment, index and snapshot files. Exit code 1 where something is wrong with one."""
    faults: list[str] = []
    lines = (line for path in files for line in _lines(path, deep, faults))
    if format is Format.json:
        print_json_rows(row for line in lines if (row := _row(line)) is not None)
    else:
        for line in lines:
            print(line)
    if faults:
        more = f" (and {len(faults) - 1} more, see above)" if len(faults) > 1 else ""
        raise ClientError(faults[0] + more)


def _lines(path: Path, deep: bool, faults: list[str]) -> Iterator[Line]:
    """All that can be read; ``faults`` gets what is wrong."""
    from millstream.log.dump import Fault
    from millstream.log.dump import dump as dump_file

    try:
        for line in dump_file(str(path), deep=deep):
            yield line
            if isinstance(line, Fault):
                faults.append(f"{line.file}: {line.reason}")
    except BrokenPipeError:
        raise
    except OSError as error:
        faults.append(f"cannot read {error.filename or path}: {error.strerror or error}")


def _row(line: Line) -> dict[str, Any] | None:
    """A line for programs; none of a line that only introduces others."""
    from millstream.log.dump import Fault

    found = {"type": "fault", "message": line.reason} if isinstance(line, Fault) else line.found
    if found is None:
        return None
    row: dict[str, Any] = {"file": line.file, **found}
    if row["type"] == "record":
        headers = [[name, as_json(value)] for name, value in row["headers"]]
        row |= {"key": as_json(row["key"]), "value": as_json(row["value"]), "headers": headers}
    return row


@app.command()
def verify(
    directories: Annotated[
        list[Path],
        typer.Argument(exists=True, file_okay=False, help="Data directories, or directories of partitions."),
    ],
    format: OutputFormat = Format.table,
) -> None:
    """Verify every batch and every index. Exit code 1 if something is damaged. Changes nothing."""
    from millstream.log.integrity.verify_files import Report
    from millstream.log.integrity.verify_files import verify as verify_files

    report, findings = Report(), []
    for directory in directories:
        try:
            for finding in verify_files(str(directory), report):
                findings.append(finding)
                if format is not Format.json:
                    print(f"{finding.path}: {finding.reason}")
        except OSError as error:
            raise ClientError(
                f"cannot read {error.filename or directory}: {error.strerror or error}"
            ) from None
    if format is Format.json:
        print_json_rows({"file": finding.path, "reason": finding.reason} for finding in findings)
    else:
        print(
            f"{report.partitions} partitions, {report.segments} segments, {report.batches} batches, "
            f"{report.size} bytes verified: {report.damaged or 'nothing'} damaged"
        )
    if findings:
        raise ClientError(
            f"{len(findings)} files are damaged, {findings[0].path} first: {findings[0].reason}"
        )
