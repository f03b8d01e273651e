"""Where reading starts: ``earliest``, ``latest``, an offset, the last N, or a moment.

As text: ``earliest``, ``latest``, ``1200`` (that offset), ``-50`` (the last 50 of each partition), ``@1700000000000``
(milliseconds), ``2026-03-01T12:00:00Z`` or ``2026-03-01T12:00:00+01:00``, ``-90s``, ``-15m``, ``-2h``, ``-7d`` (that long ago).
A time without a zone (``2026-03-01T12:00``, ``2026-03-01``) is in the local time zone of this process.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from millstream.client.errors import ClientError
from millstream.core.types import TopicPartition

if TYPE_CHECKING:
    from millstream.client.admin.offsets import Isolation, OffsetsAdmin, Spec

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"-([0-9]+)([smhd])")
_NUMBER = re.compile(r"([@-]?)([0-9]+)")
_NUMBERED: dict[str, Literal["offset", "last", "timestamp"]] = {"": "offset", "-": "last", "@": "timestamp"}
_LAST_MS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Position:
    """A place in every partition; ``value`` is the offset, the count or the milliseconds where the kind has one."""

    kind: Literal["earliest", "latest", "offset", "last", "timestamp"]
    value: int = 0

    @classmethod
    def of(cls, text: str | int | Position, *, now_ms: int | None = None) -> Position:
        """The position that a text or a number (an offset, or -N for the last N) means."""
        if isinstance(text, Position):
            return text
        position = _parse(str(text).strip(), now_ms)
        if position is None:
            raise ClientError(
                f"{text!r} is not a position to read from",
                hint="use earliest, latest, an offset, -N for the last N, -15m, @MILLISECONDS, 2026-03-01T12:00:00Z (UTC) "
                "or 2026-03-01T12:00:00 (local time)",
            )
        return position

    def resolve(
        self, partitions: Sequence[TopicPartition], offsets: OffsetsAdmin, isolation: Isolation
    ) -> dict[TopicPartition, int]:
        """The offset to start from in each partition."""
        if self.kind in ("offset", "last"):
            return self._resolve_within(partitions, offsets, isolation)
        if self.kind == "timestamp":
            return self._resolve_timestamp(partitions, offsets, isolation)
        spec: Spec = "latest" if self.kind == "latest" else "earliest"
        found = offsets.list(dict.fromkeys(partitions, spec), isolation=isolation)
        return {partition: answer.offset for partition, answer in found.items()}

    def _resolve_within(
        self, partitions: Sequence[TopicPartition], offsets: OffsetsAdmin, isolation: Isolation
    ) -> dict[TopicPartition, int]:
        """An offset that a partition no longer or not yet has becomes the nearest that it has.

        Left to the client, both would start over at the beginning (auto.offset.reset).
        """
        first = offsets.list(dict.fromkeys(partitions, "earliest"), isolation=isolation)
        end = offsets.list(dict.fromkeys(partitions, "latest"), isolation=isolation)
        resolved = {}
        for one in partitions:
            wanted = self.value if self.kind == "offset" else end[one].offset - self.value
            resolved[one] = min(max(first[one].offset, wanted), end[one].offset)
        return resolved

    def _resolve_timestamp(
        self, partitions: Sequence[TopicPartition], offsets: OffsetsAdmin, isolation: Isolation
    ) -> dict[TopicPartition, int]:
        """A partition whose records are all older starts at its end."""
        found = offsets.list(dict.fromkeys(partitions, self.value), isolation=isolation)
        late = [one for one in partitions if found[one].offset < 0]
        end = offsets.list(dict.fromkeys(late, "latest"), isolation=isolation)
        return {one: (end if one in end else found)[one].offset for one in partitions}


def _parse(text: str, now_ms: int | None) -> Position | None:
    if text in ("earliest", "beginning"):
        return Position("earliest")
    if text in ("latest", "end"):
        return Position("latest")
    if number := _NUMBER.fullmatch(text):
        kind, value = _NUMBERED[number[1]], int(number[2])
        return _moment(value) if kind == "timestamp" else Position(kind, value)
    if ago := _AGO.fullmatch(text):
        now = int(time.time() * 1000) if now_ms is None else now_ms
        return _moment(now - int(ago[1]) * _UNITS_MS[ago[2]])
    return _parse_date(text)


def _moment(timestamp_ms: int) -> Position:
    """What lies before 1970 is its first millisecond: in the protocol negative times mean something else."""
    return Position("timestamp", min(max(timestamp_ms, 0), _LAST_MS))


def local_moment(text: str) -> datetime | None:
    """Return a date or time without a zone with the local zone that it is read in; None for every other position."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    if moment.tzinfo is not None or _parse(text.strip(), 0) != _parse_date(text.strip()):
        return None  # 20260301 is an offset
    try:
        return moment.astimezone()
    except (ValueError, OverflowError):
        return None


def _parse_date(text: str) -> Position | None:
    try:
        return _moment(int(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError):
        return None
