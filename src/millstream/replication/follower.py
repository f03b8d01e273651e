"""The offset to which a follower truncates a log that diverges (KIP-101, KIP-279, KIP-595).

A follower's fetch names the epoch of its last record. If the leader's log has another history, the
leader responds with the largest epoch up to that one that it knows, and its end offset. The
follower truncates to the last offset that the two logs may share, and fetches again. It so goes
back epoch by epoch. Truncation to the high watermark, as in early versions of Kafka, loses records.
"""

from __future__ import annotations

from collections.abc import Callable

# Maps an epoch to the largest known epoch up to it and its end offset; (-1, -1) if there is none.
EpochEnds = Callable[[int], tuple[int, int]]


def truncation_point(
    diverging_epoch: int,
    diverging_end: int,
    *,
    ends: EpochEnds,
    log_end: int,
    high_watermark: int,
) -> int:
    """Return the offset to truncate to and to fetch from next, at most the log end offset.

    ``ends`` looks up the epochs of the follower's log. If the leader knows none of its epochs, or
    it knows none of the leader's, only the committed records are known to be shared.
    """
    if diverging_epoch < 0 or diverging_end < 0:
        return min(high_watermark, log_end)
    epoch, end = ends(diverging_epoch)
    if epoch < 0:
        return min(high_watermark, diverging_end, log_end)
    if epoch == diverging_epoch:
        return min(end, diverging_end, log_end)
    # The follower has no records of that epoch. It truncates to the end of its last older epoch,
    # and its next fetch names that epoch.
    return min(end, log_end)
