"""The commit rule of exactly-once targets: is this micro-batch committed, the next one, or neither?

A target stores the batch that it committed last: its number, its query and a hash of its offsets,
in the same transaction as the rows. After a crash Spark repeats a batch with the same number and
the same offsets. Numbers are comparable only within one checkpoint. So a batch that is neither the
committed one nor the next is a conflict: the target rejects it and does not guess.

Topics (``progress.py``) and stores (``pipelines/stores.py``) share this rule, and word conflicts
for their own users.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from millstream.spark.sink.checkpoint import BatchIdentity


class CommittedBatch(NamedTuple):
    """The last batch of a target, compared with the next one to write."""

    batch: int
    same_query: bool
    same_offsets: bool

    @classmethod
    def compare(
        cls, batch: int, query: str, offsets: str, identity: BatchIdentity
    ) -> CommittedBatch:
        """Compare a committed batch with the identity of the next one."""
        return cls(batch, query == identity.query, offsets == identity.offsets)


class Verdict(Enum):
    """The place of a batch relative to the last committed one.

    All but the first two are conflicts.
    """

    NEXT = "next"
    COMMITTED = "committed"
    NONE_COMMITTED = "not the first batch, and the target has none"
    OTHER_QUERY = "the target was written from another checkpoint"
    GAP = "batches between the committed one and this one are missing"
    OTHER_OFFSETS = "the committed batch with other offsets"
    EARLIER = "older than the committed batch"


def judge(last: CommittedBatch | None, batch_id: int) -> Verdict:
    """Decide about a batch by the last one that its target has."""
    if last is None:
        return Verdict.NEXT if batch_id == 0 else Verdict.NONE_COMMITTED
    if not last.same_query:
        return Verdict.OTHER_QUERY
    if batch_id == last.batch:
        return Verdict.COMMITTED if last.same_offsets else Verdict.OTHER_OFFSETS
    if batch_id == last.batch + 1:
        return Verdict.NEXT
    return Verdict.GAP if batch_id > last.batch else Verdict.EARLIER
