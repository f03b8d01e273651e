"""Where reading starts: ``earliest``, ``latest``, an offset, the last N records, or a time.

As text: ``earliest``, ``latest``, ``1200`` (an offset), ``-50`` (the last 50 records of each
partition), ``@1700000000000`` (milliseconds), ``2026-03-01T12:00:00Z`` or
``2026-03-01T12:00:00+01:00``, and ``-90s``, ``-15m``, ``-2h``, ``-7d`` (that long ago). A time
without a zone (``2026-03-01T12:00``, ``2026-03-01``) is in the local time zone of this process.
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
_NUMBERED: dict[str, Literal["offset", "last", "timestamp"]] = {
    "": "offset",
    "-": "last",
    "@": "timestamp",
}
_LAST_MS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Position:
    """A position in every partition.

    ``value`` is the offset, the number of records or the milliseconds, if the kind has one.
    """

    kind: Literal["earliest", "latest", "offset", "last", "timestamp"]
    value: int = 0

    @classmethod
    def of(cls, text: str | int | Position, *, now_ms: int | None = None) -> Position:
        """Parse a text or a number: an offset, or -N for the last N records."""
        if isinstance(text, Position):
            return text
        position = _parse(str(text).strip(), now_ms)
        if position is None:
            raise ClientError(
                f"{text!r} is not a position to read from",
                hint="use earliest, latest, an offset, -N for the last N, -15m, @MILLISECONDS, "
                "2026-03-01T12:00:00Z (UTC) or 2026-03-01T12:00:00 (local time)",
            )
        return position

    def resolve(
        self, partitions: Sequence[TopicPartition], offsets: OffsetsAdmin, isolation: Isolation
    ) -> dict[TopicPartition, int]:
        """Return the offset to start from in each partition."""
        if self.kind in ("offset", "last"):
            return self._resolve_within(partitions, offsets, isolation)
        if self.kind == "timestamp":
            return self._resolve_timestamp(partitions, offsets, isolation)
        spec: Spec = "latest" if self.kind == "latest" else "earliest"
        listed = offsets.list(dict.fromkeys(partitions, spec), isolation=isolation)
        return {partition: result.offset for partition, result in listed.items()}

    def _resolve_within(
        self, partitions: Sequence[TopicPartition], offsets: OffsetsAdmin, isolation: Isolation
    ) -> dict[TopicPartition, int]:
        """Replace an offset that a partition does not have by the nearest one it has.

        The client alone would start over at the beginning in both cases (auto.offset.reset).
        """
        first = offsets.list(dict.fromkeys(partitions, "earliest"), isolation=isolation)
        end = offsets.list(dict.fromkeys(partitions, "latest"), isolation=isolation)
        resolved = {}
        for partition in partitions:
            offset = self.value if self.kind == "offset" else end[partition].offset - self.value
            resolved[partition] = min(max(first[partition].offset, offset), end[partition].offset)
        return resolved

    def _resolve_timestamp(
        self, partitions: Sequence[TopicPartition], offsets: OffsetsAdmin, isolation: Isolation
    ) -> dict[TopicPartition, int]:
        """Start at the end of a partition whose records are all older."""
        listed = offsets.list(dict.fromkeys(partitions, self.value), isolation=isolation)
        older = [partition for partition in partitions if listed[partition].offset < 0]
        end = offsets.list(dict.fromkeys(older, "latest"), isolation=isolation)
        return {
            partition: (end if partition in end else listed)[partition].offset
            for partition in partitions
        }


def _parse(text: str, now_ms: int | None) -> Position | None:
    if text in ("earliest", "beginning"):
        return Position("earliest")
    if text in ("latest", "end"):
        return Position("latest")
    if number := _NUMBER.fullmatch(text):
        kind, value = _NUMBERED[number[1]], int(number[2])
        return _at_time(value) if kind == "timestamp" else Position(kind, value)
    if ago := _AGO.fullmatch(text):
        now = int(time.time() * 1000) if now_ms is None else now_ms
        return _at_time(now - int(ago[1]) * _UNITS_MS[ago[2]])
    return _parse_date(text)


def _at_time(timestamp_ms: int) -> Position:
    """Use 0 for times before 1970: negative timestamps have other meanings in the protocol."""
    return Position("timestamp", min(max(timestamp_ms, 0), _LAST_MS))


def local_moment(text: str) -> datetime | None:
    """Return a date or time without a zone in the local zone; None for every other position."""
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
        return _at_time(int(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError):
        return None
