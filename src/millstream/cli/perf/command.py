"""``millstream perf``: measure produce, consume and end-to-end rates and latencies."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Annotated, Any

from millstream.cli.support import declare
from millstream.cli.support.options import (
    Bootstrap,
    ClientOptions,
    Format,
    OutputFormat,
    Timeout,
    TopicName,
    noun,
    pairs,
)
from millstream.cli.support.output import note, print_json
from millstream.client.connection import DEFAULT_BOOTSTRAP
from millstream.core.words import counted

if TYPE_CHECKING:
    from millstream.cli.perf.run import Measured
    from millstream.cli.perf.worker import Job

app = noun("Measure rates and latency percentiles of a cluster.")

Records = Annotated[
    int,
    declare.Option("--records", "-n", min=1, help="Number of records, for all processes together."),
]
Size = Annotated[
    int, declare.Option("--size", "-s", min=16, metavar="BYTES", help="Size of a value.")
]
Rate = Annotated[
    float,
    declare.Option(
        "--rate",
        "-r",
        min=0,
        help="Records per second, for all processes together; 0 means unlimited.",
    ),
]
Processes = Annotated[
    int, declare.Option("--processes", "-P", min=1, max=64, help="Number of load processes.")
]
Plot = Annotated[
    str | None,
    declare.Option("--plot", metavar="FILE.png", help="Plot rate and latency over time."),
]
PATIENCE_S = 10.0


@app.command("produce")
def produce(
    topic: TopicName,
    records: Records = 100_000,
    size: Size = 1000,
    rate: Rate = 0,
    processes: Processes = 1,
    acks: Annotated[str, declare.Option("--acks", help="0, 1 or all.")] = "all",
    compression: Annotated[
        str, declare.Option("--compression", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    plot: Plot = None,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = PATIENCE_S,
    client_option: ClientOptions = None,
) -> None:
    """Send records. With --rate, latency counts from the due time (no coordinated omission)."""
    options = {"acks": acks, "compression.type": compression} | pairs(
        client_option, "--client-option"
    )
    _make_topic(bootstrap, topic, timeout)
    job = _job("produce", bootstrap, topic, size=size, options=options, timeout_s=timeout)
    _measure(job, processes, records, rate, "sent", plot, format)


@app.command("consume")
def consume(
    topic: TopicName,
    records: Annotated[
        int | None,
        declare.Option(
            "--records", "-n", min=1, help="Number of records. [default: all available]"
        ),
    ] = None,
    processes: Processes = 1,
    plot: Plot = None,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = PATIENCE_S,
    client_option: ClientOptions = None,
) -> None:
    """Read records from the start, as a group with a member in each process."""
    from millstream.client.errors import ClientError

    available = sum(end - first for first, end in _partitions(bootstrap, topic, timeout).values())
    if not available:
        raise ClientError(
            f"topic {topic!r} has no records",
            hint=f"fill it with `millstream perf produce {topic}`",
        )
    options = pairs(client_option, "--client-option")
    job = _job("consume", bootstrap, topic, options=dict(options), timeout_s=timeout)
    _measure(job, processes, min(records or available, available), 0, "received", plot, format)


@app.command("e2e")
def e2e(
    topic: TopicName,
    records: Records = 1000,
    size: Size = 100,
    rate: Rate = 100,
    processes: Processes = 1,
    acks: Annotated[str, declare.Option("--acks", help="0, 1 or all.")] = "all",
    plot: Plot = None,
    format: OutputFormat = Format.table,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = PATIENCE_S,
    client_option: ClientOptions = None,
) -> None:
    """Measure the time from when a record is due until it is consumed."""
    options = {"acks": acks} | pairs(client_option, "--client-option")
    _make_topic(bootstrap, topic, timeout)
    ends = [
        [number, end] for number, (_first, end) in _partitions(bootstrap, topic, timeout).items()
    ]
    job = _job(
        "e2e", bootstrap, topic, size=size, options=options, partitions=ends, timeout_s=timeout
    )
    _measure(job, processes, records, rate, "passed", plot, format)


def _make_topic(bootstrap: str, topic: str, timeout_s: float) -> None:
    """Create the topic if brokers auto-create topics; otherwise fail here, not in every process."""
    from millstream.client.producer import Producer

    with Producer(bootstrap, timeout_s=timeout_s) as producer:
        producer.find_topic(topic)


def _partitions(bootstrap: str, topic: str, timeout_s: float) -> dict[int, tuple[int, int]]:
    """Return the log start and log end offset of every partition."""
    from millstream.client.admin.client import Admin

    with Admin(bootstrap, timeout_s=timeout_s) as admin:
        first, end = admin.offsets.earliest(topic), admin.offsets.latest(topic)
    return {partition.partition: (first[partition], end[partition]) for partition in sorted(end)}


def _job(kind: str, bootstrap: str, topic: str, **more: Any) -> Job:
    from millstream.cli.perf.worker import Job

    defaults: dict[str, Any] = {
        "records": 0,
        "size": 0,
        "rate": 0.0,
        "options": {},
        "partitions": [],
    }
    group = f"millstream-perf-{uuid.uuid4().hex[:8]}"
    return Job(
        **defaults | {"kind": kind, "bootstrap": bootstrap, "topic": topic, "group": group} | more
    )


def _measure(
    job: Job, processes: int, records: int, rate: float, verb: str, plot: str | None, format: Format
) -> None:
    from millstream.cli.perf.run import run

    shares = [records // processes + (number < records % processes) for number in range(processes)]
    jobs = [job._replace(records=share, rate=rate / processes) for share in shares if share]
    measured = run(jobs, job.kind, total=records)
    print_json(measured.as_json()) if format is Format.json else print(measured.line(verb))
    if plot:
        _draw(plot, measured, f"millstream perf {job.kind} {job.topic}")
    if measured.failed:
        note(
            f"error: {counted(measured.failed, 'record')} failed"
            + (f": {measured.error}" if measured.error else "")
        )
        raise declare.Exit(1)


def _draw(path: str, measured: Measured, title: str) -> None:
    from millstream.cli.perf.plot import draw

    draw(path, measured, title)
    note(f"plot: {path}")
