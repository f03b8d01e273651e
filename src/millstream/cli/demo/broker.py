"""``millstream demo --broker``: start a broker in a temporary directory, use, kill and check it.

All printed numbers are measured in this run. If a check fails, the command exits with 1.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from millstream.cli.demo.directory import DemoFailed, demo_directory
from millstream.cli.demo.orders import OrderCheck, Orders
from millstream.cli.support.output import Progress
from millstream.local.broker import BrokerFailed, LocalBroker

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CRASH_TOPIC = "orders-crash"
STATE_TOPIC = "customers"
STATE_KEYS = 100
STATE_UPDATES = 60_000
COMPACTION_WAIT_S = 8.0
CRASH_TIMEOUT_MS = 20_000
SETTINGS = {"log.cleaner.backoff.ms": 100, "auto.create.topics.enable": "false"}
# Reconnect at once after the restart, instead of with librdkafka's exponential backoff.
QUICK_RECONNECT = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}


class Result(NamedTuple):
    """The result of a check: its name, the finding, and whether it passed."""

    name: str
    finding: str
    ok: bool


def broker_demo(records: int) -> bool:
    """Use a broker with every codec, kill it, and check for lost or duplicate records."""
    started_s = time.monotonic()
    with demo_directory() as directory:
        try:
            with LocalBroker(directory.path, SETTINGS) as broker:
                ok = _story(broker, records)
        except BrokerFailed as error:
            raise DemoFailed(str(error)) from None
        directory.keep = not ok
    print(
        f"\n {time.monotonic() - started_s:.1f} s{', and all files are cleaned up' if ok else ''}."
    )
    print(_TRY)
    return ok


_TRY = """\
 try:  millstream serve --set log.dirs=./data                  and in another terminal
       millstream topics create orders --partitions 3
       seq 1000 | millstream produce orders -c zstd
       millstream consume orders --exit -f '%t[%p] %o %s\\n'
       any Kafka client you have: bootstrap.servers=localhost:9092"""


def _story(broker: LocalBroker, records: int) -> bool:
    print(
        f" broker   ready in {broker.ready_s:.2f} s   PLAINTEXT://{broker.bootstrap}   one process{_memory(broker)}\n"
    )
    _create_topics(broker.bootstrap)
    results = [
        _codec_round(broker.bootstrap, codec, records, header=codec == CODECS[0])
        for codec in CODECS
    ]
    print()
    steps: list[Callable[[], Result]] = [
        lambda: _crash(broker, records),
        lambda: _compaction(broker.bootstrap),
        lambda: _time_travel(broker.bootstrap, records),
    ]
    for step in steps:
        results.append(step())
        print(
            f" {results[-1].name:<12} {results[-1].finding:<98} {_verdict(results[-1].ok)}",
            flush=True,
        )
    print(f"\n broker   still up, {_disk(broker.data_dir)} on disk{_memory(broker)}")
    return all(result.ok for result in results)


def _create_topics(bootstrap: str) -> None:
    from millstream.client.admin.client import Admin

    with Admin(bootstrap) as admin:
        for codec in CODECS:
            admin.topics.create(_topic(codec), partitions=3)
        admin.topics.create(CRASH_TOPIC, partitions=3)
        # With small segments and an eager cleaner, compaction takes a second instead of hours.
        compacted = {
            "cleanup.policy": "compact",
            "segment.bytes": "1048576",
            "min.cleanable.dirty.ratio": "0.01",
        }
        admin.topics.create(STATE_TOPIC, partitions=1, configs=compacted)


def _topic(codec: str) -> str:
    return f"orders-{codec}"


def _codec_round(bootstrap: str, codec: str, records: int, *, header: bool) -> Result:
    """Produce with one codec, consume, compare, and print a row of the table."""
    if header:
        print(
            f" {'topic':<14} {'records':>9} {'produced':>12} {'consumed':>12}   order, count, checksum, headers"
        )
    orders = Orders(records)
    sent_s = _produce(bootstrap, _topic(codec), orders, codec)
    check = OrderCheck(orders)
    read_s = _consume(bootstrap, _topic(codec), check)
    print(
        f" {_topic(codec):<14} {check.records:>9,} {records / sent_s:>10,.0f}/s {check.records / read_s:>10,.0f}/s"
        f"   {_verdict(check.ok)}{'' if check.ok else '  ' + check.complaint()}"
    )
    return Result(_topic(codec), check.complaint(), check.ok)


def _produce(bootstrap: str, topic: str, orders: Orders, codec: str) -> float:
    """Send all records and return the seconds since the first acknowledgement.

    librdkafka waits up to 0.5 s for its producer id before that.
    """
    from millstream.client.producer import Producer

    progress = Progress(f"producing {topic}", total=orders.count, enabled=sys.stdout.isatty())
    with Producer(bootstrap, compression=codec) as producer:  # type: ignore[arg-type]
        for number, (key, value, headers) in enumerate(orders):
            producer.send(topic, value, key=key, headers=headers)
            if number == 0:
                producer.flush()
                started_s = time.monotonic()
            elif not number % 1000:
                progress.update(number)
        producer.flush()
        progress.clear()
        return max(time.monotonic() - started_s, 1e-9)


def _consume(bootstrap: str, topic: str, check: OrderCheck) -> float:
    """Read all records and return the seconds it took, including connecting."""
    from millstream.client.consumer import Consumer

    started_s = time.monotonic()
    progress = Progress(f"consuming {topic}", total=check.orders.count, enabled=sys.stdout.isatty())
    with Consumer(bootstrap, topic, until_end=True) as consumer:
        for batch in consumer.batches(max_records=5000):
            for record in batch:
                check.add(record)
            progress.update(check.records)
    progress.clear()
    return max(time.monotonic() - started_s, 1e-9)


def _crash(broker: LocalBroker, records: int) -> Result:
    """Kill the broker while an idempotent producer sends, restart it, and count records."""
    from millstream.client.producer import Delivery, Producer

    orders = Orders(records)
    acknowledged = 0
    kill_now = threading.Event()

    def on_delivery(delivery: Delivery) -> None:
        nonlocal acknowledged
        acknowledged += delivery.error is None
        if acknowledged * 3 > records:
            kill_now.set()

    with _Killer(broker, kill_now, lambda: acknowledged) as killer:
        progress = Progress("producing through a crash", total=records, enabled=sys.stdout.isatty())
        with Producer(
            broker.bootstrap,
            on_delivery=on_delivery,
            linger_ms=1,
            delivery_timeout_ms=CRASH_TIMEOUT_MS,
            options=QUICK_RECONNECT,
        ) as producer:
            for number, (key, value, headers) in enumerate(orders):
                producer.send(CRASH_TOPIC, value, key=key, headers=headers)
                if number % 200 == 0:
                    producer.poll()
                    progress.update(number)
                # The second half is sent to a broker that is down or restarting.
                while number == records // 2 and not killer.killed.is_set():
                    producer.poll(0.01)
        progress.clear()
    check = OrderCheck(orders)
    _consume(broker.bootstrap, CRASH_TOPIC, check)
    finding = (
        f"kill -9 after {killer.killed_after:,} acknowledged records, ready again in {broker.ready_s:.2f} s; "
        f"{acknowledged:,} sent, {check.lost:,} lost, {check.doubled:,} duplicates"
    )
    return Result(
        "crash", finding, check.ok and acknowledged == records and killer.killed_after < records
    )


class _Killer(threading.Thread):
    """Kills the broker on an event and restarts it; the ``with`` block ends when it is back."""

    def __init__(
        self, broker: LocalBroker, when: threading.Event, acknowledged: Callable[[], int]
    ) -> None:
        super().__init__(name="demo-killer", daemon=True)
        self._broker, self._when, self._acknowledged = broker, when, acknowledged
        self._cancelled = False
        self._failure: Exception | None = None
        self.killed_after = 0
        self.killed = threading.Event()

    def run(self) -> None:
        self._when.wait()
        if self._cancelled:
            return
        try:
            self._broker.kill()
            self.killed_after = self._acknowledged()
            self.killed.set()
            self._broker.start()
        except Exception as error:
            self._failure = error
            self.killed.set()

    def __enter__(self) -> _Killer:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._cancelled = error is not None
        self._when.set()
        self.join()
        if self._failure is not None:
            raise self._failure


def _compaction(bootstrap: str) -> Result:
    """Send many updates of few keys, and check that compaction keeps the latest of each."""
    from millstream.client.consumer import consume
    from millstream.client.producer import produce

    produce(
        bootstrap,
        STATE_TOPIC,
        ((f"customer-{n % STATE_KEYS}", f"balance {n:>40}") for n in range(STATE_UPDATES)),
    )
    deadline_s = time.monotonic() + COMPACTION_WAIT_S
    while True:
        left = consume(bootstrap, STATE_TOPIC)
        if len(left) < STATE_UPDATES // 2 or time.monotonic() > deadline_s:
            break
        time.sleep(0.2)
    latest = {record.key: record.value for record in left}
    expected = {
        b"customer-%d" % (n % STATE_KEYS): b"balance %40d" % n
        for n in range(STATE_UPDATES - STATE_KEYS, STATE_UPDATES)
    }
    kept = (
        "including the latest of every key"
        if latest == expected
        else "but not the latest of every key"
    )
    finding = f"{STATE_UPDATES:,} updates of {STATE_KEYS} keys: {len(left):,} records left, {kept}"
    return Result("compaction", finding, latest == expected and len(left) < STATE_UPDATES // 2)


def _time_travel(bootstrap: str, records: int) -> Result:
    """Start in the middle of a topic, by offset and by timestamp."""
    from millstream.client.consumer import consume

    topic = _topic(CODECS[0])
    middle = consume(bootstrap, topic, n=1, partitions=[0], start=records // 6)[0]
    same = consume(bootstrap, topic, n=1, partitions=[0], start=f"@{middle.timestamp_ms}")[0]
    ok = (
        middle.offset == records // 6
        and same.timestamp_ms == middle.timestamp_ms
        and same.offset <= middle.offset
    )
    return Result(
        "time travel",
        f"found offset {middle.offset:,} of a partition by number and by timestamp",
        ok,
    )


def _verdict(ok: bool) -> str:
    return "OK" if ok else "FAILED"


def _memory(broker: LocalBroker) -> str:
    """Return the resident memory of the broker, or nothing if it is unknown."""
    try:
        lines = Path(f"/proc/{broker.pid}/status").read_text().splitlines()
    except OSError:
        return ""
    resident = next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)
    return f", {resident / 1024:.0f} MiB resident"


def _disk(directory: Path) -> str:
    from millstream.cli.support.output import human_bytes

    return human_bytes(
        sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())
    )
