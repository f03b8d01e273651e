"""The history of a run: what clients asked for and what became of it, as plain data, for simulated and for real clusters alike.

An operation is invoked and then completes as ``ok`` (it happened), ``fail`` (it did not) or ``info`` (nobody can say). A wrong
``fail`` or ``ok`` makes every check worthless: only what cannot have happened fails; a timeout, a lost connection
or an answer that leaves it open is ``info``, and its process is replaced.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

INVOKE, OK, FAIL, INFO = "invoke", "ok", "fail", "info"
# send: records of a producer; txn: sends and polls that are visible together or not at all; poll: a read_committed
# consumer; peek: a read_uncommitted one, which may see what is aborted; assign, subscribe: a consumer's position is new.
SEND, TXN, POLL, PEEK, ASSIGN, SUBSCRIBE = "send", "txn", "poll", "peek", "assign", "subscribe"

Key = str
Value = str
Offset = int


class Send(NamedTuple):
    """A record sent to a key (a partition); the offset is known when it was acknowledged."""

    key: Key
    value: Value
    offset: Offset | None = None


class Poll(NamedTuple):
    """Records received, by key, in the order they came."""

    records: Mapping[Key, Sequence[tuple[Offset, Value]]]


Mop = Send | Poll


class Op(NamedTuple):
    """One line of the history. ``rebalanced`` are the keys that came or went while it ran."""

    number: int
    process: str
    type: str
    f: str
    value: tuple[Mop, ...]
    time: float
    started: float = 0.0
    error: str = ""
    rebalanced: frozenset[Key] = frozenset()
    commit_asked: float | None = None  # when, of a transaction that is known to have got so far

    def sends(self) -> Iterator[Send]:
        return (mop for mop in self.value if isinstance(mop, Send))

    def polled(self) -> Iterator[tuple[Key, Sequence[tuple[Offset, Value]]]]:
        for mop in self.value:
            if isinstance(mop, Poll):
                yield from mop.records.items()


class History:
    """Grows while a run goes on."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self._open: dict[int, Op] = {}

    def __len__(self) -> int:
        return len(self.ops)

    def invoke(self, process: str, f: str, value: Iterable[Mop], time: float) -> Op:
        op = Op(len(self.ops), process, INVOKE, f, tuple(value), time, time)
        self.ops.append(op)
        self._open[op.number] = op
        return op

    def complete(
        self,
        invoked: Op,
        type: str,
        value: Iterable[Mop],
        time: float,
        *,
        error: str = "",
        rebalanced: Iterable[Key] = (),
        commit_asked: float | None = None,
    ) -> Op:
        op = Op(
            len(self.ops),
            invoked.process,
            type,
            invoked.f,
            tuple(value),
            time,
            invoked.time,
            error,
            frozenset(rebalanced),
            commit_asked,
        )
        del self._open[invoked.number]
        self.ops.append(op)
        return op

    def completions(self) -> list[Op]:
        """Every operation once, in the order of completion; those that never completed are ``info``."""
        done = [op for op in self.ops if op.type != INVOKE]
        return done + [op._replace(type=INFO, error="never completed") for op in self._open.values()]


class Reading(NamedTuple):
    """A value as an ok operation read it."""

    op: Op
    offset: Offset


class Analysis:
    """What the checks need to know of a history."""

    def __init__(self, ops: Iterable[Op]) -> None:
        self.ops = list(ops)
        self.writer: dict[Key, dict[Value, Op]] = defaultdict(dict)
        self.readers: dict[Key, dict[Value, list[Reading]]] = defaultdict(dict)
        # key -> offset -> values, in the order they were seen
        self.log: dict[Key, dict[Offset, dict[Value, Op]]] = defaultdict(dict)
        for op in self.ops:
            for sent in op.sends():
                self.writer[sent.key][sent.value] = op
            for key, records in op.polled():
                self._polled(op, key, records)
        self._add_acknowledged()
        self.order = {key: sorted(offsets) for key, offsets in self.log.items()}
        self.index: dict[Key, dict[Offset, int]] = {
            key: {offset: i for i, offset in enumerate(offsets)} for key, offsets in self.order.items()
        }
        self.places: dict[Key, dict[Value, list[int]]] = {key: self._places(key) for key in self.order}

    def _polled(self, op: Op, key: Key, records: Sequence[tuple[Offset, Value]]) -> None:
        for offset, value in records:
            self.log[key].setdefault(offset, {}).setdefault(value, op)
            if op.type == OK and op.f != PEEK:
                self.readers[key].setdefault(value, []).append(Reading(op, offset))

    def _add_acknowledged(self) -> None:
        """Offsets that producers were told, where the operation is known to have happened."""
        for op in self.ops:
            if self.committed(op):
                for sent in op.sends():
                    if sent.offset is not None:
                        self.log[sent.key].setdefault(sent.offset, {}).setdefault(sent.value, op)

    def _places(self, key: Key) -> dict[Value, list[int]]:
        places: dict[Value, list[int]] = {}
        for i, offset in enumerate(self.order[key]):
            for value in self.log[key][offset]:
                places.setdefault(value, []).append(i)
        return places

    def committed(self, op: Op) -> bool:
        """ok, or info and something of it was read: proof by observation."""
        if op.type == INFO:
            return any(sent.value in self.readers[sent.key] for sent in op.sends())
        return op.type == OK
