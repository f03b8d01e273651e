"""Checks of what a cluster did and holds, beside its clients' history: plain data in, violations out."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from millstream.sim.checks.history import Key, Offset, Value
from millstream.sim.checks.history_checks import Violation


class Sample(NamedTuple):
    """A partition as one broker saw it at one time."""

    time: float
    node: int
    incarnation: int
    key: Key
    leader_epoch: int
    leads: bool
    high_watermark: Offset
    log_end: Offset


class Batch(NamedTuple):
    """A batch as it lies in a log."""

    base_offset: Offset
    last_offset: Offset
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    commit: bool | None  # a marker's outcome; None for data
    values: tuple[Value, ...]
    checksum: int = 0
    # Of records with a key: where, which, and whether it has a value.
    keyed: tuple[tuple[Offset, bytes, bool], ...] = ()


class Replica(NamedTuple):
    """A whole log at the end of a run."""

    node: int
    high_watermark: Offset
    log_start: Offset
    batches: Sequence[Batch]


_NO_END: Offset = 1 << 62
NOTHING = Replica(-1, 0, 0, ())


class Ownership(NamedTuple):
    """What a member was given in a generation of its group."""

    group: str
    generation: int
    member: str
    keys: tuple[Key, ...]


class OffsetEvent(NamedTuple):
    """A committed offset that was acknowledged, or that was fetched."""

    started: float
    ended: float
    group: str
    key: Key
    offset: Offset
    fetched: bool
    who: str = ""


class StartEvent(NamedTuple):
    """A log's first offset, as a deletion of records was acknowledged or as somebody was told."""

    started: float
    ended: float
    key: Key
    offset: Offset
    told: bool


class Incarnation(NamedTuple):
    """One life of a topic that is deleted and made again: what was acknowledged for certain, and what was read by its id."""

    topic_id: bytes
    acknowledged: frozenset[Value]
    read: frozenset[Value]


def acknowledged_survive(
    acknowledged: Iterable[tuple[Key, Offset, Value]], logs: Mapping[Key, Replica]
) -> Iterator[Violation]:
    """A record that was acknowledged is where it was said to be. A key without a log has lost everything."""
    for key, offset, value, found in _elsewhere(acknowledged, logs):
        told = f"offset {offset} was acknowledged for {value} and holds {found}"
        yield Violation("acknowledged-lost", key, told)


def reads_survive(
    read: Iterable[tuple[Key, Offset, Value]], logs: Mapping[Key, Replica]
) -> Iterator[Violation]:
    """A record that anybody was shown stays where it was, also one that its producer was told nothing about."""
    for key, offset, value, found in _elsewhere(read, logs):
        yield Violation("read-lost", key, f"{value} was read at {offset}, which holds {found}")


def _elsewhere(
    rows: Iterable[tuple[Key, Offset, Value]], logs: Mapping[Key, Replica]
) -> Iterator[tuple[Key, Offset, Value, Value | None]]:
    """Those that are not at their offsets, with what is there. What was deleted from a log's beginning is nobody's loss."""
    held: dict[Key, dict[Offset, Value]] = {
        key: {offset: value for batch in replica.batches for offset, value in _rows(batch)}
        for key, replica in logs.items()
    }
    for key, offset, value in rows:
        if offset >= logs.get(key, NOTHING).log_start:
            found = held.get(key, {}).get(offset)
            if found != value:
                yield key, offset, value, found


def _rows(batch: Batch) -> Iterator[tuple[Offset, Value]]:
    return ((batch.base_offset + i, value) for i, value in enumerate(batch.values))


def high_watermarks_advance(samples: Iterable[Sample]) -> Iterator[Violation]:
    """A leader's high watermark never moves back while it leads, and never lies beyond its log."""
    last: dict[tuple[Key, int, int, int], Offset] = {}
    for sample in samples:
        if sample.high_watermark > sample.log_end:
            told = f"{sample.high_watermark} beyond the end {sample.log_end} on {sample.node}"
            yield Violation("high-watermark-beyond-end", sample.key, told)
        if not sample.leads:
            continue
        place = (sample.key, sample.leader_epoch, sample.node, sample.incarnation)
        if sample.high_watermark < last.get(place, 0):
            told = f"from {last[place]} to {sample.high_watermark} on {sample.node} in epoch {sample.leader_epoch}"
            yield Violation("high-watermark-back", sample.key, told)
        last[place] = sample.high_watermark


def one_leader_per_epoch(samples: Iterable[Sample]) -> Iterator[Violation]:
    leaders: dict[tuple[Key, int], int] = {}
    for sample in samples:
        if sample.leads:
            first = leaders.setdefault((sample.key, sample.leader_epoch), sample.node)
            if first != sample.node:
                told = f"{first} and {sample.node} both lead in epoch {sample.leader_epoch}"
                yield Violation("two-leaders", sample.key, told)


def replicas_agree(logs: Mapping[Key, Sequence[Replica]]) -> Iterator[Violation]:
    """Of any two replicas the same batches lie at the same offsets, below the lower of their high watermarks: a third that is behind
    does not hide that they differ."""
    for key, replicas in logs.items():
        for one, other in itertools.combinations(replicas, 2):
            until = min(one.high_watermark, other.high_watermark)
            since = max(one.log_start, other.log_start)
            ours, theirs = _between(one, since, until), _between(other, since, until)
            if ours != theirs:
                first = next(a or b for a, b in _pairs(ours, theirs) if a != b)
                told = f"{one.node} and {other.node} differ below {until}, first at {first}"
                yield Violation("replicas-differ", key, told)


def _between(replica: Replica, since: Offset, until: Offset) -> list[Batch]:
    return [b for b in replica.batches if b.base_offset >= since and b.last_offset < until]


def _pairs(a: list[Batch], b: list[Batch]) -> Iterator[tuple[Batch | None, Batch | None]]:
    for i in range(max(len(a), len(b))):
        yield (a[i] if i < len(a) else None), (b[i] if i < len(b) else None)


def compacted_agree(logs: Mapping[Key, Sequence[Replica]]) -> Iterator[Violation]:
    """Replicas of a compacted topic may have dropped different records, but the last value of a key only for a later record of it. What transactions
    wrote is left out: what of it was aborted is dropped without one."""
    for key, replicas in logs.items():
        last = [_last_by_key(one, _NO_END) for one in replicas]
        for (one, _), (other, theirs) in itertools.permutations(zip(replicas, last, strict=True), 2):
            until = min(one.high_watermark, other.high_watermark)
            for name, (offset, plain) in _last_by_key(one, until).items():
                there = theirs.get(name, (-1, False))[0] >= offset or offset < other.log_start
                if plain and not there:
                    told = f"{other.node} lacks the last value of {name!r}, at {offset}, which {one.node} has"
                    yield Violation("value-missing", key, told)


def _last_by_key(replica: Replica, until: Offset) -> dict[bytes, tuple[Offset, bool]]:
    """Where the last record of each key is, and whether it is a value outside of transactions."""
    found: dict[bytes, tuple[Offset, bool]] = {}
    for batch in replica.batches:
        for offset, name, has_value in batch.keyed:
            if offset < until:
                found[name] = offset, has_value and not batch.transactional
    return found


def offsets_rise(logs: Mapping[Key, Replica]) -> Iterator[Violation]:
    for key, replica in logs.items():
        for before, after in zip(replica.batches, replica.batches[1:], strict=False):
            if after.base_offset <= before.last_offset:
                yield Violation("offsets-overlap", key, f"{after.base_offset} after {before.last_offset}")


def sequences_once(logs: Mapping[Key, Replica]) -> Iterator[Violation]:
    """No batch of an idempotent producer lies in a log twice, and none is missing between two of an epoch."""
    for key, replica in logs.items():
        next_sequence: dict[tuple[int, int], int] = {}
        epochs: dict[int, int] = {}
        for batch in replica.batches:
            if batch.producer_id < 0:
                continue
            if batch.producer_epoch < epochs.get(batch.producer_id, -1):
                yield Violation("epoch-back", key, f"{batch} after epoch {epochs[batch.producer_id]}")
            epochs[batch.producer_id] = batch.producer_epoch
            if batch.commit is not None or batch.base_sequence < 0:
                continue
            place = (batch.producer_id, batch.producer_epoch)
            expected = next_sequence.get(place)
            if expected is not None and batch.base_sequence != expected:
                told = f"producer {place} goes on with {batch.base_sequence}, not {expected}, at {batch.base_offset}"
                yield Violation("sequence", key, told)
            next_sequence[place] = batch.base_sequence + len(batch.values)


def committed_values(batches: Iterable[Batch]) -> tuple[set[Value], set[Value], set[Value]]:
    """The values of a log that are committed, aborted, and neither yet."""
    committed: set[Value] = set()
    aborted: set[Value] = set()
    open_values: dict[int, list[Value]] = defaultdict(list)
    for batch in batches:
        if batch.commit is not None:
            (committed if batch.commit else aborted).update(open_values.pop(batch.producer_id, ()))
        elif batch.transactional:
            open_values[batch.producer_id].extend(batch.values)
        else:
            committed.update(batch.values)
    return committed, aborted, {value for values in open_values.values() for value in values}


def reads_are_committed(
    read: Mapping[Key, Iterable[Value]], logs: Mapping[Key, Replica]
) -> Iterator[Violation]:
    """What read_committed consumers saw is committed in the log: neither aborted, nor of a transaction that is still open."""
    for key, values in read.items():
        committed, aborted, still_open = committed_values(logs.get(key, NOTHING).batches)
        for value in values:
            if value in aborted and value not in committed:
                yield Violation("aborted-read", key, f"{value} is aborted and was read")
            elif value in still_open and value not in committed:
                yield Violation("open-read", key, f"{value} is in a transaction without an end and was read")


def one_owner_per_generation(given: Iterable[Ownership]) -> Iterator[Violation]:
    owners: dict[tuple[str, int, Key], str] = {}
    for row in given:
        for key in row.keys:
            first = owners.setdefault((row.group, row.generation, key), row.member)
            if first != row.member:
                told = f"{first} and {row.member} own it in generation {row.generation} of {row.group}"
                yield Violation("two-owners", key, told)


def commits_advance(events: Iterable[OffsetEvent]) -> Iterator[Violation]:
    """Clients that never commit back never find an offset below what was known before they asked."""
    by_place: dict[tuple[str, Key], list[OffsetEvent]] = defaultdict(list)
    for event in events:
        by_place[event.group, event.key].append(event)
    for (group, key), rows in by_place.items():
        rows.sort(key=lambda event: event.ended)
        for event in (row for row in rows if row.fetched):
            known = max((e.offset for e in rows if e.ended <= event.started), default=-1)
            if event.offset < known:
                told = f"{group} had {known}, and {event.who} fetched {event.offset} at {event.started:.3f}"
                yield Violation("commit-back", key, told)


def copied_exactly_once(
    source: Iterable[Value], copies: Iterable[Value], *, complete: bool
) -> Iterator[Violation]:
    """Every committed value of the source is once among the committed copies."""
    counts: dict[Value, int] = defaultdict(int)
    for value in copies:
        counts[value] += 1
    known = set(source)
    for value, count in counts.items():
        if count > 1:
            yield Violation("copied-twice", "", f"{value}: {count} times")
        if value not in known:
            yield Violation("copied-from-nothing", "", value)
    if complete:
        for value in sorted(known - counts.keys()):
            yield Violation("not-copied", "", value)


def log_starts_hold(
    events: Iterable[StartEvent], logs: Mapping[Key, Replica], asked: Mapping[Key, Offset]
) -> Iterator[Violation]:
    """Deleted records stay deleted, and no others go with them; where nothing was asked for, nothing goes. A leader may show a deletion
    before it is acknowledged, and fall."""
    rows = sorted(events, key=lambda event: event.ended)
    done = [row for row in rows if not row.told]
    for event in (row for row in rows if row.told):
        known = max((e.offset for e in done if e.key == event.key and e.ended <= event.started), default=0)
        if event.offset < known:
            told = f"began at {known}, and at {event.offset} for who asked at {event.started:.3f}"
            yield Violation("log-start-back", event.key, told)
    for key, replica in logs.items():
        if replica.log_start > asked.get(key, 0):
            told = f"begins at {replica.log_start}, though nothing from {asked.get(key, 0)} on was to go"
            yield Violation("deleted-too-much", key, told)


def only_own_incarnation(lives: Iterable[Incarnation]) -> Iterator[Violation]:
    """What was in a topic is not in the one that was made with its name after it was deleted."""
    written: dict[Value, bytes] = {}
    for life in lives:
        for value in sorted(life.read):
            if written.get(value, life.topic_id) != life.topic_id:
                yield Violation("came-back", life.topic_id.hex(), f"{value} of {written[value].hex()}")
        written.update(dict.fromkeys(life.acknowledged, life.topic_id))
