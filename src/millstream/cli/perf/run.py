"""The processes of `millstream perf`, and their combined measurements, per second and in total."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream.cli.perf.worker import REPORT_S, Job
from millstream.cli.support.output import Progress
from millstream.client.errors import ClientError
from millstream.client.histogram import Histogram

SHARES = (50.0, 95.0, 99.0, 99.9)
INTERVAL_S = 1.0


@dataclass
class Interval:
    """A second of the run; latencies in microseconds."""

    at_s: float
    records: int = 0
    bytes: int = 0
    latency: Histogram = field(default_factory=Histogram)


@dataclass
class Measured:
    records: int = 0
    bytes: int = 0
    failed: int = 0
    error: str = ""
    elapsed_s: float = 0.0
    latency: Histogram = field(default_factory=Histogram)
    intervals: list[Interval] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.records / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def megabytes_rate(self) -> float:
        """Throughput in units of 2**20 bytes, like Kafka's tools."""
        return self.bytes / (1 << 20) / self.elapsed_s if self.elapsed_s else 0.0

    def line(self, verb: str) -> str:
        """Return the last line of kafka-producer-perf-test."""
        text = f"{self.records} records {verb}, {self.rate:.1f} records/sec ({self.megabytes_rate:.2f} MB/sec)"
        if self.latency.count:
            p50, p95, p99, p999 = (value / 1000 for value in self.latency.percentiles(SHARES))
            text += (
                f", {self.latency.mean / 1000:.2f} ms avg latency, {self.latency.highest / 1000:.2f} ms max latency, "
                f"{p50:.2f} ms 50th, {p95:.2f} ms 95th, {p99:.2f} ms 99th, {p999:.2f} ms 99.9th"
            )
        return text + "."

    def as_json(self) -> dict[str, Any]:
        return {
            "records": self.records,
            "failed": self.failed,
            "bytes": self.bytes,
            "seconds": round(self.elapsed_s, 3),
            "records_per_sec": round(self.rate, 1),
            "mb_per_sec": round(self.megabytes_rate, 3),
            "latency_ms": _latency(self.latency),
            "intervals": [
                {
                    "second": interval.at_s,
                    "records": interval.records,
                    "bytes": interval.bytes,
                    "latency_ms": _latency(interval.latency),
                }
                for interval in self.intervals
            ],
        }


def _latency(histogram: Histogram) -> dict[str, float] | None:
    if not histogram.count:
        return None
    shares = {
        f"p{share:g}": value / 1000
        for share, value in zip(SHARES, histogram.percentiles(SHARES), strict=True)
    }
    return {"avg": round(histogram.mean / 1000, 3), **shares, "max": histogram.highest / 1000}


def run(jobs: Sequence[Job], title: str, *, total: int) -> Measured:
    """Run each job in a process until ``total`` records are handled or all processes exit."""
    rows: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    processes = [_start(job) for job in jobs]
    for process in processes:
        threading.Thread(target=_read, args=(process, rows), daemon=True).start()
    measured, progress = Measured(), Progress(title, total=total)
    try:
        _gather(processes, rows, measured, progress, total)
    finally:
        progress.clear()
        for process in processes:
            if process.poll() is None:
                process.terminate()
            process.wait()
    return measured


def _gather(
    processes: Sequence[subprocess.Popen[str]],
    rows: queue.SimpleQueue[dict[str, Any] | None],
    measured: Measured,
    progress: Progress,
    total: int,
) -> None:
    first_ns = last_ns = 0
    began_ns, running = time.monotonic_ns(), len(processes)
    while running:
        row = rows.get()
        if row is None:
            running -= 1
            continue
        if "fatal" in row:
            raise ClientError(f"a load process failed: {row['fatal']}")
        if row["records"] and not first_ns:
            first_ns = max(began_ns, row["at_ns"] - int(REPORT_S * 1e9))
        _add(measured, row, first_ns or began_ns)
        last_ns = row["at_ns"] if row["records"] else last_ns
        measured.elapsed_s = max((last_ns - first_ns) / 1e9, 1e-9) if last_ns else 0.0
        progress.update(measured.records, measured.bytes)
        if measured.records + measured.failed >= total:
            return


def _add(measured: Measured, row: dict[str, Any], first_ns: int) -> None:
    latency = Histogram.from_dict(row["latency"])
    measured.records += row["records"]
    measured.bytes += row["bytes"]
    measured.failed += row["failed"]
    measured.error = measured.error or row["error"]
    measured.latency.merge(latency)
    middle_ns = row["at_ns"] - int(REPORT_S * 1e9) // 2  # the middle of the reported time span
    second = max(int((middle_ns - first_ns) / 1e9 / INTERVAL_S), 0)
    while len(measured.intervals) <= second:
        measured.intervals.append(Interval(len(measured.intervals) * INTERVAL_S))
    interval = measured.intervals[second]
    interval.records += row["records"]
    interval.bytes += row["bytes"]
    interval.latency.merge(latency)


def _start(job: Job) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "millstream.cli.perf.worker", json.dumps(job._asdict())]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _read(process: subprocess.Popen[str], rows: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        rows.put(json.loads(line))
    rows.put(None)
