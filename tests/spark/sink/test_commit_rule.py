"""The commit rule as a table, and as its two users apply it."""

from __future__ import annotations

import pytest

from millstream.pipelines.dead_letters.refusals import DeadLetterSink
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.stores import is_written
from millstream.spark.sink.checkpoint import BatchIdentity
from millstream.spark.sink.commit_rule import CommittedBatch, Verdict, judge
from millstream.spark.sink.failures import ProgressConflict
from millstream.spark.sink.progress import CommittedProgress, Progress

SAME = CommittedBatch(7, same_query=True, same_offsets=True)
OTHER_OFFSETS = SAME._replace(same_offsets=False)
OTHER_QUERY = SAME._replace(same_query=False)

TABLE = [
    (None, 0, Verdict.NEXT),
    (None, 1, Verdict.NONE_COMMITTED),
    (None, 7, Verdict.NONE_COMMITTED),
    (SAME, 0, Verdict.EARLIER),
    (SAME, 6, Verdict.EARLIER),
    (SAME, 7, Verdict.COMMITTED),
    (SAME, 8, Verdict.NEXT),
    (SAME, 9, Verdict.GAP),
    (OTHER_OFFSETS, 6, Verdict.EARLIER),
    (OTHER_OFFSETS, 7, Verdict.OTHER_OFFSETS),
    (OTHER_OFFSETS, 8, Verdict.NEXT),
    (OTHER_OFFSETS, 9, Verdict.GAP),
    (OTHER_QUERY, 0, Verdict.OTHER_QUERY),
    (OTHER_QUERY, 7, Verdict.OTHER_QUERY),
    (OTHER_QUERY, 8, Verdict.OTHER_QUERY),
    (OTHER_QUERY._replace(same_offsets=False), 7, Verdict.OTHER_QUERY),
]
CONFLICTS = set(Verdict) - {Verdict.NEXT, Verdict.COMMITTED}
IDENTITY = BatchIdentity("query", "offsets")


@pytest.mark.parametrize(("last", "batch_id", "verdict"), TABLE)
def test_verdict(last: CommittedBatch | None, batch_id: int, verdict: Verdict) -> None:
    assert judge(last, batch_id) is verdict


def test_table_has_every_verdict() -> None:
    assert {verdict for _, _, verdict in TABLE} == set(Verdict)


@pytest.mark.parametrize(
    ("query", "offsets", "expected"),
    [
        ("query", "offsets", SAME),
        ("query", "others", OTHER_OFFSETS),
        ("another", "offsets", OTHER_QUERY),
    ],
)
def test_committed_batch_is_compared_with_the_identity(
    query: str, offsets: str, expected: CommittedBatch
) -> None:
    assert CommittedBatch.compare(7, query, offsets, IDENTITY) == expected


# ---- stores ----


@pytest.mark.parametrize("reset_progress", [False, True])
@pytest.mark.parametrize(("last", "batch_id", "verdict"), TABLE)
def test_stores_apply_the_rule(
    last: CommittedBatch | None, batch_id: int, verdict: Verdict, reset_progress: bool
) -> None:
    def written() -> bool:
        return is_written(
            last, batch_id, writer="p.f", where="/data", reset_progress=reset_progress
        )

    if verdict in CONFLICTS and not reset_progress:
        with pytest.raises(PipelineError, match="--reset-progress"):
            written()
    else:
        assert written() is (verdict is Verdict.COMMITTED)


# ---- topics ----


def progress_at(last: CommittedBatch | None, **rules: bool) -> CommittedProgress:
    if last is None:
        return CommittedProgress("sink", None, **rules)
    query = IDENTITY.query if last.same_query else "another"
    offsets = IDENTITY.offsets if last.same_offsets else "others"
    return CommittedProgress(
        "sink", Progress("sink", query, last.batch, offsets, commits=1), **rules
    )


@pytest.mark.parametrize("reset_progress", [False, True])
@pytest.mark.parametrize(("last", "batch_id", "verdict"), TABLE)
def test_topics_apply_the_rule(
    last: CommittedBatch | None, batch_id: int, verdict: Verdict, reset_progress: bool
) -> None:
    committed = progress_at(last, reset_progress=reset_progress)
    if verdict in CONFLICTS and not reset_progress:
        with pytest.raises(ProgressConflict) as raised:
            committed.has(batch_id, IDENTITY)
        assert raised.value.hint is not None and "reset_progress=True" in raised.value.hint
    else:
        assert committed.has(batch_id, IDENTITY) is (verdict is Verdict.COMMITTED)


def test_progress_is_reset_for_the_first_batch_only() -> None:
    committed = progress_at(SAME, reset_progress=True)
    assert not committed.has(20, IDENTITY)
    with pytest.raises(ProgressConflict, match="batch 22"):
        committed.has(22, IDENTITY)


@pytest.mark.parametrize(("last", "batch_id", "verdict"), TABLE)
def test_dead_letters_may_skip_batches(
    last: CommittedBatch | None, batch_id: int, verdict: Verdict
) -> None:
    assert DeadLetterSink.allows_gaps
    committed = progress_at(last, allows_gaps=True)
    if verdict is Verdict.OTHER_QUERY:
        with pytest.raises(ProgressConflict, match="another query"):
            committed.has(batch_id, IDENTITY)
    else:
        assert committed.has(batch_id, IDENTITY) is (verdict is Verdict.COMMITTED)
