"""The corruption matrix: every file of a data directory, damaged in every way, after a clean stop
and after a kill.

A cell copies a directory, damages one file, starts a broker and compares what clients see with what
they saw before. Allowed: everything as before; or the partition of the damaged file refuses what it
cannot serve; or, after a kill, it has lost its unflushed tail. Both with a message that names the
partition or the file. Everything else is a violation.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

from millstream.broker.app import StartError
from millstream.core.errors import ErrorCode
from robust import damage_world as world
from robust.damage_world import INTERNAL, PARTITIONS, Reading, Seen
from support.raw import RawClient, produce

# Whose directory it is, and what it should hold. No partition can be served without them.
IDENTITY = ("meta.properties", "millstream.store")
LOG_STARTS = "log-start-offset-checkpoint"
REFUSALS = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE)
NO_COORDINATOR = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


class Cell(NamedTuple):
    """One damage to one file."""

    file: str
    damage: str
    kill: bool

    @property
    def partition(self) -> tuple[str, int] | None:
        """Whose file it is; None for those that concern the whole directory."""
        directory, slash, _ = self.file.rpartition("/")
        topic, _, index = directory.rpartition("-")
        return (topic, int(index)) if slash else None

    def __str__(self) -> str:
        return f"{self.file}-{self.damage}-{'killed' if self.kill else 'stopped'}"


def cells(data: Path, *, kill: bool) -> list[Cell]:
    return [Cell(file, damage, kill) for file, damage in world.damages(data)]


def violations(
    cell: Cell, template: Path, scratch: Path, before: Seen, *, seed: str = ""
) -> list[str]:
    """What is wrong with a broker that starts with this damage, and starts once more after a clean
    stop.
    """
    data = world.copy(template, scratch)
    world.DAMAGES[cell.damage](data / cell.file, random.Random(f"{cell}{seed}"))
    found = _start_and_check(cell, data, before)
    return found or [
        f"second start: {text}" for text in _start_and_check(cell, data, before, again=True)
    ]


def _start_and_check(cell: Cell, data: Path, before: Seen, *, again: bool = False) -> list[str]:
    with world.Warnings() as warnings:
        try:
            with world.started(data) as broker:
                found = _judge(cell, before, world.observe(broker.bootstrap), warnings, again)
                found += _writable(cell, broker.bootstrap) if again else []
        except StartError as error:
            named = cell.file in IDENTITY and cell.file in str(error)
            return [] if named else [f"the broker does not start: {error}"]
        except Exception as error:
            return [f"{type(error).__name__}: {error}"]
    return found + [f"a traceback in the log: {text}" for text in warnings.tracebacks]


def _judge(
    cell: Cell, before: Seen, after: Seen, warnings: world.Warnings, again: bool
) -> list[str]:
    found = []
    named = cell.file.rpartition("/")[2] in warnings.text or (
        cell.partition is not None and "{}-{}".format(*cell.partition) in warnings.text
    )
    for tp in PARTITIONS:
        for kind in ("committed", "uncommitted"):
            was, is_ = getattr(before, kind)[tp], getattr(after, kind)[tp]
            if was == is_:
                continue
            text = f"{tp}, read {kind}: {_difference(was, is_)}"
            if not _may_differ(cell, tp, was, is_, before.flushed):
                found.append(text)
            elif not named and not again:
                found.append(f"no message tells of it: {text}")
        if before.times[tp] != after.times[tp] and not _times_may_differ(
            cell, tp, before.times[tp], after.times[tp]
        ):
            found.append(f"{tp}, offsets by time: {before.times[tp]} became {after.times[tp]}")
        if not _epochs_are_right(cell, tp, before, after):
            found.append(
                f"{tp}, end of leader epoch 0: {before.epochs[tp]} became {after.epochs[tp]}"
            )
    found += _judge_coordinators(cell, before, after, again)
    return found


def _may_differ(
    cell: Cell, tp: tuple[str, int], was: Reading, is_: Reading, flushed: dict[tuple[str, int], int]
) -> bool:
    if cell.kill and cell.file == LOG_STARTS:
        # Deleted records are visible again: nothing else knew of the deletion yet.
        return not is_.error and is_.rows[-len(was.rows) :] == was.rows
    if cell.partition != tp or is_.rows != was.rows[: len(is_.rows)]:
        return False
    if is_.error in REFUSALS:
        return True
    # After a kill the tail may look like a write that never finished, but not what had been flushed
    # before.
    kept = sum(offset < flushed.get(tp, 0) for offset, _key, _value in was.rows)
    return cell.kill and not is_.error and len(is_.rows) >= kept


def _times_may_differ(cell: Cell, tp: tuple[str, int], was: list, is_: list) -> bool:  # type: ignore[type-arg]
    if cell.kill and cell.file == LOG_STARTS:
        return True
    if cell.partition == (INTERNAL[1], 0) and _lost_tail(cell):
        # The coordinator finishes a transaction once more: another marker, at the end.
        return all(
            is_[n] >= was[n] if n in world.AT_THE_END else is_[n] == was[n] for n in range(len(was))
        )
    refused = all(new[0] in REFUSALS or new == old for old, new in zip(was, is_, strict=True))
    return cell.partition == tp and (refused or cell.kill)


def _epochs_are_right(cell: Cell, tp: tuple[str, int], before: Seen, after: Seen) -> bool:
    """Whether the end of the first leader epoch is what it was, or where a lost tail began."""
    was, is_ = before.epochs[tp], after.epochs[tp]
    if was == is_ or (cell.partition == tp and is_[0] in REFUSALS):
        return True
    if cell.partition == (INTERNAL[1], 0) and _lost_tail(cell):
        return is_[:2] == was[:2] and is_[2] >= was[2]  # another marker, at the end
    shorter = len(after.uncommitted[tp].rows) < len(before.uncommitted[tp].rows)
    return cell.partition == tp and cell.kill and shorter and is_[:2] == was[:2] and is_[2] < was[2]


def _judge_coordinators(cell: Cell, before: Seen, after: Seen, again: bool) -> list[str]:
    found = []
    if after.group != before.group and not (
        cell.partition == (INTERNAL[0], 0)
        and (after.group[0][0] in NO_COORDINATOR or _lost_tail(cell))
    ):
        found.append(f"committed offsets: {before.group} became {after.group}")
    error, producer_id, epoch = after.transaction
    _, producer_before, epoch_before = before.transaction
    expected = (0, producer_before, epoch_before + (2 if again else 1))
    if (error, producer_id, epoch) != expected and not (
        cell.partition == (INTERNAL[1], 0) and (error in NO_COORDINATOR or _lost_tail(cell))
    ):
        found.append(f"the transactional producer: {before.transaction} became {after.transaction}")
    return found


def _lost_tail(cell: Cell) -> bool:
    """Whether unflushed records may be gone: they were written, and the file that held them is
    damaged.
    """
    return cell.kill and cell.file.endswith(".log")


def _writable(cell: Cell, bootstrap: str) -> list[str]:
    found = []
    with RawClient(bootstrap) as client:
        for topic, index in PARTITIONS:
            answer = produce(client, topic, index, world.batch(99))
            mine = cell.partition == (topic, index)
            if answer.error_code and not (mine and answer.error_code in REFUSALS):
                found.append(
                    f"{topic}-{index} cannot be written: {ErrorCode.of(answer.error_code)!r}"
                )
    return found


def _difference(was: Reading, is_: Reading) -> str:
    error = f", error {ErrorCode.of(is_.error)!r}" if is_.error else ""
    wrong = next((new for old, new in zip(was.rows, is_.rows, strict=False) if old != new), None)
    if wrong is not None:
        return f"{wrong} is served, which nobody wrote there{error}"
    return f"{len(is_.rows)} records instead of {len(was.rows)}, from {is_.start}{error}"
