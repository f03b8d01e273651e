"""Every check of a cluster's state detects its violation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from millstream.core.types import TopicPartition
from millstream.sim.checks.history_checks import Violation
from millstream.sim.checks.observe import by_topic
from millstream.sim.checks.state_checks import (
    Batch,
    Incarnation,
    OffsetEvent,
    Ownership,
    Replica,
    Sample,
    StartEvent,
    acknowledged_records_survive,
    commits_advance,
    committed_values,
    compacted_agree,
    copied_exactly_once,
    high_watermarks_advance,
    incarnations_are_separate,
    log_starts_advance,
    offsets_rise,
    one_leader_per_epoch,
    one_owner_per_generation,
    read_records_survive,
    reads_are_committed,
    replicas_agree,
    sequences_once,
)

K = "k-0"


def batch(
    offset: int, *values: str, sequence: int = -1, producer: int = -1, epoch: int = 0, **more: Any
) -> Batch:
    fields = {"transactional": False, "commit": None, **more}
    return Batch(
        offset, offset + len(values) - 1, 0, producer, epoch, sequence, values=values, **fields
    )


def marker(offset: int, producer: int, *, commit: bool) -> Batch:
    return Batch(offset, offset, 0, producer, 0, -1, True, commit, ())


def log(*batches: Batch, node: int = 1, start: int = 0, high_watermark: int = 100) -> Replica:
    return Replica(node, high_watermark, start, batches)


def sample(
    node: int = 1,
    epoch: int = 0,
    high_watermark: int = 5,
    *,
    leads: bool = True,
    end: int = 9,
    start: int = 1,
) -> Sample:
    return Sample(0.0, node, start, K, epoch, leads, high_watermark, end)


def fetched(started: float, offset: int) -> OffsetEvent:
    return OffsetEvent(started, started + 0.1, "g", K, offset, True)


def committed(started: float, offset: int) -> OffsetEvent:
    return OffsetEvent(started, started + 0.1, "g", K, offset, False)


def deleted(started: float, offset: int) -> StartEvent:
    return StartEvent(started, started + 0.1, K, offset, False)


def begins(started: float, offset: int) -> StartEvent:
    return StartEvent(started, started + 0.1, K, offset, True)


def life(topic_id: bytes, written: str, read: str) -> Incarnation:
    return Incarnation(topic_id, frozenset(written), frozenset(read))


WRITTEN = log(batch(0, "a", "b"), batch(2, "c"))
TRANSACTION = batch(0, "a", producer=7, sequence=0, transactional=True)

CLEAN: list[tuple[Callable[..., Iterable[Violation]], tuple[Any, ...]]] = [
    (acknowledged_records_survive, ([(K, 0, "a"), (K, 2, "c")], {K: WRITTEN})),
    (acknowledged_records_survive, ([(K, 0, "gone by retention")], {K: log(batch(2, "c"), start=2)})),
    (read_records_survive, ([(K, 0, "a"), (K, 2, "c")], {K: WRITTEN})),
    (read_records_survive, ([(K, 0, "gone by retention")], {K: log(batch(2, "c"), start=2)})),
    (high_watermarks_advance, ([sample(), sample(high_watermark=6)],)),
    (high_watermarks_advance, ([sample(), sample(epoch=1, high_watermark=3)],)),
    (high_watermarks_advance, ([sample(), sample(start=2, high_watermark=3)],)),
    (high_watermarks_advance, ([sample(), sample(leads=False, high_watermark=3)],)),
    (one_leader_per_epoch, ([sample(1), sample(2, epoch=1), sample(2, leads=False)],)),
    (replicas_agree, ({K: [WRITTEN, log(batch(0, "a", "b"), batch(2, "other"), node=2, high_watermark=2)]},)),
    (replicas_agree, ({K: [WRITTEN, log(batch(2, "c"), node=2, start=2)]},)),
    (replicas_agree, ({K: [WRITTEN, WRITTEN._replace(node=2), log(node=3, high_watermark=0)]},)),
    (offsets_rise, ({K: WRITTEN},)),
    (sequences_once, ({K: log(batch(0, "a", "b", producer=7, sequence=0), batch(2, "c", producer=7, sequence=2))},)),
    (sequences_once, ({K: log(batch(0, "a", producer=7, sequence=0), batch(1, "b", producer=7, sequence=0, epoch=1))},)),
    (reads_are_committed, ({K: ["a"]}, {K: log(TRANSACTION, marker(1, 7, commit=True))})),
    (reads_are_committed, ({K: ["a"]}, {K: log(TRANSACTION, marker(1, 7, commit=True), TRANSACTION._replace(base_offset=2))})),
    (reads_are_committed, ({K: []}, {K: log(TRANSACTION)})),
    (one_owner_per_generation, ([Ownership("g", 1, "m", (K,)), Ownership("g", 2, "n", (K,))],)),
    (commits_advance, ([committed(1, 5), fetched(2, 5), committed(2.0, 9), fetched(3, 9)],)),
    (commits_advance, ([fetched(1.95, 5), committed(1.9, 9)],)),
    (log_starts_advance, ([deleted(1, 5), begins(1.05, 0), begins(2, 5)], {K: log(start=5)}, {K: 5})),
    (log_starts_advance, ([begins(1, 5), begins(2, 0)], {}, {})),
    (incarnations_are_separate, ([life(b"1", "ab", "a"), life(b"2", "c", "cx"), life(b"2", "d", "cd")],)),
]  # fmt: skip

PLANTED: list[tuple[str, Callable[..., Iterable[Violation]], tuple[Any, ...]]] = [
    ("acknowledged-lost", acknowledged_records_survive, ([(K, 3, "d")], {K: WRITTEN})),
    ("acknowledged-lost", acknowledged_records_survive, ([(K, 1, "other")], {K: WRITTEN})),
    ("acknowledged-lost", acknowledged_records_survive, ([(K, 0, "a")], {})),
    ("read-lost", read_records_survive, ([(K, 3, "d")], {K: WRITTEN})),
    ("read-lost", read_records_survive, ([(K, 1, "other")], {K: WRITTEN})),
    ("read-lost", read_records_survive, ([(K, 0, "a")], {})),
    ("high-watermark-back", high_watermarks_advance, ([sample(), sample(high_watermark=4)],)),
    ("high-watermark-beyond-end", high_watermarks_advance, ([sample(high_watermark=10, leads=False)],)),
    ("two-leaders", one_leader_per_epoch, ([sample(1, epoch=3), sample(2, epoch=3)],)),
    ("replicas-differ", replicas_agree, ({K: [WRITTEN, log(batch(0, "a", "b"), batch(2, "other"), node=2)]},)),
    ("replicas-differ", replicas_agree, ({K: [WRITTEN, log(batch(0, "a", "b"), node=2)]},)),
    ("replicas-differ", replicas_agree, ({K: [WRITTEN, log(batch(0, "a", "b"), batch(2, "other"), node=2), log(node=3, high_watermark=0)]},)),
    ("offsets-overlap", offsets_rise, ({K: log(batch(0, "a", "b"), batch(1, "c"))},)),
    ("sequence", sequences_once, ({K: log(batch(0, "a", producer=7, sequence=0), batch(1, "a", producer=7, sequence=0))},)),
    ("sequence", sequences_once, ({K: log(batch(0, "a", producer=7, sequence=0), batch(1, "c", producer=7, sequence=2))},)),
    ("epoch-back", sequences_once, ({K: log(batch(0, "a", producer=7, sequence=0, epoch=1), batch(1, "b", producer=7, sequence=1))},)),
    ("aborted-read", reads_are_committed, ({K: ["a"]}, {K: log(TRANSACTION, marker(1, 7, commit=False))})),
    ("open-read", reads_are_committed, ({K: ["a"]}, {K: log(TRANSACTION)})),
    ("open-read", reads_are_committed, ({K: ["a"]}, {K: log(TRANSACTION, marker(1, 8, commit=True))})),
    ("two-owners", one_owner_per_generation, ([Ownership("g", 1, "m", (K,)), Ownership("g", 1, "n", (K,))],)),
    ("commit-back", commits_advance, ([committed(1, 5), fetched(2, 4)],)),
    ("commit-back", commits_advance, ([fetched(1, 5), fetched(2, -1)],)),
    ("log-start-back", log_starts_advance, ([deleted(1, 5), begins(2, 4)], {K: log(start=5)}, {K: 5})),
    ("deleted-too-much", log_starts_advance, ([], {K: log(start=6)}, {K: 5})),
    ("deleted-too-much", log_starts_advance, ([], {K: log(start=1)}, {})),
    ("came-back", incarnations_are_separate, ([life(b"1", "ab", "a"), life(b"2", "c", "b")],)),
]  # fmt: skip


@pytest.mark.parametrize("check, data", CLEAN)
def test_allowed_behaviour_is_no_violation(
    check: Callable[..., Iterable[Violation]], data: tuple[Any, ...]
) -> None:
    assert list(check(*data)) == []


@pytest.mark.parametrize("kind, check, data", PLANTED)
def test_planted_violation_is_reported(
    kind: str, check: Callable[..., Iterable[Violation]], data: tuple[Any, ...]
) -> None:
    assert [violation.kind for violation in check(*data)] == [kind]


def test_values_are_committed_aborted_or_open() -> None:
    open_one = batch(4, "c", producer=9, sequence=0, transactional=True)
    batches = [
        TRANSACTION,
        marker(1, 7, commit=False),
        batch(2, "b"),
        TRANSACTION._replace(base_offset=3),
        open_one,
    ]
    assert committed_values([*batches, marker(5, 7, commit=True)]) == ({"a", "b"}, {"a"}, {"c"})


def test_copies_are_counted() -> None:
    assert list(copied_exactly_once(["a", "b"], ["a"], complete=False)) == []
    violations = copied_exactly_once(["a", "b"], ["a", "a", "z"], complete=True)
    assert {violation.kind for violation in violations} == {
        "copied-twice",
        "copied-from-nothing",
        "not-copied",
    }


def test_recreated_topic_is_not_compared_with_its_predecessor() -> None:
    old, new = bytes(16), bytes([1] * 16)
    first, two, stale = (Replica(node, 0, 0, ()) for node in (1, 2, 3))
    tp = TopicPartition("t", 0)
    assert by_topic([(tp, new, first), (tp, new, two)], {"t": new}) == {"t-0": [first, two]}
    grouped = by_topic([(tp, new, first), (tp, new, two), (tp, old, stale)], {"t": new})
    assert list(grouped.values()) == [[first, two], [stale]]


def test_current_topic_keeps_its_name_beside_a_deleted_one() -> None:
    """Under another name, acknowledged records would not be checked."""
    old, new = bytes(16), bytes([1] * 16)
    tp = TopicPartition("k", 0)
    grouped = by_topic([(tp, old, WRITTEN), (tp, new, log(node=2))], {"k": new})
    (current,) = grouped[K]
    assert [v.kind for v in acknowledged_records_survive([(K, 0, "a")], {K: current})] == [
        "acknowledged-lost"
    ]
    assert K not in by_topic([(tp, old, WRITTEN)], {})


def keyed(offset: int, name: bytes, *, value: bool = True, transactional: bool = False) -> Batch:
    row = ((offset, name, value),)
    return batch(offset, "v", transactional=transactional, keyed=row)


def test_every_replica_of_a_compacted_topic_has_the_last_value() -> None:
    complete = log(keyed(0, b"a"), keyed(1, b"b"), keyed(2, b"a"))
    cleaned = log(keyed(1, b"b"), keyed(2, b"a"), node=2)
    assert list(compacted_agree({K: [complete, cleaned]})) == []
    with_a_hole = log(keyed(2, b"a"), node=3)
    violations = list(compacted_agree({K: [complete, with_a_hole]}))
    assert violations == [
        Violation("value-missing", K, "3 lacks the last value of b'b', at 1, which 1 has")
    ]


@pytest.mark.parametrize(
    "other",
    [
        log(keyed(5, b"a"), node=2),  # a later one, perhaps not committed yet
        log(keyed(0, b"a"), node=2, high_watermark=1),  # it is behind
        log(node=2, start=2),  # a deleted value
    ],
)
def test_missing_value_with_an_explanation_is_no_violation(other: Replica) -> None:
    assert list(compacted_agree({K: [log(keyed(1, b"a"), high_watermark=3), other]})) == []


def test_tombstones_and_transactional_values_may_be_missing() -> None:
    rows = log(keyed(0, b"a", value=False), keyed(1, b"b", transactional=True))
    assert list(compacted_agree({K: [rows, log(node=2)]})) == []
