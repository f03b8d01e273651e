"""A coordinator with more transactional ids than it has memory for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millstream.core.decisions import Arm, Decision, Reply
from millstream.core.errors import ErrorCode
from millstream.transactions import id_memory
from millstream.transactions.effects import AllocateProducerId, IdsFull
from millstream.transactions.id_memory import cost_of
from millstream.transactions.records import decode, encode, tombstone_of
from millstream.transactions.shard import TransactionShard
from millstream.transactions.states import TransactionState
from millstream.transactions.timers import EXPIRY
from support.transactions.samples import (
    A0,
    ID,
    NOW_MS,
    PID,
    SETTINGS,
    S,
    init,
    join,
    metadata,
    record,
)

NAMES = tuple(f"run-{number}" for number in range(5))
ROOM_FOR_FIVE = replace(SETTINGS, transactional_ids_max_bytes=5 * cost_of(NAMES[0]))


def full(
    states: dict[str, TransactionState] | None = None, settings: Any = ROOM_FOR_FIVE
) -> TransactionShard:
    made = TransactionShard(1, settings)
    for name in NAMES:
        apply(made, name, (states or {}).get(name, S.EMPTY))
    return made


def apply(made: TransactionShard, name: str, state: TransactionState) -> None:
    opened = {"partitions": frozenset({A0})} if state is S.ONGOING else {}
    made.apply(record(metadata(state, **opened), name))


def begin(made: TransactionShard, name: str) -> Decision:
    """InitProducerId with the producer id that it asks for; what was decided is applied."""
    decision = made.decide_init_producer_id(init(transactional_id=name), 4, "client", now_ms=NOW_MS)
    if decision.effects and isinstance(decision.effects[0], AllocateProducerId):
        decision = made.decide_producer_id(decision.effects[0].continuation, 99, now_ms=NOW_MS)
    for change in decision.records:
        made.apply(change)
    return decision


def codes(decision: Decision) -> list[int]:
    return [effect.response.error_code for effect in decision.effects if isinstance(effect, Reply)]


@pytest.mark.parametrize("idle", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_new_id_expires_the_id_unused_for_longest(idle: TransactionState) -> None:
    made = full(dict.fromkeys(NAMES, idle))
    decision = begin(made, "run-5")
    assert decision.records[0] == tombstone_of("run-0")
    assert IdsFull(1) in decision.effects and codes(decision) == [0]
    assert list(made.durable) == [*NAMES[1:], "run-5"]


def test_use_of_an_id_keeps_it() -> None:
    made = full()
    apply(made, "run-0", S.ONGOING)
    apply(made, "run-0", S.PREPARE_COMMIT)
    apply(made, "run-0", S.COMPLETE_COMMIT)
    begin(made, "run-5")
    assert "run-0" in made.durable and "run-1" not in made.durable


@pytest.mark.parametrize("busy", [S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT])
def test_ids_with_a_transaction_never_expire_early(busy: TransactionState) -> None:
    made = full({"run-0": busy, "run-1": busy})
    for number in range(5, 12):
        begin(made, f"run-{number}")
    assert {"run-0", "run-1"} <= set(made.durable)


def test_new_id_is_refused_if_all_others_have_transactions() -> None:
    made = full(dict.fromkeys(NAMES, S.ONGOING))
    before = made.durable
    decision = begin(made, "run-5")
    assert codes(decision) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    assert IdsFull(0, "run-5") in decision.effects
    assert made.durable == before
    assert codes(begin(made, "run-3")) == [ErrorCode.CONCURRENT_TRANSACTIONS], (
        "a known id needs no room"
    )


def test_no_producer_id_is_spent_on_a_refused_id() -> None:
    made = full(dict.fromkeys(NAMES, S.ONGOING))
    decision = made.decide_init_producer_id(
        init(transactional_id="run-5"), 4, "client", now_ms=NOW_MS
    )
    assert not any(isinstance(effect, AllocateProducerId) for effect in decision.effects)


def test_producer_of_an_expired_id_gets_the_error_of_expiry_by_time() -> None:
    made = full()
    begin(made, "run-5")
    transaction = join(A0, transactional_id="run-0", producer_id=PID)
    (reply,) = made.decide_add_partitions(transaction, 3, "client", now_ms=NOW_MS).effects
    row = reply.response.topic_results[0].results_by_partition[0]
    assert row.partition_error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_memory_is_bounded_whatever_the_names() -> None:
    made = TransactionShard(1, replace(SETTINGS, transactional_ids_max_bytes=200_000))
    for number in range(3000):
        begin(made, f"{number}" * (1 + number % 700))
        assert made.state.memory.used <= 200_000
    assert made.state.memory.used == sum(map(cost_of, made.durable))
    assert len(made.durable) > 20


def test_shard_read_from_its_log_expires_the_same_ids() -> None:
    made, log = full(), []
    for number in (1, 5, 6, 2, 7):
        log += begin(made, f"run-{number}").records
    again = full()
    for change in log:
        decoded = decode(*encode(change))
        assert decoded is not None
        again.apply(decoded)
    assert again.durable == made.durable
    assert begin(again, "run-9").records == begin(made, "run-9").records


def test_surplus_after_loading_goes_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_memory, "_MAX_IDS", 2)
    made = full(
        {"run-1": S.ONGOING}, replace(SETTINGS, transactional_ids_max_bytes=cost_of(NAMES[0]))
    )
    assert made.on_loaded(now_ms=NOW_MS).effects[-1] == Arm(EXPIRY, NOW_MS)
    first = made.decide_timeout(EXPIRY, now_ms=NOW_MS)
    assert first.records == (tombstone_of("run-0"), tombstone_of("run-2"))
    assert first.effects[-1] == Arm(EXPIRY, NOW_MS)
    for change in first.records:
        made.apply(change)
    second = made.decide_timeout(EXPIRY, now_ms=NOW_MS)
    assert second.records == (tombstone_of("run-3"), tombstone_of("run-4"))
    for change in second.records:
        made.apply(change)
    last = made.decide_timeout(EXPIRY, now_ms=NOW_MS)
    assert not last.records, "the transaction stays"
    assert last.effects[-1].at_ms > NOW_MS, "no loop without a rest"


def test_lower_limit_refuses_new_ids_until_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_memory, "_MAX_IDS", 1)
    made = full()
    made.settings = replace(SETTINGS, transactional_ids_max_bytes=2 * cost_of(NAMES[0]))
    answers = [codes(begin(made, "run-5"))[0] for _ in range(5)]
    assert answers == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 3 + [0, 0]


def test_idle_ids_share_their_empty_set() -> None:
    made = full({"run-0": S.COMPLETE_COMMIT})
    assert len({id(known.partitions) for known in made.durable.values()}) == 1


def test_limit_does_not_concern_known_ids() -> None:
    made = full()
    assert codes(begin(made, NAMES[0])) == [0]
    assert set(made.durable) == set(NAMES) and ID not in made.durable
