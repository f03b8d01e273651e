"""``millstream connect FROM TO``: rows from one place to another, exactly once, without a pipeline file."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from millstream.cli.pipeline.run import run_and_show, spark_session
from millstream.cli.support.extras import need_spark
from millstream.cli.support.options import (
    Bootstrap,
    Checkpoint,
    Conf,
    Format,
    Master,
    Once,
    OutputFormat,
    ResetProgress,
    StopTimeout,
    pairs,
)
from millstream.client.connection import DEFAULT_BOOTSTRAP
from millstream.connect.addresses import SOURCES, TARGETS, parse_address

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class Tombstones(StrEnum):
    """The meaning of records without a value."""

    drop = "drop"
    keep = "keep"
    error = "error"


Columns = "COLUMN[,COLUMN...]"


@app.command()
def connect(
    source: Annotated[str, typer.Argument(metavar="FROM", help=f"One of {', '.join(SOURCES)}.")],
    target: Annotated[str, typer.Argument(metavar="TO", help=f"One of {', '.join(TARGETS)}.")],
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema", metavar="DDL", help="Columns of what is read: 'id int NOT NULL, name string'."
        ),
    ] = None,
    value: Annotated[
        str | None,
        typer.Option("--value", metavar="FORMAT", help="The format of the topic's values. [default: json]"),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar=Columns, help="The key of records, or of the table's rows: put by it, not added."
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="COLUMN",
            help="The column that grows with every change of the table that is read.",
        ),
    ] = None,
    partition_by: Annotated[
        str | None,
        typer.Option(
            "--partition-by",
            metavar=Columns,
            help="Directories of Parquet and Delta; date is that of the record where there is no such column.",
        ),
    ] = None,
    starting: Annotated[
        str | None, typer.Option("--starting", help="Where a new flow begins in a topic: earliest or latest.")
    ] = None,
    tombstones: Annotated[
        Tombstones | None,
        typer.Option(
            "--tombstones",
            help="What records without a value are: keep removes the row of a table with --key (its default), and adds a row "
            "with _deleted and _key to Parquet and Delta; drop leaves them out; error makes them dead letters. "
            "[default: left out if they have a key, dead letters if not]",
        ),
    ] = None,
    once: Once = False,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Of the flow and its checkpoint. [default: made of the two addresses]"),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = "local[*]",
    checkpoint: Checkpoint = None,
    conf: Conf = None,
    reset_progress: ResetProgress = False,
    stop_timeout: StopTimeout = 30.0,
    format: OutputFormat = Format.table,
) -> None:
    """Connect two places until Ctrl-C, or until what is there has been read (--once); started again it goes on where it was."""
    need_spark("connectors")
    from millstream.connect.build import Wishes, columns_in, connection
    from millstream.pipelines.runner import RunOptions, preflight

    wishes = Wishes(
        bootstrap, name, value, schema, columns_in(key), by, columns_in(partition_by), starting, tombstones
    )
    pipeline = connection(parse_address(source), parse_address(target), wishes)
    given = pairs(conf, "--conf")
    options = RunOptions(once, (), checkpoint, reset_progress, stop_timeout, conf=given)
    preflight(pipeline, options)
    with spark_session(pipeline.name, master, pipeline.conf, given) as spark:
        run_and_show(pipeline, spark, options, master, format)
