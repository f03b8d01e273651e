"""Resetting a group: which partitions, to which offsets. Planned first, so that it can be shown before it is done."""

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
_ISO = re.compile(r"P(?:([0-9]+)D)?(?:T(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+(?:\.[0-9]+)?)S)?)?", re.I)

Kind = Literal["earliest", "latest", "offset", "timestamp", "shift"]


def parse_duration(text: str) -> int:
    """Milliseconds of ``90s``, ``15m``, ``1h30m``, ``2d`` or ISO 8601's ``PT1H``, ``P1DT12H``; ClientError for anything else."""
    plain = text.strip()
    if plain and _SHORT.sub("", plain.lower()) == "":
        return sum(int(count) * _UNITS_MS[unit] for count, unit in _SHORT.findall(plain.lower()))
    found = _ISO.fullmatch(plain)
    if found is None or not any(found.groups()):
        raise ClientError(f"{text!r} is not a duration", hint="use 90s, 15m, 1h30m, 2d or PT1H, P1DT12H")
    days, hours, minutes = (int(one or 0) for one in found.groups()[:3])
    return ((days * 24 + hours) * 60 + minutes) * 60_000 + round(float(found[4] or 0) * 1000)


@dataclass(frozen=True, slots=True)
class Reset:
    """Where to: ``value`` is the offset, the milliseconds or the number of records where the kind has one."""

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
                f"{text!r} is not a moment",
                hint="give a date and a time, as in 2026-03-01T12:00:00Z (UTC), 2026-03-01T12:00:00 (local time) "
                "or @1772366400000 (milliseconds)",
            )
        return cls("timestamp", position.value)

    @classmethod
    def by_duration(cls, text: str, *, now_ms: int | None = None) -> Reset:
        now = int(time.time() * 1000) if now_ms is None else now_ms
        return cls("timestamp", max(0, now - parse_duration(text)))


class Change(NamedTuple):
    """One partition of a plan. ``limited`` where the partition has no such offset and the nearest it has is taken."""

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
    """What a reset would set: of these partitions, or of all that the group has committed. Nothing is changed.

    GroupActive while the group has members: they would commit over it.
    """
    found = admin.groups.inactive(group, doing=f"reset the offsets of group {group!r}")
    if found is None and partitions is None:
        raise unknown_group(group, admin.groups.names())
    committed = admin.groups.committed(group)
    wanted = sorted(committed if partitions is None else set(partitions))
    if reset.kind == "shift":
        _check_committed(group, wanted, committed)
    first = _offsets(admin, wanted, "earliest")
    end = _offsets(admin, wanted, "latest")
    targets = _targets(admin, reset, wanted, committed, first, end)
    changes = []
    for one in wanted:
        new = min(max(first[one], targets[one]), end[one])
        changes.append(Change(one, committed.get(one), new, new != targets[one]))
    return changes


def execute(admin: Admin, group: str, changes: Sequence[Change]) -> None:
    """Do what was planned."""
    admin.groups.alter(group, {one.partition: one.new for one in changes})


def _check_committed(
    group: str, wanted: Sequence[TopicPartition], committed: Mapping[TopicPartition, int]
) -> None:
    missing = [one for one in wanted if one not in committed]
    if missing:
        raise ClientError(
            f"group {group!r} has no committed offset in {', '.join(map(str, missing[:5]))} to shift from",
            hint="use --to-earliest, --to-latest or --to-offset there",
        )


def _targets(
    admin: Admin,
    reset: Reset,
    wanted: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, int],
    first: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
) -> Mapping[TopicPartition, int]:
    if reset.kind == "earliest":
        return first
    if reset.kind == "latest":
        return end
    if reset.kind == "offset":
        return dict.fromkeys(wanted, reset.value)
    if reset.kind == "shift":
        return {one: committed[one] + reset.value for one in wanted}
    found = _offsets(admin, wanted, reset.value)
    return {one: found[one] if found[one] >= 0 else end[one] for one in wanted}


def _offsets(admin: Admin, partitions: Sequence[TopicPartition], spec: Spec) -> dict[TopicPartition, int]:
    return {one: at.offset for one, at in admin.offsets.list(dict.fromkeys(partitions, spec)).items()}
