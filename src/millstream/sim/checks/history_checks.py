"""Checks of a history, after Jepsen's queue checker: plain data in, violations out.

The simulation and real processes share them. They check only what Kafka promises: writes of two
transactions may interleave, and an unacknowledged record may or may not exist.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from millstream.sim.checks.history import (
    ASSIGN,
    FAIL,
    OK,
    PEEK,
    SUBSCRIBE,
    TXN,
    Analysis,
    Key,
    Offset,
    Op,
    Value,
)


class Violation(NamedTuple):
    """A broken promise: its kind, the key, and the evidence."""

    kind: str
    key: Key
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} {self.key}: {self.detail}"


Violations = Iterator[Violation]


def check_history(ops: Iterable[Op], *, final_reads: bool = True) -> list[Violation]:
    """Return every violation of a history.

    `final_reads`: at the end, a consumer read every key to its end.
    """
    analysis = Analysis(ops)
    checks: list[Callable[[Analysis], Violations]] = [
        inconsistent_offsets,
        duplicates,
        aborted_reads,
        dirty_reads,
        lost_writes,
        precommitted_reads,
        polls_in_order,
        polls_in_order_within,
        sends_in_order,
        read_cycles,
    ]
    if final_reads:
        checks.append(unseen)
    return [violation for check in checks for violation in check(analysis)]


def inconsistent_offsets(analysis: Analysis) -> Violations:
    """Check that no offset holds two values."""
    for key, offsets in analysis.log.items():
        for offset, values in offsets.items():
            if len(values) > 1:
                detail = ", ".join(f"{value} ({_operation(op)})" for value, op in values.items())
                yield Violation("inconsistent-offsets", key, f"offset {offset} holds {detail}")


def duplicates(analysis: Analysis) -> Violations:
    """Check that no value is at two offsets."""
    for key, slots in analysis.slots.items():
        for value, indexes in slots.items():
            if len(indexes) > 1:
                offsets = [analysis.order[key][i] for i in indexes]
                yield Violation("duplicate", key, f"{value} is at the offsets {offsets}")


def aborted_reads(analysis: Analysis) -> Violations:
    """Check that read_committed consumers see no failed write (G1a)."""
    for key, readers in analysis.readers.items():
        for value, readings in readers.items():
            writer = analysis.writer[key].get(value)
            if writer is not None and writer.type == FAIL:
                failed = f"{value} of {_operation(writer)} ({writer.error or 'aborted'})"
                detail = f"{failed} was read by {_operation(readings[0].op)}"
                yield Violation("G1a", key, detail)


def dirty_reads(analysis: Analysis) -> Violations:
    """Check that no read_committed consumer sees a record before its commit was requested.

    The outcome of the transaction does not matter.
    """
    for op in analysis.ops:
        if op.f == PEEK:
            continue
        # The latest time of the read. A transaction had its input before it began; a poll has its
        # records when it completes.
        read_at = op.started if op.f == TXN else op.time
        for key, records in op.polled():
            writers = analysis.writer[key]
            for _, value in records:
                writer = writers.get(value)
                if (
                    writer is not None
                    and writer.commit_requested is not None
                    and read_at < writer.commit_requested
                ):
                    detail = f"{value} was read by {_operation(op)} at {read_at:.3f}, its commit was requested at"
                    yield Violation(
                        "dirty-read",
                        key,
                        f"{detail} {writer.commit_requested:.3f} by {_operation(writer)}",
                    )


def lost_writes(analysis: Analysis) -> Violations:
    """Check that every committed value below a value that was read was read too."""
    for key, slots in analysis.slots.items():
        read = analysis.readers[key]
        bound = max((slots[value][0] for value in read), default=-1)
        for value, indexes in slots.items():
            if indexes[-1] > bound or value in read:
                continue
            writer = analysis.writer[key].get(value)
            if writer is not None and analysis.committed(writer):
                offset = analysis.order[key][indexes[0]]
                yield Violation(
                    "lost-write",
                    key,
                    f"{value} at {offset}, acknowledged to {_operation(writer)}, is never read",
                )


def precommitted_reads(analysis: Analysis) -> Violations:
    """Check that no transaction reads its own uncommitted values."""
    for op in analysis.ops:
        sent = {(send.key, send.value) for send in op.sends()}
        for key, records in op.polled():
            for offset, value in records:
                if (key, value) in sent:
                    yield Violation(
                        "precommitted-read",
                        key,
                        f"{_operation(op)} reads its own {value} at {offset}",
                    )


def polls_in_order(analysis: Analysis) -> Violations:
    """Check that a consumer reads records in order, without gaps, unless it is repositioned."""
    last: dict[tuple[str, Key], Offset] = {}
    for op in analysis.ops:
        if op.f in (ASSIGN, SUBSCRIBE):
            for reader in [reader for reader in last if reader[0] == op.process]:
                del last[reader]
        if op.type != OK or op.f == PEEK:
            continue
        for key, records in op.polled():
            if records and key not in op.rebalanced:
                previous = last.get((op.process, key))
                if previous is not None:
                    yield from _step(analysis, op, key, previous, records[0][0], "")
                last[op.process, key] = records[-1][0]


def polls_in_order_within(analysis: Analysis) -> Violations:
    """Check the same among the records of one response."""
    for op in analysis.ops:
        if op.f == PEEK:
            continue
        for key, records in op.polled():
            if key not in op.rebalanced:
                for (before, _), (after, _) in itertools.pairwise(records):
                    yield from _step(analysis, op, key, before, after, "int-")


def _step(
    analysis: Analysis, op: Op, key: Key, before: Offset, after: Offset, prefix: str
) -> Iterator[Violation]:
    index = analysis.index[key]
    between = analysis.order[key][index[before] + 1 : index[after]]
    if index[after] <= index[before]:
        yield Violation(
            f"{prefix}nonmonotonic-poll", key, f"{_operation(op)} reads {after} after {before}"
        )
    elif missed := [offset for offset in between if _must_be_seen(analysis, key, offset)]:
        yield Violation(
            f"{prefix}poll-skip",
            key,
            f"{_operation(op)} reads {after} after {before}, without {missed}",
        )


def _must_be_seen(analysis: Analysis, key: Key, offset: Offset) -> bool:
    """Return whether readers must see an offset.

    A value that only read_uncommitted consumers saw may have been aborted.
    """
    return any(
        value in analysis.readers[key] or _committed(analysis, key, value)
        for value in analysis.log[key][offset]
    )


def _committed(analysis: Analysis, key: Key, value: Value) -> bool:
    writer = analysis.writer[key].get(value)
    return writer is not None and analysis.committed(writer)


def sends_in_order(analysis: Analysis) -> Violations:
    """Check that the acknowledged records of a process are in the order of its sends."""
    last: dict[tuple[str, Key], Offset] = {}
    for op in analysis.ops:
        if op.type != OK:
            continue
        for sent in op.sends():
            if sent.offset is None:
                continue
            sender = (op.process, sent.key)
            if sender in last and sent.offset <= last[sender]:
                detail = f"{_operation(op)} has {sent.value} at {sent.offset} after {last[sender]}"
                yield Violation("nonmonotonic-send", sent.key, detail)
            last[sender] = sent.offset


def unseen(analysis: Analysis) -> Violations:
    """Check that every acknowledged value is read in the end."""
    for key, writers in analysis.writer.items():
        for value, op in writers.items():
            if op.type == OK and value not in analysis.readers[key]:
                yield Violation("unseen", key, f"{value} of {_operation(op)} is never read")


def read_cycles(analysis: Analysis) -> Violations:
    """Check that no two transactions see each other (G1c)."""
    edges: dict[int, dict[int, None]] = defaultdict(dict)
    by_number = {op.number: op for op in analysis.ops}
    for key, readers in analysis.readers.items():
        for value, readings in readers.items():
            writer = analysis.writer[key].get(value)
            for reading in readings:
                if writer is not None and writer.number != reading.op.number:
                    edges[writer.number][reading.op.number] = None
    for component in _components(edges):
        ops = ", ".join(_operation(by_number[number]) for number in component)
        yield Violation("G1c", "", f"{ops} read each other")


def _components(edges: dict[int, dict[int, None]]) -> Iterator[list[int]]:
    """Yield strongly connected components of more than one node (Tarjan, without recursion)."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in list(edges):
        if root in number:
            continue
        work = [(root, iter(edges.get(root, ())))]
        number[root] = low[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, children = work[-1]
            child = next(children, None)
            if child is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    component = stack[stack.index(node) :]
                    del stack[stack.index(node) :]
                    on_stack.difference_update(component)
                    if len(component) > 1:
                        yield sorted(component)
            elif child not in number:
                number[child] = low[child] = len(number)
                stack.append(child)
                on_stack.add(child)
                work.append((child, iter(edges.get(child, ()))))
            elif child in on_stack:
                low[node] = min(low[node], number[child])


def _operation(op: Op) -> str:
    return f"{op.process}/{op.f}#{op.number}"
