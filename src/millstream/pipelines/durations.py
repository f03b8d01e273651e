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
        found = _PART.match(text, position)
        unit = _unit(found[2]) if found else None
        if found is None or unit is None:
            raise PipelineError(
                f"{text!r} is not a time", hint="write it like '30 seconds' or '1 hour 30 minutes'"
            )
        total += int(found[1]) * unit
        position = found.end()
    if not text.strip():
        raise PipelineError("an empty text is not a time", hint="write it like '30 seconds'")
    return total


def parse_watermark(text: str) -> Watermark:
    """Parse ``at 1 minute`` as the column ``at`` and a minute.

    A column name with blanks is written between backticks.
    """
    column, _, delay = text.strip().partition(" ")
    if found := _QUOTED.match(text):
        column, delay = found[1].replace("``", "`"), found[2]
    try:
        return Watermark(column, parse_duration_ms(delay))
    except PipelineError:
        raise PipelineError(
            f"{text!r} is not a watermark", hint="write the column and the delay, like 'at 1 minute'"
        ) from None


def setting_s(conf: Mapping[str, object], name: str, default_s: float) -> float:
    """Return a setting that is a number of seconds."""
    given = conf.get(name, default_s)
    try:
        return float(str(given))
    except ValueError:
        raise PipelineError(
            f"{name} is {given!r}, not a number of seconds", hint=f"write it like {name}={default_s:g}"
        ) from None


def _unit(word: str) -> int | None:
    word = word.lower()
    return _UNITS_MS.get(word) or _UNITS_MS.get(word.removesuffix("s"))
