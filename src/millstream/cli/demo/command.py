"""``millstream demo``: broker, generator, Spark pipeline, a killed driver and checked results.

It takes a minute or two. Without Spark it shows only the broker.
"""

from __future__ import annotations

import signal
from importlib.util import find_spec
from typing import Annotated

from millstream.cli.support import declare
from millstream.cli.support.output import note

app = declare.Application()


@app.command()
def demo(
    seconds: Annotated[
        int, declare.Option(min=5, help="How long orders and payments are sent.")
    ] = 30,
    rate: Annotated[int, declare.Option(min=10, help="Orders per second.")] = 2000,
    keep: Annotated[
        bool, declare.Option("--keep", help="Keep the broker and pipeline running until Ctrl-C.")
    ] = False,
    broker: Annotated[
        bool, declare.Option("--broker", help="Show only the broker, without Spark.")
    ] = False,
    records: Annotated[
        int,
        declare.Option(
            "--records", "-n", min=1000, help="With --broker: number of records per topic."
        ),
    ] = 60_000,
) -> None:
    """Run a Spark pipeline over orders and payments, kill its driver, and check the results.

    Every result must exist exactly once.
    """
    # Treat them like Ctrl-C, so that no process and no file stays behind.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    if not broker and find_spec("pyspark") is None:
        note('Spark is not installed (pip install "millstream[spark]"): showing only the broker.')
        broker = True
    if broker:
        from millstream.cli.demo.broker import broker_demo

        ok = broker_demo(records)
    else:
        from millstream.cli.demo.story import Story

        ok = Story(seconds=seconds, rate=rate, keep=keep).run()
    if not ok:
        raise declare.Exit(1)
