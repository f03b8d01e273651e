"""``millstream connect FROM TO``: copy rows exactly once, without a pipeline file."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from millstream.cli.pipeline.run import run_and_show, spark_session
from millstream.cli.support import declare
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

app = declare.Application()


class Tombstones(StrEnum):
    """The handling of records without a value."""

    drop = "drop"
    keep = "keep"
    error = "error"


Columns = "COLUMN[,COLUMN...]"


@app.command()
def connect(
    source: Annotated[str, declare.Argument(metavar="FROM", help=f"One of {', '.join(SOURCES)}.")],
    target: Annotated[str, declare.Argument(metavar="TO", help=f"One of {', '.join(TARGETS)}.")],
    schema: Annotated[
        str | None,
        declare.Option(
            "--schema", metavar="DDL", help="Columns of the source: 'id int NOT NULL, name string'."
        ),
    ] = None,
    value: Annotated[
        str | None,
        declare.Option(
            "--value", metavar="FORMAT", help="Format of the topic's values. [default: json]"
        ),
    ] = None,
    key: Annotated[
        str | None,
        declare.Option(
            "--key",
            metavar=Columns,
            help="Key of the records, or of table rows, which are then updated by key.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        declare.Option(
            "--by",
            metavar="COLUMN",
            help="A column of the source table that increases with every change.",
        ),
    ] = None,
    partition_by: Annotated[
        str | None,
        declare.Option(
            "--partition-by",
            metavar=Columns,
            help="Partition columns of Parquet and Delta; date is the record's date if no column has that name.",
        ),
    ] = None,
    starting: Annotated[
        str | None,
        declare.Option(
            "--starting", help="Start position of a new flow in a topic: earliest or latest."
        ),
    ] = None,
    tombstones: Annotated[
        Tombstones | None,
        declare.Option(
            "--tombstones",
            help="Handling of records without a value. keep: delete the row of a table with --key (its default), or add a row "
            "with _deleted and _key to Parquet and Delta. drop: skip them. error: make them dead letters. "
            "[default: drop if the record has a key, error if not]",
        ),
    ] = None,
    once: Once = False,
    name: Annotated[
        str | None,
        declare.Option(
            "--name", help="Name of the flow and its checkpoint. [default: from the two addresses]"
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = "local[*]",
    checkpoint: Checkpoint = None,
    conf: Conf = None,
    reset_progress: ResetProgress = False,
    stop_timeout: StopTimeout = 30.0,
    format: OutputFormat = Format.table,
) -> None:
    """Copy rows from FROM to TO until Ctrl-C, or only the available rows (--once).

    Started again, it continues where it stopped.
    """
    need_spark("connectors")
    from millstream.connect.build import ConnectOptions, columns_in, connection
    from millstream.pipelines.runner import RunOptions, preflight

    connect_options = ConnectOptions(
        bootstrap,
        name,
        value,
        schema,
        columns_in(key),
        by,
        columns_in(partition_by),
        starting,
        tombstones,
    )
    pipeline = connection(parse_address(source), parse_address(target), connect_options)
    spark_conf = pairs(conf, "--conf")
    options = RunOptions(once, (), checkpoint, reset_progress, stop_timeout, conf=spark_conf)
    preflight(pipeline, options)
    with spark_session(pipeline.name, master, pipeline.conf, spark_conf) as spark:
        run_and_show(pipeline, spark, options, master, format)
