"""Resetting the offsets of a group.

A reset is planned first, so that it can be shown before it is executed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from millstream.client.consuming.positions import Position
from millstream.client.errors import ClientError, unknown_group
from millstream.core.types import TopicPartition

if TYPE_CHECKING:
    from millstream.client.admin.client import Admin
    from millstream.client.admin.offsets import Spec

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SHORT = re.compile(r"([0-9]+)(ms|[smhd])")
_ISO = re.compile(
    r"P(?:([0-9]+)D)?(?:T(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+(?:\.[0-9]+)?)S)?)?", re.I
)

Kind = Literal["earliest", "latest", "offset", "timestamp", "shift"]


def parse_duration(text: str) -> int:
    """Return the milliseconds of a duration; ClientError if the text is not one.

    Accepts ``90s``, ``15m``, ``1h30m``, ``2d``, and ISO 8601's ``PT1H``, ``P1DT12H``.
    """
    plain = text.strip()
    if plain and _SHORT.sub("", plain.lower()) == "":
        return sum(int(count) * _UNITS_MS[unit] for count, unit in _SHORT.findall(plain.lower()))
    match = _ISO.fullmatch(plain)
    if match is None or not any(match.groups()):
        raise ClientError(
            f"{text!r} is not a duration", hint="use 90s, 15m, 1h30m, 2d or PT1H, P1DT12H"
        )
    days, hours, minutes = (int(digits or 0) for digits in match.groups()[:3])
    return ((days * 24 + hours) * 60 + minutes) * 60_000 + round(float(match[4] or 0) * 1000)


@dataclass(frozen=True, slots=True)
class Reset:
    """The target. ``value`` is an offset, a time in milliseconds or a number of records."""

    kind: Kind
    value: int = 0

    @classmethod
    def to_datetime(cls, text: str) -> Reset:
        try:
            position = Position.of(text)
        except ClientError:
            position = None
        if position is None or position.kind != "timestamp":
            raise ClientError(
                f"{text!r} is not a point in time",
                hint="give a date and a time, as in 2026-03-01T12:00:00Z (UTC), "
                "2026-03-01T12:00:00 (local time) or @1772366400000 (milliseconds)",
            )
        return cls("timestamp", position.value)

    @classmethod
    def by_duration(cls, text: str, *, now_ms: int | None = None) -> Reset:
        now = int(time.time() * 1000) if now_ms is None else now_ms
        return cls("timestamp", max(0, now - parse_duration(text)))


class Change(NamedTuple):
    """One partition of a plan; ``limited`` if the target was out of range and was adjusted."""

    partition: TopicPartition
    current: int | None
    new: int
    limited: bool

    @property
    def changes(self) -> bool:
        return self.new != self.current


def plan(
    admin: Admin, group: str, reset: Reset, partitions: Iterable[TopicPartition] | None = None
) -> list[Change]:
    """Return the changes of a reset, for these partitions or all that the group has committed.

    Nothing is changed. Raise GroupActive while the group has members: they would commit over it.
    """
    inactive = admin.groups.inactive(group, doing=f"reset the offsets of group {group!r}")
    if inactive is None and partitions is None:
        raise unknown_group(group, admin.groups.names())
    committed = admin.groups.committed(group)
    selected = sorted(committed if partitions is None else set(partitions))
    if reset.kind == "shift":
        _check_committed(group, selected, committed)
    first = _offsets(admin, selected, "earliest")
    end = _offsets(admin, selected, "latest")
    targets = _targets(admin, reset, selected, committed, first, end)
    changes = []
    for partition in selected:
        new = min(max(first[partition], targets[partition]), end[partition])
        changes.append(Change(partition, committed.get(partition), new, new != targets[partition]))
    return changes


def execute(admin: Admin, group: str, changes: Sequence[Change]) -> None:
    """Commit the planned offsets."""
    admin.groups.alter(group, {change.partition: change.new for change in changes})


def _check_committed(
    group: str, partitions: Sequence[TopicPartition], committed: Mapping[TopicPartition, int]
) -> None:
    missing = [partition for partition in partitions if partition not in committed]
    if missing:
        raise ClientError(
            f"group {group!r} has no committed offset to shift from in {', '.join(map(str, missing[:5]))}",
            hint="use --to-earliest, --to-latest or --to-offset there",
        )


def _targets(
    admin: Admin,
    reset: Reset,
    partitions: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, int],
    first: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
) -> Mapping[TopicPartition, int]:
    if reset.kind == "earliest":
        return first
    if reset.kind == "latest":
        return end
    if reset.kind == "offset":
        return dict.fromkeys(partitions, reset.value)
    if reset.kind == "shift":
        return {partition: committed[partition] + reset.value for partition in partitions}
    offsets = _offsets(admin, partitions, reset.value)
    return {
        partition: offsets[partition] if offsets[partition] >= 0 else end[partition]
        for partition in partitions
    }


def _offsets(
    admin: Admin, partitions: Sequence[TopicPartition], spec: Spec
) -> dict[TopicPartition, int]:
    return {
        partition: result.offset
        for partition, result in admin.offsets.list(dict.fromkeys(partitions, spec)).items()
    }
