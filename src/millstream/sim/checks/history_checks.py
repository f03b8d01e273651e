"""Checks of a history, after Jepsen's queue checker: plain data in, violations out.

They serve the simulation and real processes alike. What Kafka does not promise is not checked: writes of two
transactions may interleave, and a record that nobody was told about may or may not be there.
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
    """A broken promise: which one, of which key, and how it shows."""

    kind: str
    key: Key
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} {self.key}: {self.detail}"


Found = Iterator[Violation]


def check_history(ops: Iterable[Op], *, final_reads: bool = True) -> list[Violation]:
    """Every violation of a history. ``final_reads``: at the end somebody read every key to its end."""
    analysis = Analysis(ops)
    checks: list[Callable[[Analysis], Found]] = [
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


def inconsistent_offsets(analysis: Analysis) -> Found:
    """One offset, one value."""
    for key, offsets in analysis.log.items():
        for offset, values in offsets.items():
            if len(values) > 1:
                told = ", ".join(f"{value} ({_who(op)})" for value, op in values.items())
                yield Violation("inconsistent-offsets", key, f"offset {offset} holds {told}")


def duplicates(analysis: Analysis) -> Found:
    """One value, one offset."""
    for key, places in analysis.places.items():
        for value, indexes in places.items():
            if len(indexes) > 1:
                offsets = [analysis.order[key][i] for i in indexes]
                yield Violation("duplicate", key, f"{value} is at the offsets {offsets}")


def aborted_reads(analysis: Analysis) -> Found:
    """G1a: nobody who reads committed data sees what did not happen."""
    for key, readers in analysis.readers.items():
        for value, readings in readers.items():
            writer = analysis.writer[key].get(value)
            if writer is not None and writer.type == FAIL:
                told = f"{value} of {_who(writer)} ({writer.error or 'aborted'}) was read by {_who(readings[0].op)}"
                yield Violation("G1a", key, told)


def dirty_reads(analysis: Analysis) -> Found:
    """Nobody who reads committed data sees a record before its commit was even asked for, whatever became of it later."""
    for op in analysis.ops:
        if op.f == PEEK:
            continue
        # At the latest: what a transaction read it had before it began, a poll has its records when it completes.
        read_at = op.started if op.f == TXN else op.time
        for key, records in op.polled():
            writers = analysis.writer[key]
            for _, value in records:
                writer = writers.get(value)
                if writer is not None and writer.commit_asked is not None and read_at < writer.commit_asked:
                    told = f"{value} was read by {_who(op)} at {read_at:.3f}, its commit was asked for at"
                    yield Violation("dirty-read", key, f"{told} {writer.commit_asked:.3f} by {_who(writer)}")


def lost_writes(analysis: Analysis) -> Found:
    """What is committed and lies below something that was read, was read as well."""
    for key, places in analysis.places.items():
        read = analysis.readers[key]
        bound = max((places[value][0] for value in read), default=-1)
        for value, indexes in places.items():
            if indexes[-1] > bound or value in read:
                continue
            writer = analysis.writer[key].get(value)
            if writer is not None and analysis.committed(writer):
                offset = analysis.order[key][indexes[0]]
                yield Violation(
                    "lost-write", key, f"{value} at {offset}, acknowledged to {_who(writer)}, is never read"
                )


def precommitted_reads(analysis: Analysis) -> Found:
    """A transaction does not read what it has not committed yet."""
    for op in analysis.ops:
        sent = {(send.key, send.value) for send in op.sends()}
        for key, records in op.polled():
            for offset, value in records:
                if (key, value) in sent:
                    yield Violation("precommitted-read", key, f"{_who(op)} reads its own {value} at {offset}")


def polls_in_order(analysis: Analysis) -> Found:
    """A consumer that is not moved reads the next record, again and again."""
    last: dict[tuple[str, Key], Offset] = {}
    for op in analysis.ops:
        if op.f in (ASSIGN, SUBSCRIBE):
            for place in [place for place in last if place[0] == op.process]:
                del last[place]
        if op.type != OK or op.f == PEEK:
            continue
        for key, records in op.polled():
            if records and key not in op.rebalanced:
                previous = last.get((op.process, key))
                if previous is not None:
                    yield from _step(analysis, op, key, previous, records[0][0], "")
                last[op.process, key] = records[-1][0]


def polls_in_order_within(analysis: Analysis) -> Found:
    """The same among the records of one answer."""
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
        yield Violation(f"{prefix}nonmonotonic-poll", key, f"{_who(op)} reads {after} after {before}")
    elif missed := [offset for offset in between if _must_be_seen(analysis, key, offset)]:
        yield Violation(
            f"{prefix}poll-skip", key, f"{_who(op)} reads {after} after {before}, without {missed}"
        )


def _must_be_seen(analysis: Analysis, key: Key, offset: Offset) -> bool:
    """Not what only uncommitted readers saw: it may have been aborted."""
    return any(
        value in analysis.readers[key] or _committed(analysis, key, value)
        for value in analysis.log[key][offset]
    )


def _committed(analysis: Analysis, key: Key, value: Value) -> bool:
    writer = analysis.writer[key].get(value)
    return writer is not None and analysis.committed(writer)


def sends_in_order(analysis: Analysis) -> Found:
    """A process's acknowledged records stand in the order in which it sent them."""
    last: dict[tuple[str, Key], Offset] = {}
    for op in analysis.ops:
        if op.type != OK:
            continue
        for sent in op.sends():
            if sent.offset is None:
                continue
            place = (op.process, sent.key)
            if place in last and sent.offset <= last[place]:
                told = f"{_who(op)} has {sent.value} at {sent.offset} after {last[place]}"
                yield Violation("nonmonotonic-send", sent.key, told)
            last[place] = sent.offset


def unseen(analysis: Analysis) -> Found:
    """What was acknowledged is read in the end."""
    for key, writers in analysis.writer.items():
        for value, op in writers.items():
            if op.type == OK and value not in analysis.readers[key]:
                yield Violation("unseen", key, f"{value} of {_who(op)} is never read")


def read_cycles(analysis: Analysis) -> Found:
    """G1c: no transaction sees another that sees it."""
    edges: dict[int, dict[int, None]] = defaultdict(dict)
    by_number = {op.number: op for op in analysis.ops}
    for key, readers in analysis.readers.items():
        for value, readings in readers.items():
            writer = analysis.writer[key].get(value)
            for reading in readings:
                if writer is not None and writer.number != reading.op.number:
                    edges[writer.number][reading.op.number] = None
    for component in _components(edges):
        ops = ", ".join(_who(by_number[number]) for number in component)
        yield Violation("G1c", "", f"{ops} read each other")


def _components(edges: dict[int, dict[int, None]]) -> Iterator[list[int]]:
    """Strongly connected components of more than one node (Tarjan, without recursion)."""
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


def _who(op: Op) -> str:
    return f"{op.process}/{op.f}#{op.number}"
