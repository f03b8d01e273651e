"""Cleaning against a model: whatever was written and however often it is cleaned, readers end with
the same values.

Hypothesis writes a log (plain, idempotent and transactional producers, tombstones, every codec,
segments of any length), then cleans it in rounds at different times and with maps of different
sizes, with more writes between.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.log.cleaner.compaction import Compaction
from millstream.log.cleaner.offset_map import OffsetMap, from_offset
from millstream.wire.records.batch import Record
from millstream.wire.records.compression import Codec
from millstream.wire.records.payload import KeyColumns
from support.log.compaction_logs import HOUR_MS, START_MS, LogFiles

RETENTION_MS = 24 * HOUR_MS

KEYS = [f"key-{i}" for i in range(7)]
PLAIN, IDEMPOTENT, FIRST_TXN, SECOND_TXN = -1, 10, 20, 30

batches = st.tuples(
    st.just("put"),
    st.sampled_from([PLAIN, IDEMPOTENT, FIRST_TXN, SECOND_TXN]),
    st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), min_size=1, max_size=5),
    st.sampled_from(list(Codec)),
)
ends = st.tuples(st.just("end"), st.sampled_from([FIRST_TXN, SECOND_TXN]), st.booleans())
rolls = st.just(("roll",))
writes = st.lists(st.one_of(batches, batches, ends, rolls), max_size=25)
rounds = st.fixed_dictionaries(
    {
        "after_hours": st.sampled_from([0, 1, 23, 24, 60]),
        "keys": st.sampled_from([1, 3, 1000]),
        "segment_bytes": st.sampled_from([1, 400, 1 << 30]),
        "expired": st.sets(st.sampled_from([IDEMPOTENT, FIRST_TXN, SECOND_TXN])),
    }
)


class Model:
    """What was written, and what of it every reader must still find."""

    def __init__(self, log: LogFiles) -> None:
        self.log = log
        self.original: dict[int, Record] = {}
        self.now_ms = START_MS + 30 * RETENTION_MS
        self.cleaned_at: dict[int, int] = {}  # offset -> when a round first went over its batch
        self.values = 0

    def write(self, ops: Sequence[tuple[Any, ...]]) -> None:
        for op in ops:
            if op[0] == "roll":
                self.log.roll()
            elif op[0] == "end":
                self.log.end_transaction(op[1], commit=op[2])
            else:
                self._put(op[1], op[2], op[3])
        self.original |= {record.offset: record for record in self.log.records()}

    def _put(self, producer: int, keys: Sequence[tuple[str, bool]], codec: Codec) -> None:
        pairs = []
        for key, tombstone in keys:
            self.values += 1
            pairs.append((key, None if tombstone else f"value-{self.values}"))
        self.log.put(*pairs, pid=producer, txn=producer >= FIRST_TXN, codec=codec)

    def clean(self, plan: dict[str, Any]) -> None:
        self.now_ms += plan["after_hours"] * HOUR_MS
        expected = last_values(self.log.read_committed())
        touched = [
            b.header for b in self.log.batches() if b.header.base_offset < self.log.cleanable_end
        ]
        before = self.log.producers()
        active = {p: a for p, a in self.log.active_producers().items() if p not in plan["expired"]}
        options = {"dedupe_buffer_bytes": 24 * plan["keys"], "load_factor": 1.0}
        options |= {"segment_bytes": plan["segment_bytes"], "delete_retention_ms": RETENTION_MS}
        done = self.log.clean(self.now_ms, active=active, **options)
        self.check_contents()
        self.check_values(expected)
        self.check_files(done)
        after = self.log.producers()
        assert {p: after.get(p) for p in active} == {p: before[p] for p in active}
        for header in touched:
            self.cleaned_at.setdefault(header.base_offset, self.now_ms)

    def check_contents(self) -> None:
        """Offsets increase, and each record is the one that was written there."""
        records = self.log.records()
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets))
        assert all(record == self.original[record.offset] for record in records)
        spans = [(b.header.base_offset, b.header.last_offset) for b in self.log.batches()]
        assert all(last < base for (_, last), (base, _) in pairwise(spans))

    def check_values(self, expected: dict[bytes, Record]) -> None:
        """The last value of every key is still there; a deletion may be forgotten
        after its time.
        """
        found = last_values(self.log.read_committed())
        for key, record in expected.items():
            if record.value is not None:
                assert found[key] == record
            elif found.get(key) != record:
                assert key not in found
                assert self.may_forget(record)
        assert found.keys() <= expected.keys()

    def may_forget(self, tombstone: Record) -> bool:
        base = max(base for base in self.cleaned_at if base <= tombstone.offset)
        return self.cleaned_at[base] + RETENTION_MS <= self.now_ms

    def check_files(self, done: Compaction) -> None:
        end = done.job.rules.end_offset
        closed = [base for base in self.log.bases if base < end]
        self.log.check_indexes(base for base in closed if base < done.end_offset)
        if done.job.segments and any(segment.size for segment in done.job.segments):
            last = [b.header.next_offset for base in closed for b in self.log.batches(base)]
            assert last and last[-1] == end, "the end of the cleaned range is still known"


def last_values(records: Sequence[Record]) -> dict[bytes, Record]:
    return {record.key: record for record in records if record.key is not None}


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(st.tuples(writes, rounds), min_size=1, max_size=5), st.booleans())
def test_readers_end_with_the_same_values_however_a_log_is_cleaned(
    steps: list[tuple[list[Any], dict[str, Any]]], finish: bool
):
    with tempfile.TemporaryDirectory() as directory:
        log = LogFiles(directory)
        model = Model(log)
        for ops, plan in steps:
            model.write(ops)
            model.clean(plan)
        if finish:
            model.write(
                [
                    ("end", FIRST_TXN, True),
                    ("end", SECOND_TXN, False),
                    ("roll",),
                    *batches_of_all_keys(),
                ]
            )
            log.roll()
            for hours in (0, 25, 25, 25):
                whole = {
                    "after_hours": hours,
                    "keys": 1000,
                    "segment_bytes": 1 << 30,
                    "expired": set(),
                }
                model.clean(whole)
            stored = [record.key for record in log.records()]
            assert sorted(stored) == sorted(key.encode() for key in KEYS), (
                "each key once, and nothing aborted"
            )


def batches_of_all_keys() -> list[tuple[Any, ...]]:
    return [("put", PLAIN, [(key, False)], Codec.NONE) for key in KEYS]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(writes, rounds)
def test_cleaning_again_changes_no_record(ops: list[Any], plan: dict[str, Any]):
    with tempfile.TemporaryDirectory() as directory:
        log = LogFiles(directory)
        model = Model(log)
        model.write(ops)
        plan = plan | {"keys": 1000, "after_hours": 0}
        model.clean(plan)
        once, producers = log.records(), log.producers()
        log.first_dirty_offset = 0  # also when the checkpoint was lost
        model.clean(plan)
        assert log.records() == once
        assert {p: s for p, s in producers.items() if p not in plan["expired"]} == {
            p: s for p, s in log.producers().items() if p not in plan["expired"]
        }


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(writes, rounds), min_size=1, max_size=3))
def test_batches_that_are_not_looked_into_would_have_been_dropped(
    steps: list[tuple[list[Any], dict[str, Any]]],
):
    """Whether the map or the records tell that nothing of a batch is left."""
    with tempfile.TemporaryDirectory() as quick, tempfile.TemporaryDirectory() as thorough:
        models = [Model(LogFiles(quick)), Model(LogFiles(thorough))]
        for ops, plan in steps:
            for model in models:
                model.write(ops)
            models[0].clean(plan)
            with mock.patch.object(OffsetMap, "survivors", lambda latest: None):
                models[1].clean(plan)
            assert [batch.data for batch in models[0].log.batches()] == [
                batch.data for batch in models[1].log.batches()
            ]


@pytest.mark.parametrize("memory_bytes", [24 * 300, 24 * 5000, 1 << 24])
def test_offset_map_answers_as_a_dict_whether_packed_or_not(memory_bytes: int):
    latest = OffsetMap(memory_bytes, 0.9)
    expected: dict[bytes, int] = {}
    offset = 0
    for batch in range(400):
        offsets = list(range(offset, offset + 11))
        keys: list[bytes | None] = [b"%d" % ((batch * 31 + i * 17) % 1009) for i in range(10)]
        keys.append(None)
        room = latest.capacity - len(expected)
        later = from_offset(25, KeyColumns(offsets, keys, True))
        if not latest.add(later.offsets, later.keys):
            assert room <= 10, "only a full map refuses"
            break
        expected |= {
            key: at for at, key in zip(offsets, keys, strict=True) if key is not None and at >= 25
        }
        offset += 11
    assert len(latest) >= len(expected)
    assert {key: latest.get(key, -1) for key in expected}.keys() == expected.keys()
    assert all(latest.get(key, -1) >= at for key, at in expected.items())
    assert latest.get(b"never written", -7) == -7
    assert latest.packed == (memory_bytes < 200_000)
    survivors = latest.survivors()
    assert (survivors is None) == latest.packed
    assert survivors is None or list(survivors) == sorted(expected.values())
