"""Checks of the state of a cluster, beside the history of its clients.

Plain data in, violations out.
"""

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
    """A batch of a log."""

    base_offset: Offset
    last_offset: Offset
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    commit: bool | None  # the outcome in a marker; None for data
    values: tuple[Value, ...]
    checksum: int = 0
    # Of records with a key: offset, key, and whether it has a value.
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
    """The keys of a member in a generation of its group."""

    group: str
    generation: int
    member: str
    keys: tuple[Key, ...]


class OffsetEvent(NamedTuple):
    """An offset whose commit was acknowledged, or that was fetched."""

    started: float
    ended: float
    group: str
    key: Key
    offset: Offset
    fetched: bool
    who: str = ""


class StartEvent(NamedTuple):
    """The first offset of a log: of an acknowledged DeleteRecords, or as a client observed it."""

    started: float
    ended: float
    key: Key
    offset: Offset
    observed: bool


class Incarnation(NamedTuple):
    """One life of a topic that is deleted and recreated.

    `acknowledged` are values that were certainly written, `read` the values read by its id.
    """

    topic_id: bytes
    acknowledged: frozenset[Value]
    read: frozenset[Value]


def acknowledged_records_survive(
    acknowledged: Iterable[tuple[Key, Offset, Value]], logs: Mapping[Key, Replica]
) -> Iterator[Violation]:
    """Check that acknowledged records are at their offsets.

    A key without a log has lost everything.
    """
    for key, offset, value, actual in _elsewhere(acknowledged, logs):
        detail = f"offset {offset} was acknowledged for {value} and holds {actual}"
        yield Violation("acknowledged-lost", key, detail)


def read_records_survive(
    read: Iterable[tuple[Key, Offset, Value]], logs: Mapping[Key, Replica]
) -> Iterator[Violation]:
    """Check that a record that was read stays at its offset, acknowledged or not."""
    for key, offset, value, actual in _elsewhere(read, logs):
        yield Violation("read-lost", key, f"{value} was read at {offset}, which holds {actual}")


def _elsewhere(
    rows: Iterable[tuple[Key, Offset, Value]], logs: Mapping[Key, Replica]
) -> Iterator[tuple[Key, Offset, Value, Value | None]]:
    """Yield the values that are not at their offsets, and what is there instead.

    Records deleted from the start of a log are not lost.
    """
    held: dict[Key, dict[Offset, Value]] = {
        key: {offset: value for batch in replica.batches for offset, value in _rows(batch)}
        for key, replica in logs.items()
    }
    for key, offset, value in rows:
        if offset >= logs.get(key, NOTHING).log_start:
            actual = held.get(key, {}).get(offset)
            if actual != value:
                yield key, offset, value, actual


def _rows(batch: Batch) -> Iterator[tuple[Offset, Value]]:
    return ((batch.base_offset + i, value) for i, value in enumerate(batch.values))


def high_watermarks_advance(samples: Iterable[Sample]) -> Iterator[Violation]:
    """Check that the high watermark of a leader never decreases, nor exceeds the log end."""
    last: dict[tuple[Key, int, int, int], Offset] = {}
    for sample in samples:
        if sample.high_watermark > sample.log_end:
            detail = f"{sample.high_watermark} beyond the end {sample.log_end} on {sample.node}"
            yield Violation("high-watermark-beyond-end", sample.key, detail)
        if not sample.leads:
            continue
        leadership = (sample.key, sample.leader_epoch, sample.node, sample.incarnation)
        if sample.high_watermark < last.get(leadership, 0):
            moved = f"from {last[leadership]} to {sample.high_watermark}"
            detail = f"{moved} on {sample.node} in epoch {sample.leader_epoch}"
            yield Violation("high-watermark-back", sample.key, detail)
        last[leadership] = sample.high_watermark


def one_leader_per_epoch(samples: Iterable[Sample]) -> Iterator[Violation]:
    leaders: dict[tuple[Key, int], int] = {}
    for sample in samples:
        if sample.leads:
            first = leaders.setdefault((sample.key, sample.leader_epoch), sample.node)
            if first != sample.node:
                detail = f"{first} and {sample.node} both lead in epoch {sample.leader_epoch}"
                yield Violation("two-leaders", sample.key, detail)


def replicas_agree(logs: Mapping[Key, Sequence[Replica]]) -> Iterator[Violation]:
    """Check that any two replicas have the same batches below the lower of their high watermarks.

    Comparing pairs finds a difference that a third replica, which is behind, would hide.
    """
    for key, replicas in logs.items():
        for left, right in itertools.combinations(replicas, 2):
            until = min(left.high_watermark, right.high_watermark)
            since = max(left.log_start, right.log_start)
            ours, theirs = _between(left, since, until), _between(right, since, until)
            if ours != theirs:
                first = next(a or b for a, b in _pairs(ours, theirs) if a != b)
                detail = f"{left.node} and {right.node} differ below {until}, first at {first}"
                yield Violation("replicas-differ", key, detail)


def _between(replica: Replica, since: Offset, until: Offset) -> list[Batch]:
    return [b for b in replica.batches if b.base_offset >= since and b.last_offset < until]


def _pairs(a: list[Batch], b: list[Batch]) -> Iterator[tuple[Batch | None, Batch | None]]:
    for i in range(max(len(a), len(b))):
        yield (a[i] if i < len(a) else None), (b[i] if i < len(b) else None)


def compacted_agree(logs: Mapping[Key, Sequence[Replica]]) -> Iterator[Violation]:
    """Check that replicas of a compacted topic have the last value of every key.

    Replicas may have dropped different records, but the last value of a key only for a later record
    of that key. Transactional records are left out: aborted ones are dropped without a successor.
    """
    for key, replicas in logs.items():
        last = [_last_by_key(replica, _NO_END) for replica in replicas]
        for (source, _), (other, theirs) in itertools.permutations(
            zip(replicas, last, strict=True), 2
        ):
            until = min(source.high_watermark, other.high_watermark)
            for name, (offset, plain) in _last_by_key(source, until).items():
                present = theirs.get(name, (-1, False))[0] >= offset or offset < other.log_start
                if plain and not present:
                    detail = f"{other.node} lacks the last value of {name!r}, at {offset}, which {source.node} has"
                    yield Violation("value-missing", key, detail)


def _last_by_key(replica: Replica, until: Offset) -> dict[bytes, tuple[Offset, bool]]:
    """Return the offset of the last record of each key.

    And whether it is a value outside of transactions.
    """
    last: dict[bytes, tuple[Offset, bool]] = {}
    for batch in replica.batches:
        for offset, name, has_value in batch.keyed:
            if offset < until:
                last[name] = offset, has_value and not batch.transactional
    return last


def offsets_rise(logs: Mapping[Key, Replica]) -> Iterator[Violation]:
    for key, replica in logs.items():
        for before, after in zip(replica.batches, replica.batches[1:], strict=False):
            if after.base_offset <= before.last_offset:
                yield Violation(
                    "offsets-overlap", key, f"{after.base_offset} after {before.last_offset}"
                )


def sequences_once(logs: Mapping[Key, Replica]) -> Iterator[Violation]:
    """Check that no batch of an idempotent producer is duplicated or missing within an epoch."""
    for key, replica in logs.items():
        next_sequence: dict[tuple[int, int], int] = {}
        epochs: dict[int, int] = {}
        for batch in replica.batches:
            if batch.producer_id < 0:
                continue
            if batch.producer_epoch < epochs.get(batch.producer_id, -1):
                yield Violation(
                    "epoch-back", key, f"{batch} after epoch {epochs[batch.producer_id]}"
                )
            epochs[batch.producer_id] = batch.producer_epoch
            if batch.commit is not None or batch.base_sequence < 0:
                continue
            producer = (batch.producer_id, batch.producer_epoch)
            expected = next_sequence.get(producer)
            if expected is not None and batch.base_sequence != expected:
                sequences = f"{batch.base_sequence}, not {expected}, at {batch.base_offset}"
                detail = f"producer {producer} continues with {sequences}"
                yield Violation("sequence", key, detail)
            next_sequence[producer] = batch.base_sequence + len(batch.values)


def committed_values(batches: Iterable[Batch]) -> tuple[set[Value], set[Value], set[Value]]:
    """Return the committed, aborted and undecided values of a log."""
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
    """Check that the values read by read_committed consumers are committed in the log."""
    for key, values in read.items():
        committed, aborted, still_open = committed_values(logs.get(key, NOTHING).batches)
        for value in values:
            if value in aborted and value not in committed:
                yield Violation("aborted-read", key, f"{value} is aborted and was read")
            elif value in still_open and value not in committed:
                yield Violation(
                    "open-read", key, f"{value} is in a transaction without an end and was read"
                )


def one_owner_per_generation(ownerships: Iterable[Ownership]) -> Iterator[Violation]:
    owners: dict[tuple[str, int, Key], str] = {}
    for row in ownerships:
        for key in row.keys:
            first = owners.setdefault((row.group, row.generation, key), row.member)
            if first != row.member:
                detail = (
                    f"{first} and {row.member} own it in generation {row.generation} of {row.group}"
                )
                yield Violation("two-owners", key, detail)


def commits_advance(events: Iterable[OffsetEvent]) -> Iterator[Violation]:
    """Check that no client fetches an offset below one known before its request.

    The clients never commit backwards.
    """
    by_partition: dict[tuple[str, Key], list[OffsetEvent]] = defaultdict(list)
    for event in events:
        by_partition[event.group, event.key].append(event)
    for (group, key), rows in by_partition.items():
        rows.sort(key=lambda event: event.ended)
        for event in (row for row in rows if row.fetched):
            known = max((e.offset for e in rows if e.ended <= event.started), default=-1)
            if event.offset < known:
                fetched = f"{event.who} fetched {event.offset} at {event.started:.3f}"
                detail = f"{group} had {known}, and {fetched}"
                yield Violation("commit-back", key, detail)


def copied_exactly_once(
    source: Iterable[Value], copies: Iterable[Value], *, complete: bool
) -> Iterator[Violation]:
    """Check that every committed value of the source is copied and committed once."""
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


def log_starts_advance(
    events: Iterable[StartEvent], logs: Mapping[Key, Replica], requested: Mapping[Key, Offset]
) -> Iterator[Violation]:
    """Check that deleted records stay deleted, and that no others are deleted.

    A leader may show a deletion before it is acknowledged, and then fail. `requested` has the
    largest offset of the DeleteRecords requests of each key.
    """
    rows = sorted(events, key=lambda event: event.ended)
    done = [row for row in rows if not row.observed]
    for event in (row for row in rows if row.observed):
        known = max(
            (e.offset for e in done if e.key == event.key and e.ended <= event.started), default=0
        )
        if event.offset < known:
            detail = (
                f"started at {known}, but at {event.offset} for a request at {event.started:.3f}"
            )
            yield Violation("log-start-back", event.key, detail)
    for key, replica in logs.items():
        if replica.log_start > requested.get(key, 0):
            below = f"deletion was requested only below {requested.get(key, 0)}"
            detail = f"starts at {replica.log_start}, but {below}"
            yield Violation("deleted-too-much", key, detail)


def incarnations_are_separate(lives: Iterable[Incarnation]) -> Iterator[Violation]:
    """Check that values of a deleted topic are not in the next topic of its name."""
    written: dict[Value, bytes] = {}
    for life in lives:
        for value in sorted(life.read):
            if written.get(value, life.topic_id) != life.topic_id:
                yield Violation(
                    "came-back", life.topic_id.hex(), f"{value} of {written[value].hex()}"
                )
        written.update(dict.fromkeys(life.acknowledged, life.topic_id))
