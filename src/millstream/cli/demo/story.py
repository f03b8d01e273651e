"""The steps of ``millstream demo``, with live output: run, kill the driver, check the results.

The generator and the pipeline's driver are separate processes, so that the driver can be killed
with its JVM. The checks read topics and files like any reader, and compare them with the
generator's counts.

The generator sends while the JVM starts, so that the first batch already has rows. Its last third
is sent only after the driver was killed, however slow the machine is.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from millstream.cli.demo.checks import Check, check_everything
from millstream.cli.demo.directory import DemoFailed, demo_directory
from millstream.cli.demo.driver import FLOWS, PIPELINE, Driver
from millstream.cli.demo.generator import customers
from millstream.client.errors import ClientError
from millstream.local.broker import BrokerFailed, LocalBroker

TOPICS = ("orders", "payments")
_TABLE_EVERY_S = 10.0
# Maximum time without progress. On a busy machine a batch takes a minute or two.
_PATIENCE_S = 600.0
_POLL_S = 0.25
_SETTLE_S = 1.0
# Time to show results before the driver is killed.
_SHOWN_S = 3.0
_SETTINGS = {"group.initial.rebalance.delay.ms": 0}

_TRY = """\
 try:  millstream serve                                         and in another terminal
       millstream pipeline check examples/revenue.py
       millstream pipeline run examples/revenue.py
       millstream demo --keep   keeps everything running; then, with the address that it prints,
       millstream consume revenue-by-minute --from earliest | millstream dlq show orders | millstream groups list"""


class Story:
    """One run of the demo."""

    def __init__(self, *, seconds: int, rate: int, keep: bool) -> None:
        self._seconds = seconds
        self._rate = rate
        self._keep = keep
        self._started_s = time.monotonic()
        self._shown_s = self._started_s
        self._first_row_s: float | None = None

    def run(self) -> bool:
        """Run the demo and return whether all checks passed."""
        with demo_directory() as directory, ExitStack() as stack:
            broker = stack.enter_context(_broker(directory.path))
            print(
                f" broker     ready in {broker.ready_s:.2f} s   PLAINTEXT://{broker.bootstrap}",
                flush=True,
            )
            create_topics(broker.bootstrap)
            driver = self._driver(broker.bootstrap, directory.path)
            stack.callback(driver.kill)
            driver.start()
            checks = self._run(broker, driver, directory.path, stack)
            for check in checks:
                print(
                    f" {check.name:<11}{check.finding:<96} {'OK' if check.ok else 'FAILED'}",
                    flush=True,
                )
            directory.keep = not all(check.ok for check in checks)
            print(
                f"\n {self._elapsed_s():.0f} s in total; first rows after {self._first_row_s or 0:.0f} s",
                flush=True,
            )
            if self._keep:
                _wait_for_ctrl_c(broker, directory.path)
        if not directory.keep:
            print(_TRY)
        return not directory.keep

    def _driver(self, bootstrap: str, directory: Path) -> Driver:
        return Driver(bootstrap, directory)

    def _settled(self, bootstrap: str, driver: Driver, books: dict[str, Any]) -> bool:
        """Return whether no consumer group has lag and the result topic is complete."""
        from millstream.client import Admin

        groups = {f"{PIPELINE}.{flow['flow']}" for flow in driver.flows()}
        with Admin(bootstrap) as admin:
            if not groups or not groups <= set(admin.groups.names()):
                return False
            if any(lag.lag != 0 for name in groups for lag in admin.groups.lags(name)):
                return False
        return bool(_count(bootstrap, "paid-orders") >= books["paid"])

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def _run(
        self, broker: LocalBroker, driver: Driver, directory: Path, stack: ExitStack
    ) -> list[Check]:
        print(
            f" spark      local[*], the flows of {FLOWS.name}, exactly-once; starting", flush=True
        )
        send_customers(broker.bootstrap)  # before the first order, because the join needs them
        summary, resume = directory / "generated.json", directory / "resume"
        generator = self._generator(broker.bootstrap, directory, summary, resume)
        stack.callback(generator.kill)
        print(
            f" generator  orders {self._rate:,}/s, payments {self._rate * 0.92:,.0f}/s, 0.1 % invalid on purpose, "
            f"for {self._seconds} s\n",
            flush=True,
        )
        self._until(driver, "the first rows", lambda: self._shown_long_enough(driver))
        driver.kill()
        print(
            "\n killed the driver and its JVM with kill -9; restarting them\n",
            flush=True,
        )
        driver.start()
        resume.touch()
        self._until(driver, "the generator to finish", lambda: generator.poll() is not None)
        if generator.returncode:
            raise ClientError("the generator failed", hint=f"see {directory / 'generator.log'}")
        books = json.loads(summary.read_text())
        sent = sum(books["sent"].values())
        print(f"\n sent {sent:,} records; the pipeline reads the rest\n", flush=True)
        settled = partial(self._settled, broker.bootstrap, driver, books)
        self._until(driver, "all records to be read", settled, poll_s=_SETTLE_S)
        self._show(driver)
        print(f"\n {sent:,} records read; the driver was killed once and recovered", flush=True)
        if not self._keep:
            driver.stop()  # a last batch may still be writing files
        return check_everything(broker.bootstrap, directory / "paid-orders", books)

    def _generator(
        self, bootstrap: str, directory: Path, summary: Path, resume: Path
    ) -> subprocess.Popen[bytes]:
        arguments = [bootstrap, str(self._seconds), str(self._rate), str(summary), str(resume)]
        with (directory / "generator.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "millstream.cli.demo.generator", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _shown_long_enough(self, driver: Driver) -> bool:
        """Return whether results exist, and the table has shown rows for a moment."""
        if self._first_row_s is None or self._elapsed_s() < self._first_row_s + _SHOWN_S:
            return False
        return sum(flow.get("output_rows") or 0 for flow in driver.flows()) > 0

    def _until(
        self, driver: Driver, awaited: str, condition: Callable[[], bool], poll_s: float = _POLL_S
    ) -> None:
        """Show the progress until a condition holds. Fail only if there is no progress at all."""
        began_s = moved_s = time.monotonic()
        before = None
        while not condition():
            driver.check()
            now_s, done = time.monotonic(), _done(driver)
            if done != before:
                before, moved_s = done, now_s
            if now_s > moved_s + _PATIENCE_S + self._seconds:
                raise ClientError(
                    f"the pipeline made no progress for {_PATIENCE_S + self._seconds:.0f} s while waiting for {awaited}",
                    hint="this machine may be too busy; try --rate 200",
                )
            first = self._first_row_s is None and any(
                flow.get("input_rows") for flow in driver.flows()
            )
            if (first or now_s - self._shown_s > _TABLE_EVERY_S) and not self._show(driver):
                print(f" ... waiting for {awaited}, {now_s - began_s:.0f} s", flush=True)
            time.sleep(poll_s)

    def _show(self, driver: Driver) -> bool:
        """Print the table, unless the current driver has no figures and no failure yet."""
        from millstream.cli.pipeline.run import print_figures
        from millstream.pipelines.run.progress import Figures

        self._shown_s = time.monotonic()
        rows = [
            Figures(**{k: v for k, v in flow.items() if k in Figures._fields})
            for flow in driver.flows()
        ]
        if not any(row.batch is not None or row.reason for row in rows):
            return False
        if self._first_row_s is None and any(row.input_rows for row in rows):
            self._first_row_s = self._elapsed_s()
        print_figures(rows)
        sys.stdout.flush()
        return True


@contextmanager
def _broker(directory: Path) -> Iterator[LocalBroker]:
    try:
        with LocalBroker(directory / "broker", _SETTINGS) as broker:
            yield broker
    except BrokerFailed as error:
        raise DemoFailed(str(error)) from None


def create_topics(bootstrap: str) -> None:
    from millstream.client import Admin

    with Admin(bootstrap) as admin:
        for name in TOPICS:
            admin.topics.create(name, partitions=2)
        admin.topics.create("customers", partitions=1, configs={"cleanup.policy": "compact"})


def send_customers(bootstrap: str) -> None:
    from millstream.client import Producer

    with Producer(bootstrap) as producer:
        for name, country in customers():
            value = json.dumps({"customer": name, "country": country})
            producer.send("customers", value.encode(), key=name)


def _done(driver: Driver) -> list[tuple[Any, ...]]:
    """Return the progress of every flow."""
    return [
        tuple(flow.get(name) for name in ("flow", "state", "batch", "input_rows"))
        for flow in driver.flows()
    ]


def _count(bootstrap: str, topic: str) -> int:
    from millstream.client import Consumer

    with Consumer(bootstrap, topic, until_end=True) as consumer:
        return sum(len(batch) for batch in consumer.batches(max_records=10_000))


def _wait_for_ctrl_c(broker: LocalBroker, directory: Path) -> None:
    print(
        f"\n still running: --bootstrap {broker.bootstrap}, files in {directory}; stop with Ctrl-C",
        flush=True,
    )
    try:
        while broker.running:
            time.sleep(1)
    except KeyboardInterrupt:
        print()
