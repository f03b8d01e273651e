"""``millstream consume``: print records, to the end or following, in kcat's formats or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from millstream.cli.support import declare
from millstream.cli.support.options import (
    Bootstrap,
    ClientOptions,
    Timeout,
    TopicNames,
    note_local_time,
    pairs,
)
from millstream.client.connection import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S
from millstream.client.errors import ClientError

if TYPE_CHECKING:
    from millstream.client.consumer import Consumer
    from millstream.client.consuming.positions import Position
    from millstream.client.record import Record

app = declare.Application()

BATCH = 1000
EPILOG = (
    "Formats, as in kcat: %s value, %S its length (-1 for null), %R its length as 4 bytes, %k key, %K its length, "
    "%T timestamp, %h headers, %t topic, %p partition, %o offset, %% percent; \\n \\r \\t \\xHH."
)


@app.command(epilog=EPILOG)
def consume(
    topics: TopicNames,
    start: Annotated[
        str,
        declare.Option(
            "--from",
            "--from-time",
            "-o",
            metavar="POSITION",
            help="earliest, latest, an offset, -N (the last N of each partition), -15m, @MILLISECONDS or "
            "2026-03-01T12:00Z (local time without Z). "
            "A group uses it only for partitions without a committed offset.",
        ),
    ] = "earliest",
    group: Annotated[
        str | None,
        declare.Option(
            "--group", "-g", metavar="NAME", help="Join this group and commit the printed records."
        ),
    ] = None,
    subscribe: Annotated[
        bool,
        declare.Option("--subscribe", help="Join a group; without --group it is named after you."),
    ] = False,
    exit_at_end: Annotated[
        bool, declare.Option("--exit", "-e", help="Stop at the current end instead of following.")
    ] = False,
    count: Annotated[
        int | None,
        declare.Option("-n", "--count", min=1, help="Maximum number of records to print."),
    ] = None,
    partition: Annotated[
        list[int] | None,
        declare.Option("--partition", "-p", min=0, help="Read only this partition (repeatable)."),
    ] = None,
    format: Annotated[
        str,
        declare.Option("--format", "-f", metavar="FORMAT", help="Format of a record, or `json`."),
    ] = r"%s\n",
    as_json: Annotated[
        bool, declare.Option("-J", "--json", help="The same as --format json.")
    ] = False,
    null: Annotated[str, declare.Option(metavar="TEXT", help="Text for a null key or value.")] = "",
    isolation: Annotated[
        str,
        declare.Option(
            metavar="LEVEL",
            help="read_committed, or read_uncommitted to include aborted transactions.",
        ),
    ] = "read_committed",
    quiet: Annotated[
        bool, declare.Option("--quiet", "-q", help="Print only records and errors.")
    ] = False,
    client_option: ClientOptions = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print the records of topics from a position on, alone or as a member of a group.

    Follows the topics until Ctrl-C, unless --exit or --count is given.
    """
    if group == "":
        raise declare.BadParameter("a group needs a name", param_hint="--group")
    if partition and (group or subscribe):
        raise declare.BadParameter(
            "--partition cannot be used with --group or --subscribe: a group assigns partitions itself"
        )
    if isolation not in ("read_committed", "read_uncommitted"):
        raise declare.BadParameter(
            f"{isolation!r} is not read_committed or read_uncommitted", param_hint="--isolation"
        )
    options = pairs(client_option, "--client-option")
    render = _renderer("json" if as_json else format, null)
    position = _position(start)
    if not quiet:
        note_local_time(start)
    from millstream.client.consumer import Consumer
    from millstream.local.signals import stopped_by_signals

    with (
        stopped_by_signals(),  # so that a member leaves its group instead of timing out
        Consumer(
            bootstrap,
            topics,
            group=group,
            subscribe=subscribe,
            partitions=partition,
            start=position,
            until_end=exit_at_end,
            isolation=isolation,  # type: ignore[arg-type]
            timeout_s=timeout,
            options=options,
        ) as consumer,
    ):
        _print_records(consumer, render, count)


def _renderer(format: str, null: str) -> Callable[[Record], bytes]:
    if format == "json":
        from millstream.cli.support.record_json import to_json

        return to_json
    from millstream.cli.support.format_string import compile_format

    try:
        return compile_format(format, null=null.encode())
    except ClientError as error:
        raise declare.BadParameter(str(error), param_hint="--format") from None


def _position(text: str) -> Position:
    from millstream.client.consuming.positions import Position

    try:
        return Position.of(text)
    except ClientError as error:
        raise declare.BadParameter(str(error), param_hint="--from") from None


def _print_records(
    consumer: Consumer, render: Callable[[Record], bytes], count: int | None
) -> None:
    left = count
    while not consumer.finished and left != 0:
        records = consumer.poll(BATCH if left is None else min(BATCH, left))
        if records:
            sys.stdout.buffer.write(b"".join([render(record) for record in records]))
            sys.stdout.buffer.flush()
        if consumer.membership is not None:
            consumer.commit()
        if left is not None:
            left -= len(records)
