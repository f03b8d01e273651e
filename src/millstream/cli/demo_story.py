"""The story of ``millstream demo``, told while it happens: what runs, what goes wrong on purpose, and whether the sums agree.

The generator and the driver of the pipeline are processes of their own, so that the driver can be killed with -9 together with its JVM. What is
checked comes from the topics and files as any reader would find them, and from the generator's own books.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from millstream.cli.demo_checks import Check, check_everything
from millstream.cli.demo_generator import customers
from millstream.cli.local_broker import BrokerFailed, LocalBroker
from millstream.client.errors import ClientError

FLOWS = Path(__file__).with_name("demo_flows.py")
PIPELINE = "demo"
TOPICS = ("orders", "payments")
_TABLE_EVERY_S = 10.0
# How long nothing at all may move: a batch on a machine that does a lot besides takes a minute or two.
_PATIENCE_S = 600.0
_LOOK_S = 0.5
_SETTLE_S = 2.0
_STOP_S = 60.0
_SETTINGS = {"group.initial.rebalance.delay.ms": 0}

_TRY = """\
 try:  millstream serve                                         and in another terminal
       millstream pipeline check examples/revenue.py
       millstream pipeline run examples/revenue.py
       millstream demo --keep   leaves everything running; then, with the address that it prints,
       millstream consume revenue-by-minute --from earliest | millstream dlq show orders | millstream groups list"""


class Driver:
    """The process that runs the pipeline, with the JVM below it."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._directory = directory
        self._command = [sys.executable, "-m", "millstream", "pipeline", "run", str(FLOWS)]
        self._command += ["--bootstrap", bootstrap, "--checkpoint", str(directory / "checkpoints")]
        self._command += ["--format", "json"]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def log(self) -> Path:
        return self._directory / "pipeline.log"

    def start(self) -> None:
        environment = {**os.environ, "MILLSTREAM_DEMO_ARCHIVE": str(self._directory / "paid-orders")}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def check(self) -> None:
        """Raises with the end of its log when it is gone."""
        if self._process is not None and self._process.poll() is not None:
            lines = self.log.read_text(errors="replace").splitlines()[-15:]
            raise ClientError("the pipeline ended by itself:\n  " + "\n  ".join(lines))

    def kill(self) -> None:
        """As a machine that goes away: no goodbye, the JVM included."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        if number == signal.SIGTERM:
            process.send_signal(number)  # the driver stops its JVM itself
            try:
                process.wait(_STOP_S)
                return
            except subprocess.TimeoutExpired:
                pass
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Story:
    """One run of the demo."""

    def __init__(self, *, seconds: int, rate: int, keep: bool) -> None:
        self._seconds = seconds
        self._rate = rate
        self._keep = keep
        self._started_s = time.monotonic()
        self._shown_s = 0.0

    def tell(self) -> bool:
        """Whether everything agreed."""
        with tempfile.TemporaryDirectory(prefix="millstream-demo-") as name, ExitStack() as stack:
            directory = Path(name)
            broker = stack.enter_context(_broker(directory))
            print(f" broker     ready in {broker.ready_s:.2f} s   PLAINTEXT://{broker.bootstrap}", flush=True)
            _prepare(broker.bootstrap)
            driver = Driver(broker.bootstrap, directory)
            stack.callback(driver.kill)
            driver.start()
            checks = self._run(broker, driver, directory, stack)
            for check in checks:
                print(f" {check.name:<11}{check.finding:<96} {'OK' if check.ok else 'WRONG'}", flush=True)
            print(f"\n {time.monotonic() - self._started_s:.0f} s in all", flush=True)
            if self._keep:
                _wait_for_ctrl_c(broker, directory)
        print(_TRY)
        return all(check.ok for check in checks)

    def _run(self, broker: LocalBroker, driver: Driver, directory: Path, stack: ExitStack) -> list[Check]:
        print(
            f" spark      local[*], the flows of {FLOWS.name}, exactly-once; it starts, have patience",
            flush=True,
        )
        self._until(driver, directory, "Spark", lambda: _status(directory, driver).get("state") == "running")
        summary = directory / "generated.json"
        generator = self._generator(broker.bootstrap, summary)
        stack.callback(generator.kill)
        print(
            f" generator  orders {self._rate:,}/s, payments {self._rate * 0.92:,.0f}/s, 0.1 % broken on purpose, "
            f"for {self._seconds} s\n",
            flush=True,
        )
        began_s = time.monotonic()
        self._until(
            driver,
            directory,
            "the first results",
            lambda: _written(directory, driver) > 0 and time.monotonic() - began_s > self._seconds / 3,
        )
        driver.kill()
        print(
            "\n the driver and its JVM were killed with -9, in the middle of it; they start again\n",
            flush=True,
        )
        driver.start()
        self._until(driver, directory, "the generator to end", lambda: generator.poll() is not None)
        if generator.returncode:
            raise ClientError("the generator failed")
        books = json.loads(summary.read_text())
        sent = sum(books["sent"].values())
        print(f"\n {sent:,} records are sent; the pipeline reads what is left of them\n", flush=True)
        settled = partial(_settled, broker.bootstrap, directory, driver, books)
        self._until(driver, directory, "every record to be read", settled, look_s=_SETTLE_S)
        self._show(directory, driver)
        print(f"\n {sent:,} records in; the driver was killed once on purpose, and went on", flush=True)
        if not self._keep:
            driver.stop()  # a last batch may still be on its way to the files
        return check_everything(broker.bootstrap, directory / "paid-orders", books)

    def _generator(self, bootstrap: str, summary: Path) -> subprocess.Popen[bytes]:
        arguments = [bootstrap, str(self._seconds), str(self._rate), str(summary)]
        return subprocess.Popen(
            [sys.executable, "-m", "millstream.cli.demo_generator", *arguments], stdin=subprocess.DEVNULL
        )

    def _until(
        self,
        driver: Driver,
        directory: Path,
        awaited: str,
        condition: Callable[[], bool],
        look_s: float = _LOOK_S,
    ) -> None:
        """Shows how it goes until something has happened. However slow it is, it may go on as long as it gets on."""
        began_s = moved_s = time.monotonic()
        before = None
        while not condition():
            driver.check()
            now_s, done = time.monotonic(), _done(directory, driver)
            if done != before:
                before, moved_s = done, now_s
            if now_s > moved_s + _PATIENCE_S + self._seconds:
                raise ClientError(
                    f"the pipeline has not got on for {_PATIENCE_S + self._seconds:.0f} s, waiting for {awaited}",
                    hint="this machine may be too busy; try --rate 200",
                )
            if now_s - self._shown_s > _TABLE_EVERY_S and not self._show(directory, driver):
                print(f" ... waiting for {awaited}, {now_s - began_s:.0f} s", flush=True)
            time.sleep(look_s)

    def _show(self, directory: Path, driver: Driver) -> bool:
        """The table, when the driver that runs now has one to show."""
        from millstream.cli.pipeline_run import print_figures
        from millstream.pipelines.progress import Figures

        self._shown_s = time.monotonic()
        flows = _status(directory, driver).get("flows", [])
        rows = [Figures(**{k: v for k, v in one.items() if k in Figures._fields}) for one in flows]
        if rows:
            print_figures(rows)
            sys.stdout.flush()
        return bool(rows)


@contextmanager
def _broker(directory: Path) -> Iterator[LocalBroker]:
    try:
        with LocalBroker(directory / "broker", _SETTINGS) as broker:
            yield broker
    except BrokerFailed as error:
        raise ClientError(str(error)) from None


def _prepare(bootstrap: str) -> None:
    from millstream.client import Admin, Producer

    with Admin(bootstrap) as admin:
        for name in TOPICS:
            admin.topics.create(name, partitions=2)
        admin.topics.create("customers", partitions=1, configs={"cleanup.policy": "compact"})
    with Producer(bootstrap) as producer:
        for name, country in customers():
            value = json.dumps({"customer": name, "country": country})
            producer.send("customers", value.encode(), key=name)


def _status(directory: Path, driver: Driver) -> dict[str, Any]:
    """What the driver says of itself; nothing while the words of a dead one stand there."""
    from millstream.pipelines.layout import Layout

    told = Layout(PIPELINE, str(directory / "checkpoints")).read_status() or {}
    return told if told.get("pid") == driver.pid else {}


def _done(directory: Path, driver: Driver) -> list[tuple[Any, ...]]:
    """How far every flow is."""
    flows = _status(directory, driver).get("flows", [])
    return [tuple(one.get(name) for name in ("flow", "state", "batch", "input_rows")) for one in flows]


def _written(directory: Path, driver: Driver) -> int:
    return sum(one.get("output_rows") or 0 for one in _status(directory, driver).get("flows", []))


def _settled(bootstrap: str, directory: Path, driver: Driver, books: dict[str, Any]) -> bool:
    """Nothing is left to read for any flow, as every Kafka tool would see it, and what must be there is."""
    from millstream.client import Admin

    groups = {f"{PIPELINE}.{one['flow']}" for one in _status(directory, driver).get("flows", [])}
    with Admin(bootstrap) as admin:
        if not groups or not groups <= set(admin.groups.names()):
            return False
        if any(one.lag != 0 for name in groups for one in admin.groups.lags(name)):
            return False
    return bool(_count(bootstrap, "paid-orders") >= books["paid"])


def _count(bootstrap: str, topic: str) -> int:
    from millstream.client import Consumer

    with Consumer(bootstrap, topic, until_end=True) as consumer:
        return sum(len(batch) for batch in consumer.batches(max_records=10_000))


def _wait_for_ctrl_c(broker: LocalBroker, directory: Path) -> None:
    print(
        f"\n kept running: --bootstrap {broker.bootstrap}, files in {directory}; Ctrl-C ends it", flush=True
    )
    try:
        while broker.running:
            time.sleep(1)
    except KeyboardInterrupt:
        print()
