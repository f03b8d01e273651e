"""A tiny coordinator host, partitions and clients, for stories about one transaction shard.

The host does what the real one does: encode, apply, append; hold every answer and marker until the
records are durable; drop and replay the shard when an append fails or the process dies. The log
keeps what is durable and loses any part of the rest at a crash.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from millstream.core.decisions import Arm, CoordinatorRecord, Decision, Disarm, Reply
from millstream.core.types import TopicPartition
from millstream.transactions.effects import AllocateProducerId, IdsFull, SendMarkers
from millstream.transactions.metadata import TransactionMetadata
from millstream.transactions.records import decode, encode
from millstream.transactions.settings import TransactionSettings
from millstream.transactions.shard import TransactionShard
from millstream.transactions.states import PREPARED, TransactionState
from millstream.wire.messages.init_producer_id import InitProducerIdResponse

# A transaction: its transactional id and when it began. Time moves with every step, so this is
# unique.
Transaction = tuple[str, int]
Row = tuple[bytes, bytes | None]

ALLOWED = {
    "Empty": {"Empty", "CompleteCommit", "CompleteAbort", None},
    "Ongoing": {"Ongoing", "Empty", "CompleteCommit", "CompleteAbort"},
    "PrepareCommit": {"Ongoing"},
    "PrepareAbort": {"Ongoing", "Empty", "CompleteCommit", "CompleteAbort"},
    "CompleteCommit": {"PrepareCommit"},
    "CompleteAbort": {"PrepareAbort"},
    None: {"Empty", "CompleteCommit", "CompleteAbort"},
}


class Partitions:
    """Where producers write and markers end transactions: what became of every write."""

    def __init__(self) -> None:
        self._open: dict[tuple[TopicPartition, int], set[Transaction]] = defaultdict(set)
        self.outcomes: dict[Transaction, set[bool]] = defaultdict(set)

    def write(self, tp: TopicPartition, producer_id: int, transaction: Transaction) -> None:
        self._open[tp, producer_id].add(transaction)

    def mark(self, tp: TopicPartition, producer_id: int, commit: bool) -> None:
        for transaction in self._open.pop((tp, producer_id), ()):
            self.outcomes[transaction].add(commit)

    @property
    def still_open(self) -> set[Transaction]:
        return set().union(*self._open.values())


@dataclass
class Sending:
    """Markers on their way, partition by partition."""

    markers: SendMarkers
    left: list[TopicPartition]


class TinyHost:
    """Runs one shard over a log that can fail and lose its tail."""

    def __init__(self, dice: random.Random, settings: TransactionSettings, rows: list[Row]) -> None:
        self.dice = dice
        self.settings = settings
        self.now_ms = 1_000_000
        self.log: list[list[Row]] = [[row] for row in rows]
        self.durable = len(self.log)
        self.failing = 0.0
        self.epoch = 0
        self.next_producer_id = 1000
        self.partitions = Partitions()
        # (producer id, epoch) of markers under version 2 -> the one outcome
        self.decided: dict[tuple[int, int], bool] = {}
        self.answers: deque[Reply] = deque()
        self.happened: dict[str, int] = defaultdict(int)
        self.load()

    # ---- life and death ----

    def load(self) -> None:
        self.epoch += 1
        self.shard = replay(self.log, self.epoch, self.settings)
        self.held: deque[tuple[int, tuple[Any, ...]]] = deque()
        self.timers: dict[Any, int] = {}
        self.sending: list[Sending] = []
        self.allocations: list[AllocateProducerId] = []
        self.waiting: set[int] = set()
        # Transactional ids whose outcome is decided and not yet in every partition.
        self.unmarked: set[str] = set()
        self.execute(self.shard.on_loaded(now_ms=self.now_ms))

    def crash(self) -> None:
        """The process dies; of the records that are not durable, some prefix survives."""
        self.happened["crash"] += 1
        self.log = self.log[: self.dice.randint(self.durable, len(self.log))]
        self.durable = len(self.log)
        self.load()

    # ---- deciding ----

    def execute(self, decision: Decision) -> bool:
        """False: the append failed, the shard was dropped and read again."""
        if decision.records:
            if self.dice.random() < self.failing:
                self.happened["append failed"] += 1
                if self.dice.random() < 0.5:
                    self._apply(decision.records)
                self.load()
                return False
            rows = [encode(record) for record in decision.records]
            self._apply(decision.records)
            self.log.append(rows)
            self._look_at(decision)
        outward = []
        for effect in decision.effects:
            if isinstance(effect, Arm):
                self.timers[effect.key] = effect.at_ms
            elif isinstance(effect, Disarm):
                self.timers.pop(effect.key, None)
            elif isinstance(effect, Reply | SendMarkers | AllocateProducerId):
                self._check_promise(effect)
                outward.append(effect)
            elif isinstance(effect, IdsFull):
                self.happened["no room" if effect.rejected else "expired early"] += 1
            else:
                self.shard.perform(effect)
        self.held.append((len(self.log), tuple(outward)))
        return True

    def _check_promise(self, effect: Any) -> None:
        if isinstance(effect, SendMarkers):
            self.unmarked.add(effect.transactional_id)
        elif isinstance(effect, Reply) and isinstance(effect.response, InitProducerIdResponse):
            begins = effect.response.error_code == 0
            assert not (begins and effect.to.client.name in self.unmarked), (
                "begun before every marker is written"
            )

    def _apply(self, records: tuple[CoordinatorRecord, ...]) -> None:
        for record in records:
            self.shard.apply(record)

    def _look_at(self, decision: Decision) -> None:
        for record in decision.records:
            self.happened[title_of(record) or "forgotten"] += 1

    # ---- what the world does ----

    def become_durable(self) -> None:
        self.durable = self.dice.randint(self.durable, len(self.log))
        while self.held and self.held[0][0] <= self.durable:
            _, effects = self.held.popleft()
            for effect in effects:
                self._carry_out(effect)

    def _carry_out(self, effect: Any) -> None:
        if isinstance(effect, Reply):
            self.waiting.discard(effect.to.number)
            self.answers.append(effect)
        elif isinstance(effect, AllocateProducerId):
            self.allocations.append(effect)
        else:
            self._send(effect)

    def _send(self, markers: SendMarkers) -> None:
        known = self.shard.durable[markers.transactional_id]
        assert known.state in PREPARED, (
            "markers leave before anything else can happen to the transaction"
        )
        assert (known.producer_id, known.producer_epoch) == (
            markers.producer_id,
            markers.producer_epoch,
        )
        assert known.commits == markers.commit
        assert markers.coordinator_epoch == self.epoch
        if markers.transaction_version >= 2:
            first = self.decided.setdefault(
                (markers.producer_id, markers.producer_epoch), markers.commit
            )
            assert first == markers.commit, "one outcome per producer id and epoch"
        self.sending.append(Sending(markers, list(markers.partitions)))

    def write_a_marker(self) -> None:
        if not self.sending:
            return
        sending = self.dice.choice(self.sending)
        tp = sending.left.pop(self.dice.randrange(len(sending.left)))
        markers = sending.markers
        self.partitions.mark(tp, markers.producer_id, markers.commit)
        if not sending.left:
            self.sending.remove(sending)
            self.unmarked.remove(markers.transactional_id)
            self.execute(
                self.shard.decide_markers_written(
                    markers.transactional_id,
                    markers.producer_id,
                    markers.producer_epoch,
                    now_ms=self.now_ms,
                )
            )

    def allocate(self, failing: float = 0.0) -> None:
        if not self.allocations:
            return
        effect = self.allocations.pop(self.dice.randrange(len(self.allocations)))
        fresh = None
        if self.dice.random() >= failing:
            self.next_producer_id += 1
            fresh = self.next_producer_id
        self.execute(self.shard.decide_producer_id(effect.continuation, fresh, now_ms=self.now_ms))

    def fire_timers(self) -> None:
        due = [key for key, at_ms in self.timers.items() if at_ms <= self.now_ms]
        for key in due:
            if self.timers.pop(key, None) is not None and not self.execute(
                self.shard.decide_timeout(key, now_ms=self.now_ms)
            ):
                return

    # ---- what must hold ----

    def check(self) -> None:
        assert replay(self.log, self.epoch, self.settings).durable == self.shard.durable
        for tr, outcomes in self.partitions.outcomes.items():
            assert len(outcomes) == 1, f"{tr} was committed and aborted"

    def recorded_outcomes(self) -> dict[Transaction, bool]:
        """What the log says became of each transaction; never two things."""
        found: dict[Transaction, bool] = {}
        for name, known in self.history():
            if known is not None and known.state in PREPARED:
                assert found.setdefault((name, known.start_ms), known.commits) == known.commits
        return found

    def history(self) -> list[tuple[str, TransactionMetadata | None]]:
        made = TransactionShard(0, self.settings)
        steps = []
        for record in records_of(self.log):
            made.apply(record)
            name = record.key.transactional_id
            steps.append((name, made.durable.get(name)))
        return steps

    def check_history(self) -> None:
        """Only steps of the table, epochs that never go back, producer ids that belong to one
        transactional id.
        """
        last: dict[str, TransactionMetadata | None] = {}
        owners: dict[int, str] = {}
        for name, known in self.history():
            before = last.get(name)
            self._check_step(before, known)
            if known is not None:
                assert owners.setdefault(known.producer_id, name) == name
            last[name] = known

    @staticmethod
    def _check_step(before: TransactionMetadata | None, after: TransactionMetadata | None) -> None:
        titles = [None if one is None else one.state.title for one in (before, after)]
        assert titles[0] in ALLOWED[titles[1]] or (titles[0] is None and before is None), titles
        if before is None or after is None:
            return
        # Producer ids are handed out in ascending order, so both together never go back.
        assert (after.producer_id, after.producer_epoch) >= (
            before.producer_id,
            before.producer_epoch,
        )
        if after.state is TransactionState.ONGOING and before.state is TransactionState.ONGOING:
            assert after.partitions >= before.partitions and after.start_ms == before.start_ms

    def compacted(self) -> list[list[Row]]:
        latest: dict[bytes, Row] = {}
        for batch in self.log:
            for key, value in batch:
                latest.pop(key, None)
                latest[key] = (key, value)
        return [[row] for row in latest.values()]


def title_of(record: CoordinatorRecord) -> str | None:
    return None if record.value is None else TransactionState(record.value.transaction_status).title


def records_of(log: list[list[Row]]) -> list[CoordinatorRecord]:
    decoded = [decode(key, value) for batch in log for key, value in batch]
    return [record for record in decoded if record is not None]


def replay(log: list[list[Row]], epoch: int, settings: TransactionSettings) -> TransactionShard:
    made = TransactionShard(epoch, settings)
    for record in records_of(log):
        made.apply(record)
    return made


@dataclass
class Request:
    """A request under way: who sent it, what it was about."""

    number: int
    client: Any
    kind: str
    what: Any = None
    transaction: Transaction | None = None
    fields: dict[str, Any] = field(default_factory=dict)
