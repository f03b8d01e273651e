"""The figures of a flow, from Spark's reports about its batches. Pure.

Spark's rates are those of the last batch, and stay when no more records arrive. These rates are
over the last seconds.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

WINDOW_MS = 10_000
NO_WATERMARK_MS = 0


class Figures(NamedTuple):
    """One row of the table. None if a value is not known."""

    flow: str
    state: str
    batch: int | None = None
    input_rows_per_s: float | None = None
    output_rows_per_s: float | None = None
    batch_ms: int | None = None
    lag: int | None = None
    state_bytes: int | None = None
    state_rows: int | None = None
    watermark_ms: int | None = None
    input_rows: int = 0
    output_rows: int = 0
    late_rows: int = 0
    failures: int = 0
    reason: str = ""
    dead_letters: int = 0
    """Dead letters that the flow wrote beside its rows."""


class _Sample(NamedTuple):
    at_ms: int
    input_rows: int
    output_rows: int


@dataclass
class FlowProgress:
    """The figures of one flow, over all its retries."""

    flow: str
    input_rows: int = 0
    output_rows: int = 0
    late_rows: int = 0
    dead_letters: int = 0
    batch: int | None = None
    batch_ms: int | None = None
    lag: int | None = None
    state_bytes: int | None = None
    state_rows: int | None = None
    watermark_ms: int | None = None
    _samples: deque[_Sample] = field(default_factory=deque)
    _seen: str = ""

    def begin(self, now_ms: int) -> None:
        """Note the start or restart of the query."""
        self._samples.clear()
        self._sample(now_ms)

    def add_rows(self, rows: int) -> None:
        """Count the rows of a committed batch."""
        self.output_rows += rows

    def report(self, progress: Mapping[str, Any], now_ms: int) -> bool:
        """Take in Spark's report about a batch. Return False if it is a repetition."""
        timestamp = str(progress.get("timestamp", ""))
        # ISO times of one zone sort as texts.
        if timestamp <= self._seen:
            return False
        self._seen = timestamp
        rows = int(progress.get("numInputRows") or 0)
        self.input_rows += rows
        self.batch = progress.get("batchId", self.batch)
        duration_ms = (progress.get("durationMs") or {}).get("triggerExecution")
        if "addBatch" in (progress.get("durationMs") or {}):
            self.batch_ms = duration_ms
        self._update_state(progress.get("stateOperators") or [])
        self.lag = lag_of(progress.get("sources") or [], self.lag)
        self.watermark_ms = _watermark_ms(progress, self.watermark_ms)
        self._sample(now_ms)
        return True

    def figures(self, state: str, now_ms: int, *, failures: int = 0, reason: str = "") -> Figures:
        rates = self._rates(now_ms)
        return Figures(
            flow=self.flow,
            state=state,
            batch=self.batch,
            input_rows_per_s=rates[0],
            output_rows_per_s=rates[1],
            batch_ms=self.batch_ms,
            lag=self.lag,
            state_bytes=self.state_bytes,
            state_rows=self.state_rows,
            watermark_ms=self.watermark_ms,
            input_rows=self.input_rows,
            output_rows=self.output_rows,
            late_rows=self.late_rows,
            failures=failures,
            reason=reason,
            dead_letters=self.dead_letters,
        )

    def _update_state(self, operators: list[Mapping[str, Any]]) -> None:
        if operators:
            self.state_bytes = sum(
                int(operator.get("memoryUsedBytes") or 0) for operator in operators
            )
            self.state_rows = sum(int(operator.get("numRowsTotal") or 0) for operator in operators)
            self.late_rows += sum(
                int(operator.get("numRowsDroppedByWatermark") or 0) for operator in operators
            )

    def _sample(self, now_ms: int) -> None:
        self._samples.append(_Sample(now_ms, self.input_rows, self.output_rows))
        while len(self._samples) > 2 and self._samples[1].at_ms < now_ms - WINDOW_MS:
            self._samples.popleft()

    def _rates(self, now_ms: int) -> tuple[float | None, float | None]:
        """Return rows per second since the oldest sample of the window.

        The rates are up to the newest sample, or up to now if that is long ago.
        """
        while len(self._samples) > 1 and self._samples[1].at_ms < now_ms - WINDOW_MS:
            self._samples.popleft()
        if len(self._samples) < 2:
            return (None, None) if self.batch is None else (0.0, 0.0)
        first, last = self._samples[0], self._samples[-1]
        idle = now_ms - last.at_ms > max(last.at_ms - self._samples[-2].at_ms, 1000)
        span_s = max((now_ms if idle else last.at_ms) - first.at_ms, 1) / 1000
        return (
            (last.input_rows - first.input_rows) / span_s,
            (self.output_rows - first.output_rows) / span_s,
        )


def lag_of(sources: list[Mapping[str, Any]], before: int | None) -> int | None:
    """Return the number of records between the flow's position and the ends of its topics."""
    total, known = 0, False
    for source in sources:
        ends, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        for partition, end in latest.items():
            if partition in ends:
                total += max(0, end - ends[partition])
                known = True
    return total if known else before


def _offsets(offsets: Any) -> dict[tuple[str, str], int]:
    """Parse ``{"topic": {"0": 5}}``, an object or its JSON text."""
    if isinstance(offsets, str):
        try:
            offsets = json.loads(offsets)
        except ValueError:
            return {}
    if not isinstance(offsets, Mapping):
        return {}
    return {
        (topic, partition): offset
        for topic, partitions in offsets.items()
        if isinstance(partitions, Mapping)
        for partition, offset in partitions.items()
        if isinstance(offset, int)
    }


def _watermark_ms(progress: Mapping[str, Any], before: int | None) -> int | None:
    text = (progress.get("eventTime") or {}).get("watermark")
    if not text:
        return before
    moment_ms = int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)
    return moment_ms if moment_ms > NO_WATERMARK_MS else before


COLUMNS = ("flow", "in rows/s", "out rows/s", "batch", "lag", "state", "watermark")


def cells(figures: Figures, now_ms: int) -> tuple[str, ...]:
    """Return a row of the live table."""
    return (
        figures.flow,
        _rate(figures.input_rows_per_s),
        _rate(figures.output_rows_per_s),
        _seconds(figures.batch_ms),
        _count(figures.lag),
        _bytes(figures.state_bytes),
        _age(figures.watermark_ms, now_ms),
    )


def failure_line(figures: Figures) -> str:
    """Return a line about a flow that failed, is retried, or runs again; empty for other flows."""
    if not figures.reason or not figures.failures:
        return ""
    state = {"retrying": "retrying, failed", "running": "running again, failed"}.get(
        figures.state, "failed"
    )
    return f"{figures.flow}  {state} {times(figures.failures)}: {figures.reason}"


def times(count: int) -> str:
    """Return ``once``, ``twice``, ``3 times``."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if 0 < value < 10 else f"{value:,.0f}"


def _seconds(value_ms: int | None) -> str:
    return "-" if value_ms is None else f"{value_ms / 1000:.1f} s"


def _count(value: int | None) -> str:
    if value is None:
        return "-"
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return str(value)


def _bytes(value: int | None) -> str:
    if value is None:
        return "-"
    for size, unit in ((1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")):
        if value >= size:
            return f"{value / size:.0f} {unit}"
    return f"{value} B"


def _age(moment_ms: int | None, now_ms: int) -> str:
    """Return the time behind or ahead of the clock, like ``-1 m 02 s``."""
    if moment_ms is None:
        return "-"
    seconds = round(abs(now_ms - moment_ms) / 1000)
    sign = "-" if moment_ms <= now_ms else "+"
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{sign}{days} d {hours:02} h"
    if hours:
        return f"{sign}{hours} h {minutes:02} m"
    return f"{sign}{minutes} m {seconds % 60:02} s" if minutes else f"{sign}{seconds} s"
