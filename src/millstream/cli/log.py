"""``millstream log``: inspect the files of a broker. It reads the disk and asks no broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from millstream.cli.support import declare
from millstream.cli.support.options import Format, OutputFormat
from millstream.cli.support.output import print_json_rows
from millstream.cli.support.record_json import as_json
from millstream.client.errors import ClientError
from millstream.core.words import counted

if TYPE_CHECKING:
    from millstream.log.dump import Line

app = declare.Application(no_args_is_help=True)


@app.callback()
def log() -> None:
    """Inspect the files of a broker."""


@app.command()
def dump(
    files: Annotated[
        list[Path],
        declare.Argument(
            exists=True,
            help="Segments, indexes, snapshots, or the directory of a partition or broker.",
        ),
    ],
    deep: Annotated[
        bool, declare.Option("--deep", help="Include the records inside the batches.")
    ] = False,
    format: OutputFormat = Format.table,
) -> None:
    """Print the contents of segment, index and snapshot files. Exit code 1 if a file is damaged."""
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
    """Yield all readable lines, and add the problems to ``faults``."""
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
    """Return a line as JSON, or None for a heading."""
    from millstream.log.dump import Fault

    values = {"type": "fault", "message": line.reason} if isinstance(line, Fault) else line.fields
    if values is None:
        return None
    row: dict[str, Any] = {"file": line.file, **values}
    if row["type"] == "record":
        headers = [[name, as_json(value)] for name, value in row["headers"]]
        row |= {"key": as_json(row["key"]), "value": as_json(row["value"]), "headers": headers}
    return row


@app.command()
def verify(
    directories: Annotated[
        list[Path],
        declare.Argument(
            exists=True, file_okay=False, help="Data directories, or directories of partitions."
        ),
    ],
    format: OutputFormat = Format.table,
) -> None:
    """Verify every batch and every index. Exit code 1 if a file is damaged. Changes nothing."""
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
            f"verified {report.partitions} partitions, {report.segments} segments, {report.batches} batches, "
            f"{report.size} bytes: {report.damaged or 'none'} damaged"
        )
    if findings:
        raise ClientError(
            f"{counted(len(findings), 'damaged file')}; the first is {findings[0].path}: {findings[0].reason}"
        )
