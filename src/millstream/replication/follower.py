"""Where a follower cuts its log when the leader says that the two have parted (KIP-101, KIP-279, KIP-595).

A follower's fetch names the epoch of its last record. A leader whose log has another history answers with the largest epoch
up to that one that it knows, and where it ended. The follower drops what lies behind the last point the two may have in common,
asks again, and so goes back epoch by epoch. Cutting to the high watermark instead, as Kafka once did, loses records.
"""

from __future__ import annotations

from collections.abc import Callable

# (the largest epoch known up to the one asked for, where it ended), (-1, -1) where none is known
EpochEnds = Callable[[int], tuple[int, int]]


def truncation_point(
    diverging_epoch: int,
    diverging_end: int,
    *,
    ends: EpochEnds,
    log_end: int,
    high_watermark: int,
) -> int:
    """The offset to cut to, never above the log's end; the caller fetches again from there.

    ``ends`` tells of the follower's own log. Where the leader knows nothing of our epochs, or we nothing of the leader's, there
    is no common history to be found, and only what is committed is known to be shared.
    """
    if diverging_epoch < 0 or diverging_end < 0:
        return min(high_watermark, log_end)
    epoch, end = ends(diverging_epoch)
    if epoch < 0:
        return min(high_watermark, diverging_end, log_end)
    if epoch == diverging_epoch:
        return min(end, diverging_end, log_end)
    # We have nothing of that epoch: all after our last older one goes, and the leader is asked about that one next.
    return min(end, log_end)
