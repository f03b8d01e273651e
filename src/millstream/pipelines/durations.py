"""Parses durations such as ``1 hour 30 minutes``, and watermarks, ``COLUMN DELAY``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from millstream.pipelines.errors import PipelineError

_UNITS_MS = {
    "millisecond": 1,
    "ms": 1,
    "second": 1000,
    "sec": 1000,
    "s": 1000,
    "minute": 60_000,
    "min": 60_000,
    "hour": 3_600_000,
    "h": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
_QUOTED = re.compile(r"\s*`((?:[^`]|``)+)`\s+(.*)", re.DOTALL)
_PART = re.compile(r"\s*(\d+)\s*([a-z]+)\s*", re.IGNORECASE)


class Watermark(NamedTuple):
    """Rows may be dropped if ``column`` is older than its maximum by more than the delay."""

    column: str
    delay_ms: int

    @property
    def delay(self) -> str:
        """The delay in Spark's notation."""
        return f"{self.delay_ms} milliseconds"


def parse_duration_ms(text: str) -> int:
    """Parse ``1 minute`` as 60000. Raise PipelineError for anything but numbers with units."""
    total, position = 0, 0
    while position < len(text):
        match = _PART.match(text, position)
        unit = _unit(match[2]) if match else None
        if match is None or unit is None:
            raise PipelineError(
                f"{text!r} is not a duration",
                hint="write it like '30 seconds' or '1 hour 30 minutes'",
            )
        total += int(match[1]) * unit
        position = match.end()
    if not text.strip():
        raise PipelineError("an empty text is not a duration", hint="write it like '30 seconds'")
    return total


def parse_watermark(text: str) -> Watermark:
    """Parse ``at 1 minute`` as the column ``at`` and a minute.

    A column name with blanks is written between backticks.
    """
    column, _, delay = text.strip().partition(" ")
    if match := _QUOTED.match(text):
        column, delay = match[1].replace("``", "`"), match[2]
    try:
        return Watermark(column, parse_duration_ms(delay))
    except PipelineError:
        raise PipelineError(
            f"{text!r} is not a watermark",
            hint="write the column and the delay, like 'at 1 minute'",
        ) from None


def setting_s(conf: Mapping[str, object], name: str, default_s: float) -> float:
    """Return a setting that is a number of seconds."""
    value = conf.get(name, default_s)
    try:
        return float(str(value))
    except ValueError:
        raise PipelineError(
            f"{name} is {value!r}, not a number of seconds",
            hint=f"write it like {name}={default_s:g}",
        ) from None


def _unit(word: str) -> int | None:
    word = word.lower()
    return _UNITS_MS.get(word) or _UNITS_MS.get(word.removesuffix("s"))
