"""The commit rule of exactly-once targets: is this micro-batch committed, the next one, or neither?

A target keeps the batch that it committed last: its number, its query and a hash of its offsets, in
the same transaction as the rows. Spark repeats a batch after a crash under the same number and with
the same offsets. Numbers mean something only within one checkpoint, so a batch that is neither the
committed one nor the next is a conflict: the target refuses it and does not guess.

Topics (`topic_sink.py`) and stores (`pipelines/stores.py`) share this rule, and word conflicts for
their own users.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from millstream.spark.sink.checkpoint import BatchIdentity


class CommittedBatch(NamedTuple):
    """The last batch that a target has, compared with the batch that comes."""

    batch: int
    same_query: bool
    same_offsets: bool

    @classmethod
    def compare(cls, batch: int, query: str, offsets: str, identity: BatchIdentity) -> CommittedBatch:
        """A committed batch beside the identity of the batch that comes."""
        return cls(batch, query == identity.query, offsets == identity.offsets)


class Verdict(Enum):
    """The place of a batch relative to the last committed one. All but the first two are conflicts."""

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
