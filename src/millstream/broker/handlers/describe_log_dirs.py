"""DescribeLogDirs: the log directories, their replicas and free space; null topics mean all.

* v3: an error for the whole response. This broker has none.
* v4: total and usable bytes (KIP-827).
* v5: cordoned directories. There are none here.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING

from millstream.broker.net.context import RequestContext
from millstream.core.errors import ErrorCode
from millstream.core.types import TopicPartition
from millstream.log.directories.replica_move import ReplicaMove
from millstream.log.management.manager import LogDir
from millstream.log.partition_log import PartitionLog
from millstream.ports.turns import Pace, Steps, in_slices
from millstream.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from millstream.broker.services import LogDirectoryServices


async def handle(
    services: LogDirectoryServices, context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    is_requested = await in_slices(_filter(request))
    return DescribeLogDirsResponse(
        results=[
            await _directory(services, log_dir, is_requested)
            for log_dir in services.logs.dirs.values()
        ]
    )


def _filter(request: DescribeLogDirsRequest) -> Steps[Callable[[TopicPartition], bool]]:
    if request.topics is None:
        return lambda tp: True
    partitions: dict[str, list[list[int]]] = {}
    for topic in request.topics:
        partitions.setdefault(topic.topic, []).append(topic.partitions)
        yield
    known: dict[str, frozenset[int]] = {}

    def is_requested(tp: TopicPartition) -> bool:
        if tp.topic not in partitions:
            return False
        if tp.topic not in known:
            known[tp.topic] = frozenset(chain.from_iterable(partitions[tp.topic]))
        return tp.partition in known[tp.topic]

    return is_requested


async def _directory(
    services: LogDirectoryServices, log_dir: LogDir, is_requested: Callable[[TopicPartition], bool]
) -> DescribeLogDirsResult:
    if not log_dir.online:
        return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=log_dir.path)
    loop = asyncio.get_running_loop()
    try:
        total, usable = await loop.run_in_executor(None, services.files.space, log_dir.path)
    except OSError:
        total, usable = -1, -1
    topics: dict[str, list[DescribeLogDirsPartition]] = defaultdict(list)
    pace = Pace()
    rows: list[tuple[bool, TopicPartition, PartitionLog | ReplicaMove]] = [
        *((False, tp, log) for tp, log in services.logs.logs.items()),
        *((True, tp, log) for tp, log in services.logs.futures.items()),
    ]
    for is_future, tp, log in rows:
        if log.log_dir == log_dir.path and is_requested(tp):
            topics[tp.topic].append(_partition(services, log, is_future))
        await pace.rest()
    return DescribeLogDirsResult(
        log_dir=log_dir.path,
        topics=[DescribeLogDirsTopic(name=name, partitions=rows) for name, rows in topics.items()],
        total_bytes=total,
        usable_bytes=usable,
    )


def _partition(
    services: LogDirectoryServices, log: PartitionLog | ReplicaMove, is_future: bool
) -> DescribeLogDirsPartition:
    """Describe a replica. The lag of a future replica is its distance to the current one."""
    lag = max(log.high_watermark - log.log_end_offset, 0)
    if is_future:
        current = services.logs.logs.get(log.tp)
        lag = max(current.log_end_offset - log.log_end_offset, 0) if current is not None else 0
    return DescribeLogDirsPartition(
        partition_index=log.tp.partition,
        partition_size=log.size,
        offset_lag=lag,
        is_future_key=is_future,
    )
