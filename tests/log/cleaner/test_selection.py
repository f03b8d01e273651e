"""Which log is cleaned next and how far: the pure decision, over made-up facts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from millstream.core.types import TopicPartition
from millstream.log.cleaner.selection import Cleanable, LogFacts, choose, measure
from support.log.cleaner_store import COMPACT, HOUR_MS, TP, Store, clean

NOW_MS = 1_000_000


@dataclass
class Closed:
    base_offset: int
    size: int = 100
    newest_ms: int = 0
    first_ms: int = 0

    def largest_timestamp(self) -> int:
        return self.newest_ms

    def first_timestamp(self) -> int:
        return self.first_ms


def facts(*segments: Closed, **changes: object) -> LogFacts:
    """Segments of ten offsets each; the active one follows, and everything is stable."""
    active = 10 * len(segments)
    given = {
        "active_base_offset": active,
        "log_end_offset": active + 5,
        "stable_end": active,
        **changes,
    }
    return LogFacts(TP, segments, 0, 0, 0, 0, -1)._replace(**given)  # type: ignore[arg-type]


FIVE = tuple(Closed(10 * i) for i in range(5))


def span(made: Cleanable) -> tuple[int, int, int, int]:
    return made.first_dirty_offset, made.end_offset, made.clean_bytes, made.dirty_bytes


def test_uncleaned_log_is_dirty_up_to_its_active_segment():
    assert span(measure(facts(*FIVE), NOW_MS)) == (0, 50, 0, 500)


def test_dirty_section_begins_where_the_last_round_ended():
    made = measure(facts(*FIVE, cleaned_offset=30), NOW_MS)
    assert span(made) == (30, 50, 300, 200)
    assert made.dirty_ratio == 0.4


def test_segment_in_which_the_last_round_ended_counts_as_both():
    assert span(measure(facts(*FIVE, cleaned_offset=35), NOW_MS)) == (35, 50, 400, 200)


def test_everything_clean_is_not_due():
    made = measure(facts(*FIVE, cleaned_offset=50, min_cleanable_dirty_ratio=0.0), NOW_MS)
    assert span(made) == (50, 50, 500, 0) and not made.due


@pytest.mark.parametrize(
    ("stable_end", "end"), [(49, 40), (40, 40), (39, 30), (5, 0), (0, 0), (1000, 50)]
)
def test_segment_with_the_first_unstable_offset_is_not_cleaned(stable_end: int, end: int):
    made = measure(facts(*FIVE, stable_end=stable_end), NOW_MS)
    assert (made.end_offset, made.dirty_bytes) == (end, 10 * end)


def test_unstable_offset_below_the_dirty_section_leaves_nothing_to_clean():
    made = measure(facts(*FIVE, cleaned_offset=35, stable_end=12), NOW_MS)
    assert made.dirty_bytes == 0 and not made.due


def test_young_records_are_protected_by_min_compaction_lag():
    segments = [
        Closed(0, newest_ms=NOW_MS - 900),
        Closed(10, newest_ms=NOW_MS - 500),
        Closed(20, newest_ms=1),
    ]
    made = measure(facts(*segments, min_compaction_lag_ms=500), NOW_MS)
    assert made.end_offset == 30, "exactly as old as the lag is old enough"
    made = measure(facts(*segments, min_compaction_lag_ms=501), NOW_MS)
    assert made.end_offset == 10, "and nothing beyond the first young segment is cleaned"


def test_overdue_log_is_due_however_little_of_it_is_dirty():
    segments = [Closed(0, size=10_000), Closed(10, size=1, first_ms=NOW_MS - 1000)]
    lazy = facts(*segments, cleaned_offset=10)
    assert not measure(lazy, NOW_MS).due
    made = measure(lazy._replace(max_compaction_lag_ms=999), NOW_MS)
    assert made.due and made.overdue_ms == 1
    assert not measure(lazy._replace(max_compaction_lag_ms=1000), NOW_MS).due


def test_records_without_time_are_never_overdue():
    assert measure(facts(Closed(0, first_ms=-1), max_compaction_lag_ms=1), NOW_MS).overdue_ms == 0


@pytest.mark.parametrize("cleaned", [5, 99])
def test_impossible_checkpoint_makes_the_whole_log_dirty(cleaned: int):
    made = measure(facts(*FIVE, cleaned_offset=cleaned, log_start_offset=20), NOW_MS)
    assert made.checkpoint_wrong and made.first_dirty_offset == 20
    assert not measure(
        facts(*FIVE, cleaned_offset=20, log_start_offset=20), NOW_MS
    ).checkpoint_wrong


def test_ratio_must_be_above_the_wanted_one():
    half = facts(Closed(0), Closed(10), cleaned_offset=10)
    assert not measure(half, NOW_MS).due
    assert measure(half._replace(min_cleanable_dirty_ratio=0.49), NOW_MS).due


def test_dirtiest_of_those_that_are_due_is_chosen():
    def candidate(
        number: int, clean_bytes: int, dirty_bytes: int, overdue_ms: int = 0
    ) -> Cleanable:
        return Cleanable(
            TopicPartition("t", number), 0, 1, clean_bytes, dirty_bytes, overdue_ms, 0.5
        )

    dirty, dirtier, overdue = (
        candidate(0, 10, 30),
        candidate(1, 10, 90),
        candidate(2, 99, 1, overdue_ms=5),
    )
    assert choose([dirty, dirtier, overdue]) == dirtier
    assert choose([candidate(3, 60, 40), overdue]) == overdue
    assert choose([candidate(3, 60, 40), candidate(4, 0, 0, overdue_ms=5)]) is None
    assert choose([]) is None


def test_max_compaction_lag_closes_the_active_segment_and_has_it_cleaned(tmp_path):
    lagging = replace(COMPACT, max_compaction_lag_ms=HOUR_MS, min_cleanable_dirty_ratio=1.0)
    store = Store(tmp_path, config=lagging)
    store.put(("a", "1"), ("a", "2"))
    store.now_ms += HOUR_MS + 1
    assert clean(store) is None
    store.put(("a", "3"))
    store.log().flush()
    assert len(store.log().segments) == 2
    assert clean(store) is not None
    assert [record.offset for record in store.read()] == [1, 2]
    store.close()
