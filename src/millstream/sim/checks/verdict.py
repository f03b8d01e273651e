"""All checks over the evidence of a run, simulated or real: plain data in, violations out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from millstream.sim.checks.history import OK, POLL, TXN, Key, Offset, Op, Value
from millstream.sim.checks.history_checks import Violation, check_history
from millstream.sim.checks.state_checks import (
    NOTHING,
    OffsetEvent,
    Ownership,
    Replica,
    Sample,
    acknowledged_records_survive,
    commits_advance,
    committed_values,
    compacted_agree,
    copied_exactly_once,
    high_watermarks_advance,
    offsets_rise,
    one_leader_per_epoch,
    one_owner_per_generation,
    read_records_survive,
    reads_are_committed,
    replicas_agree,
    sequences_once,
)


@dataclass
class Evidence:
    """What clients saw, what brokers hold at the end, and samples of what they held before."""

    ops: Sequence[Op]
    logs: Mapping[Key, Sequence[Replica]]  # the leader's log first: its contents count
    offsets: Sequence[OffsetEvent] = ()
    ownerships: Sequence[Ownership] = ()
    samples: Sequence[Sample] = ()
    group: str = "readers"
    group_reads: Mapping[Key, set[Value]] = field(default_factory=dict)
    copies: Mapping[Key, Key] = field(default_factory=dict)  # source -> key of its copies
    copied_completely: bool = False


def judge(evidence: Evidence) -> list[Violation]:
    """Return all violations of a run."""
    leading = leaders(evidence.logs)
    data = {key: log for key, log in leading.items() if not key.startswith("__")}
    violations = check_history(evidence.ops)
    violations += acknowledged_records_survive(acknowledged(evidence.ops), data)
    violations += read_records_survive(_rows_read(evidence.ops), data)
    violations += high_watermarks_advance(evidence.samples)
    violations += one_leader_per_epoch(evidence.samples)
    # Each replica compacts by itself, so the dropped records differ.
    violations += replicas_agree({key: evidence.logs[key] for key in data})
    violations += compacted_agree(
        {key: rows for key, rows in evidence.logs.items() if key not in data}
    )
    violations += offsets_rise(leading)
    violations += sequences_once(data)
    violations += reads_are_committed(committed_reads(evidence.ops), data)
    violations += one_owner_per_generation(evidence.ownerships)
    violations += commits_advance(evidence.offsets)
    violations += group_missed(evidence, data)
    for source, copy in evidence.copies.items():
        from_, to = data.get(source, NOTHING), data.get(copy, NOTHING)
        copied = [value.rpartition("|")[0] for value in committed_values(to.batches)[0]]
        originals = committed_values(from_.batches)[0]
        violations += copied_exactly_once(originals, copied, complete=evidence.copied_completely)
        violations += copied_in_order(from_, to, copy)
    return violations


def leaders(logs: Mapping[Key, Sequence[Replica]]) -> dict[Key, Replica]:
    """Return the leader's log of each key.

    A follower may still have records that its leader has lost, but they do not count.
    """
    return {key: replicas[0] for key, replicas in logs.items() if replicas}


def copied_in_order(source: Replica, copies: Replica, key: Key) -> Iterator[Violation]:
    """Check that committed copies are in the order of their originals.

    Another check finds duplicates.
    """
    originals = list(_committed(source))
    once = {value for value, count in Counter(originals).items() if count == 1}
    position = {value: number for number, value in enumerate(originals) if value in once}
    last = -1
    for copied in _committed(copies):
        number = position.get(copied.rpartition("|")[0], last)
        if number < last:
            yield Violation("copied-out-of-order", key, copied)
        last = max(last, number)


def _committed(replica: Replica) -> Iterator[Value]:
    committed = committed_values(replica.batches)[0]
    return (value for batch in replica.batches for value in batch.values if value in committed)


def group_missed(evidence: Evidence, data: Mapping[Key, Replica]) -> Iterator[Violation]:
    """Check that members of the group read everything below its committed offset."""
    committed: dict[Key, Offset] = {}
    for event in evidence.offsets:
        if event.group == evidence.group:
            committed[event.key] = max(committed.get(event.key, -1), event.offset)
    for key, offset in committed.items():
        batches = data.get(key, NOTHING).batches
        done = committed_values(batches)[0]
        seen = evidence.group_reads.get(key, set())
        for batch in batches:
            if batch.last_offset < offset:
                for value in batch.values:
                    if value in done and value not in seen:
                        yield Violation("group-missed", key, f"{value} below {offset}")


def acknowledged(ops: Iterable[Op]) -> list[tuple[Key, Offset, Value]]:
    return [
        (sent.key, sent.offset, sent.value)
        for op in ops
        if op.type == OK
        for sent in op.sends()
        if sent.offset is not None
    ]


def committed_reads(ops: Iterable[Op]) -> dict[Key, set[Value]]:
    """Return the values that read_committed consumers and transactions read.

    Whether such a transaction committed does not matter.
    """
    read: dict[Key, set[Value]] = {}
    for op in ops:
        if op.f in (POLL, TXN):
            for key, records in op.polled():
                read.setdefault(key, set()).update(value for _, value in records)
    return read


def _rows_read(ops: Iterable[Op]) -> Iterator[tuple[Key, Offset, Value]]:
    for op in ops:
        for key, records in op.polled():
            for offset, value in records:
                yield key, offset, value
