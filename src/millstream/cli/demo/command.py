"""``millstream demo``: the whole thing in a minute or two: broker, generator, pipeline on Spark, a driver killed on purpose, and sums checked.

Where Spark is not installed it says so, and shows the broker alone.
"""

from __future__ import annotations

import signal
from importlib.util import find_spec
from typing import Annotated

import typer

from millstream.cli.support.output import note

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def demo(
    seconds: Annotated[int, typer.Option(min=5, help="How long orders and payments come in.")] = 30,
    rate: Annotated[int, typer.Option(min=10, help="Orders a second.")] = 2000,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave broker and pipeline running afterwards, until Ctrl-C.")
    ] = False,
    broker: Annotated[bool, typer.Option("--broker", help="Only the broker, without Spark.")] = False,
    records: Annotated[
        int, typer.Option("--records", "-n", min=1000, help="With --broker: records for each topic.")
    ] = 60_000,
) -> None:
    """Run orders and payments through a pipeline on Spark, kill its driver, and check that every result is there once."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: no process and no file stays behind
        signal.signal(number, signal.default_int_handler)
    if not broker and find_spec("pyspark") is None:
        note('Spark is not installed (pip install "millstream[spark]"): this is the broker alone.')
        broker = True
    if broker:
        from millstream.cli.demo.broker import broker_demo

        ok = broker_demo(records)
    else:
        from millstream.cli.demo.story import Story

        ok = Story(seconds=seconds, rate=rate, keep=keep).tell()
    if not ok:
        raise typer.Exit(1)
