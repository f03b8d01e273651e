"""The history of a run: the operations of clients and their outcomes, as plain data.

Simulated and real clusters share it. An operation is invoked and then completes as ``ok`` (it
happened), ``fail`` (it did not) or ``info`` (unknown). A wrong ``fail`` or ``ok`` makes every check
worthless. So an operation fails only if it cannot have happened. A timeout, a lost connection or an
ambiguous response is ``info``, and its process is replaced.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

INVOKE, OK, FAIL, INFO = "invoke", "ok", "fail", "info"
# send: records of a producer. txn: sends and polls that become visible together or not at all.
# poll: of a read_committed consumer. peek: of a read_uncommitted consumer, which may see aborted
# records. assign, subscribe: the position of a consumer is new.
SEND, TXN, POLL, PEEK, ASSIGN, SUBSCRIBE = "send", "txn", "poll", "peek", "assign", "subscribe"

Key = str
Value = str
Offset = int


class Send(NamedTuple):
    """A record sent to a key (a partition). The offset is known once it is acknowledged."""

    key: Key
    value: Value
    offset: Offset | None = None


class Poll(NamedTuple):
    """Records received, by key, in the order they came."""

    records: Mapping[Key, Sequence[tuple[Offset, Value]]]


Mop = Send | Poll


class Op(NamedTuple):
    """One line of the history. `rebalanced` are the keys assigned or revoked while it ran."""

    number: int
    process: str
    type: str
    f: str
    value: tuple[Mop, ...]
    time: float
    started: float = 0.0
    error: str = ""
    rebalanced: frozenset[Key] = frozenset()
    # when its commit was requested, of a transaction that is known to have got that far
    commit_requested: float | None = None

    def sends(self) -> Iterator[Send]:
        return (mop for mop in self.value if isinstance(mop, Send))

    def polled(self) -> Iterator[tuple[Key, Sequence[tuple[Offset, Value]]]]:
        for mop in self.value:
            if isinstance(mop, Poll):
                yield from mop.records.items()


class History:
    """The operations of a run that is in progress."""

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
        commit_requested: float | None = None,
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
            commit_requested,
        )
        del self._open[invoked.number]
        self.ops.append(op)
        return op

    def completions(self) -> list[Op]:
        """Return every operation once, in order of completion.

        Operations that never completed are ``info``.
        """
        done = [op for op in self.ops if op.type != INVOKE]
        return done + [
            op._replace(type=INFO, error="never completed") for op in self._open.values()
        ]


class Reading(NamedTuple):
    """A value that an ``ok`` operation read."""

    op: Op
    offset: Offset


class Analysis:
    """A history, indexed for the checks."""

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
            key: {offset: i for i, offset in enumerate(offsets)}
            for key, offsets in self.order.items()
        }
        self.slots: dict[Key, dict[Value, list[int]]] = {
            key: self._slots(key) for key in self.order
        }

    def _polled(self, op: Op, key: Key, records: Sequence[tuple[Offset, Value]]) -> None:
        for offset, value in records:
            self.log[key].setdefault(offset, {}).setdefault(value, op)
            if op.type == OK and op.f != PEEK:
                self.readers[key].setdefault(value, []).append(Reading(op, offset))

    def _add_acknowledged(self) -> None:
        """Add the acknowledged offsets of operations that are known to have happened."""
        for op in self.ops:
            if self.committed(op):
                for sent in op.sends():
                    if sent.offset is not None:
                        self.log[sent.key].setdefault(sent.offset, {}).setdefault(sent.value, op)

    def _slots(self, key: Key) -> dict[Value, list[int]]:
        slots: dict[Value, list[int]] = {}
        for i, offset in enumerate(self.order[key]):
            for value in self.log[key][offset]:
                slots.setdefault(value, []).append(i)
        return slots

    def committed(self, op: Op) -> bool:
        """Return whether an operation happened: ``ok``, or ``info`` with a value that was read."""
        if op.type == INFO:
            return any(sent.value in self.readers[sent.key] for sent in op.sends())
        return op.type == OK
