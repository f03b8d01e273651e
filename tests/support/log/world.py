"""Helpers for the log's tests: batches, a log on a simulated or real disk, reading a whole log
back.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Mapping

from millstream.core.types import TopicPartition
from millstream.log.config import LogConfig
from millstream.log.management.events import LogEvents
from millstream.log.management.host import LogHost
from millstream.log.management.manager import LogManager, ManagerSettings
from millstream.log.partition_log import AppendResult, Origin, PartitionLog
from millstream.log.segments.open_files import OpenFiles
from millstream.ports.files import Files, RealFiles
from millstream.wire.records.batch import (
    BatchHeader,
    Record,
    build_batch,
    build_marker,
    parse_header,
)

TP = TopicPartition("orders", 0)
NOW_MS = 1_700_000_000_000


def batch(
    count: int = 1,
    *,
    size: int = 10,
    timestamp: int = NOW_MS,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    base_offset: int = 0,
    leader_epoch: int = -1,
    fill: bytes = b"v",
    codec: int = 0,
) -> memoryview:
    """Writable bytes of one batch."""
    records = [
        Record(base_offset + n, timestamp + n, b"k%d" % n, fill * size) for n in range(count)
    ]
    return memoryview(
        bytearray(
            build_batch(
                records,
                base_offset=base_offset,
                leader_epoch=leader_epoch,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                transactional=transactional,
                codec=codec,
            )
        )
    )


def marker(producer_id: int, epoch: int, *, commit: bool, coordinator_epoch: int = 0) -> memoryview:
    raw = build_marker(
        base_offset=0,
        leader_epoch=0,
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        commit=commit,
        timestamp=NOW_MS,
    )
    return memoryview(bytearray(raw))


def new_log(
    directory: object,
    config: LogConfig | None = None,
    files: Files | None = None,
    *,
    host: LogHost | None = None,
    start_offset: int = 0,
) -> PartitionLog:
    """A log of its own, outside of any manager."""
    host = host or LogHost(files or RealFiles())
    path = os.path.join(str(directory), str(TP))
    return PartitionLog.create(
        host,
        OpenFiles(),
        path,
        TP,
        config or LogConfig(),
        topic_id=uuid.UUID(int=7),
        start_offset=start_offset,
        now_ms=NOW_MS,
    )


def append(
    log: PartitionLog, records: memoryview, *, leader_epoch: int = 0, **options: object
) -> AppendResult:
    return log.append(records, leader_epoch=leader_epoch, now_ms=NOW_MS, **options)  # type: ignore[arg-type]


def append_marker(
    log: PartitionLog,
    producer_id: int,
    epoch: int,
    *,
    commit: bool,
    coordinator_epoch: int = 0,
    leader_epoch: int = 0,
    transaction_version: int = 0,
) -> AppendResult:
    records = marker(producer_id, epoch, commit=commit, coordinator_epoch=coordinator_epoch)
    return append(
        log,
        records,
        leader_epoch=leader_epoch,
        origin=Origin.COORDINATOR,
        transaction_version=transaction_version,
    )


def manager(
    files: Files,
    directories: list[str],
    configs: Mapping[str, LogConfig] | None = None,
    *,
    config: LogConfig | None = None,
    settings: ManagerSettings | None = None,
    load: bool = True,
    events: LogEvents | None = None,
) -> LogManager:
    """A manager that has opened (and loaded) its directories."""
    default = config or LogConfig()
    made = LogManager(
        files,
        directories,
        config_for=lambda topic: (configs or {}).get(topic, default),
        clock=lambda: NOW_MS,
        settings=settings or ManagerSettings(),
        events=events,
    )
    made.open()
    made.identify("cluster", 1)
    if load:
        for _ in made.load():
            pass
    return made


def split(data: bytes | bytearray) -> list[tuple[BatchHeader, bytes]]:
    """The batches in some bytes; all of them must be whole."""
    found, position = [], 0
    while position < len(data):
        header = parse_header(data, position)
        assert position + header.size <= len(data), "a partial batch"
        found.append((header, bytes(data[position : position + header.size])))
        position += header.size
    return found


def read_all(
    log: PartitionLog,
    *,
    start: int | None = None,
    upto: int | None = None,
    dice: random.Random | None = None,
) -> list[tuple[BatchHeader, bytes]]:
    """Every batch, read piece by piece; checks what every read promises."""
    offset = log.log_start_offset if start is None else start
    upto = log.log_end_offset if upto is None else upto
    found: list[tuple[BatchHeader, bytes]] = []
    while offset < upto:
        max_bytes = dice.choice((1, 100, 500, 5000, 1 << 20)) if dice else 1 << 20
        result = log.read(offset, max_bytes, upto=upto)
        if result.slice is None:
            break
        data = result.slice.read()
        assert len(data) == result.size
        batches = split(data)
        assert len(data) <= max_bytes or len(batches) == 1
        assert batches[0][0].last_offset >= offset
        assert batches[-1][0].last_offset < upto
        assert offset < result.end_offset <= upto
        assert batches[-1][0].last_offset < result.end_offset
        found += batches
        offset = result.end_offset
    return found
