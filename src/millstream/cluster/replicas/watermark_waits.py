"""Waits for the watermarks of a led partition: delayed produces and deletions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from millstream.cluster.replicas.partition import Partition
from millstream.core.errors import ApiError, ErrorCode

# Interval of checks for brokers that have failed, of which no event arrives here.
_CHECK_S = 0.5


async def wait_high_watermark(
    partition: Partition, offset: int, leader_since_epoch: int, timeout_s: float
) -> None:
    """Wait until the high watermark has passed a record appended at this offset.

    Raise ApiError after the timeout, and if the log goes offline. Also raise it if another
    leadership has begun since ``leader_since_epoch``, even before this call: the offset may then
    hold another record, and whether the appended one survived is not known here.
    """
    reached: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def check() -> None:
        if reached.done():
            return
        log = partition.log
        if log is None or partition.leader_since_epoch != leader_since_epoch:
            reached.set_result(False)
        elif log.high_watermark > offset:
            reached.set_result(True)

    partition.waiters.add(check)
    try:
        check()
        async with asyncio.timeout(max(timeout_s, 0)):
            survived = await reached
    except TimeoutError:
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT) from None
    finally:
        partition.waiters.remove(check)
    needed = min(partition.online_log.config.min_insync_replicas, partition.replica_count)
    if not survived:
        raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if len(partition.isr) < needed:
        raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


async def wait_low_watermark(
    partition: Partition,
    offset: int,
    leader_since_epoch: int,
    timeout_s: float,
    *,
    node_id: int,
    live: Callable[[], Collection[int]],
) -> None:
    """Wait until no replica on a live broker has records before this offset.

    Raise ApiError after the timeout, and if this broker has not led the partition since the
    deletion: the current leader may not know of it.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        if partition.leader != node_id or partition.leader_since_epoch != leader_since_epoch:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if low_watermark(partition, live()) >= offset:
            return
        left_s = deadline - loop.time()
        if left_s <= 0:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT)
        await _wait_for_change(partition, min(left_s, _CHECK_S))


def low_watermark(partition: Partition, live: Collection[int]) -> int:
    """Return the smallest log start of the replicas on live brokers."""
    start = partition.online_log.log_start_offset
    followers = partition.followers
    return start if followers is None else followers.low_watermark(start, live)


async def _wait_for_change(partition: Partition, timeout_s: float) -> None:
    """Return at the next change of the partition, or after the timeout."""
    changed = asyncio.Event()
    partition.waiters.add(changed.set)
    try:
        async with asyncio.timeout(timeout_s):
            await changed.wait()
    except TimeoutError:
        pass
    finally:
        partition.waiters.remove(changed.set)
