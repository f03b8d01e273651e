"""A data directory with every kind of file, what clients see of it, and ways to damage one file.

`build` fills a directory through a broker and returns what clients saw. `observe` asks the same
questions again, in the way of a client that does not check checksums: every byte that is served
counts.
"""

from __future__ import annotations

import logging
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer

from millstream.core.errors import ErrorCode
from millstream.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from millstream.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from millstream.wire.records.batch import Record, build_batch, parse_header, read_records
from support.in_process import InProcessBroker
from support.raw import RawClient, create_topic, produce

GROUP = "readers"
TRANSACTIONAL_ID = "writer"
BEGAN_MS = int(time.time() * 1000) - 3_600_000
DELETED_BELOW = 7
PARTITIONS = (("orders", 0), ("orders", 1), ("neighbour", 0))
INTERNAL = ("__consumer_offsets", "__transaction_state")
SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "log.index.interval.bytes": 200,
    "log.cleaner.enable": "false",
    "log.retention.ms": -1,
    "num.network.threads": 1,
}
READ_COMMITTED = 1
AT_THE_END = (
    0,
    2,
)  # the largest timestamp and the latest offset, among the answers of `Seen.times`
_LOADING = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,)
_PATIENCE_S = 60.0

Row = tuple[int, bytes | None, bytes | None]


def started(data: Path) -> InProcessBroker:
    return InProcessBroker({"log.dirs": data, **SETTINGS})


# ---- what clients see ----


@dataclass
class Reading:
    """The records of a partition in the order served, and the error that ended the
    reading, if any.
    """

    rows: list[Row] = field(default_factory=list)
    error: int = 0
    start: int = -1


@dataclass
class Seen:
    """Everything that a set of clients learns from a broker."""

    committed: dict[tuple[str, int], Reading]
    uncommitted: dict[tuple[str, int], Reading]
    times: dict[tuple[str, int], list[tuple[int, int, int]]]
    epochs: dict[tuple[str, int], tuple[int, int, int]]
    group: list[tuple[int, int]]
    transaction: tuple[int, int, int]
    flushed: dict[tuple[str, int], int] = field(default_factory=dict)
    """Where the recovery points of a killed broker were: what is below must not be
    lost without a word.
    """


def observe(bootstrap: str) -> Seen:
    with RawClient(bootstrap) as client:
        return Seen(
            committed=_read_all(client, READ_COMMITTED),
            uncommitted=_read_all(client, 0),
            times={tp: _times(client, *tp) for tp in PARTITIONS},
            epochs={tp: _end_of_first_epoch(client, *tp) for tp in PARTITIONS},
            group=_group_offsets(client),
            transaction=_transaction(client),
        )


def _read_all(client: RawClient, isolation: int) -> dict[tuple[str, int], Reading]:
    """Read every partition to its end, all of them in each request."""
    readings = {tp: Reading() for tp in PARTITIONS}
    positions = dict.fromkeys(PARTITIONS, 0)
    waiting = set(PARTITIONS)
    while waiting:
        for tp, answer in _fetch(client, {tp: positions[tp] for tp in waiting}, isolation).items():
            if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and not positions[tp]:
                found = _list_offset(client, *tp, -2)
                if found[0] == 0 and found[2] > 0:
                    positions[tp] = readings[tp].start = found[2]
                    continue
            if _take(readings[tp], positions, tp, answer, isolation):
                waiting.discard(tp)
    return readings


def _take(
    reading: Reading, positions: dict[tuple[str, int], int], tp, answer, isolation: int
) -> bool:  # type: ignore[no-untyped-def]
    """Add what one answer holds; whether the reading of this partition is over."""
    if answer.error_code:
        reading.error = answer.error_code
        return True
    data = bytes(answer.records or b"")
    if not data:
        return True
    aborted = {(row.producer_id, row.first_offset) for row in answer.aborted_transactions or ()}
    position, before = 0, positions[tp]
    while position < len(data):
        header = parse_header(data, position)
        batch = data[position : position + header.size]
        assert len(batch) == header.size, f"{tp}: a partial batch is served at byte {position}"
        position += header.size
        positions[tp] = header.next_offset
        if header.control:
            aborted = {
                row
                for row in aborted
                if row[0] != header.producer_id or row[1] > header.base_offset
            }
            continue
        hidden = any(
            pid == header.producer_id and first <= header.base_offset for pid, first in aborted
        )
        if isolation == READ_COMMITTED and header.transactional and hidden:
            continue
        rows = read_records(batch, max_bytes=1 << 20)
        reading.rows += [(row.offset, row.key, row.value) for row in rows if row.offset >= before]
    return positions[tp] <= before


def _fetch(client: RawClient, positions: dict[tuple[str, int], int], isolation: int):  # type: ignore[no-untyped-def]
    rows = [
        FetchTopic(
            topic=topic,
            partitions=[FetchPartition(partition=index, fetch_offset=at, partition_max_bytes=3000)],
        )
        for (topic, index), at in positions.items()
    ]
    request = FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=isolation, topics=rows
    )
    answer = client.call(request, 11)
    assert answer.error_code == 0, ErrorCode.of(answer.error_code)
    found = {
        (topic.topic, row.partition_index): row
        for topic in answer.responses
        for row in topic.partitions
    }
    assert set(found) == set(positions), "the fetch leaves partitions out"
    return found


def _list_offset(client: RawClient, topic: str, index: int, timestamp: int) -> tuple[int, int, int]:
    row = ListOffsetsPartition(partition_index=index, timestamp=timestamp)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[row])])
    (found,) = client.call(request, 7).topics[0].partitions
    return found.error_code, found.timestamp, found.offset


def _times(client: RawClient, topic: str, index: int) -> list[tuple[int, int, int]]:
    wanted = (-3, -2, -1, *(BEGAN_MS + step for step in (0, 4_500, 12_000, 29_000, 10**9)))
    return [_list_offset(client, topic, index, timestamp) for timestamp in wanted]


def _end_of_first_epoch(client: RawClient, topic: str, index: int) -> tuple[int, int, int]:
    """(error, epoch, end offset) of leader epoch 0, by which consumers and followers notice that
    logs have parted.
    """
    row = OffsetForLeaderPartition(partition=index, current_leader_epoch=-1, leader_epoch=0)
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[row])]
    )
    (found,) = client.call(request, 4).topics[0].partitions
    return found.error_code, found.leader_epoch, found.end_offset


def _until_loaded(ask: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
    deadline = time.monotonic() + _PATIENCE_S
    while (answer := ask())[0] in _LOADING and time.monotonic() < deadline:
        time.sleep(0.01)
    return answer


def _group_offsets(client: RawClient) -> list[tuple[int, int]]:
    """(error, offset) of what the group has committed, for each partition."""
    topics = [OffsetFetchRequestTopics(name="orders", partition_indexes=[0, 1])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=topics)])

    def ask() -> tuple[int, ...]:
        (group,) = client.call(request, 8).groups
        if group.error_code:
            return (group.error_code,)
        rows = group.topics[0].partitions
        return next((r.error_code for r in rows if r.error_code), 0), *(
            r.committed_offset for r in rows
        )

    error, *offsets = _until_loaded(ask)
    return [(0, offset) for offset in offsets] if not error else [(error, -1)]


def _transaction(client: RawClient) -> tuple[int, int, int]:
    """(error, producer id, epoch) of a new incarnation of the transactional producer."""
    request = InitProducerIdRequest(
        transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=60_000
    )

    def ask() -> tuple[int, ...]:
        answer = client.call(request, 4)
        return answer.error_code, answer.producer_id, answer.producer_epoch

    error, producer_id, epoch = _until_loaded(ask)
    return error, producer_id, epoch


# ---- filling a directory ----


def batch(number: int) -> bytes:
    timestamp = BEGAN_MS + 1000 * number
    value = (b"value-%d " % number).ljust(40)
    return build_batch(
        [Record(0, timestamp, b"key-%d" % number, value, ())], max_timestamp=timestamp
    )


def build(data: Path, *, kill: bool) -> Seen:
    """Fill a new data directory, stop the broker cleanly or kill it, and return
    what clients saw.
    """
    broker = started(data).start()
    with RawClient(broker.bootstrap) as client:
        create_topic(client, "orders", 2, retention_ms=-1)
        create_topic(client, "neighbour", 1, retention_ms=-1)
        for number in range(30):
            for topic, index in PARTITIONS:
                assert produce(client, topic, index, batch(number)).error_code == 0
            if number % 8 == 0:
                _commit(client, number)
            if number == 14:
                # What was flushed and what was not are different things after a kill.
                broker.run(lambda: [log.flush() for log in broker.broker.parts.logs.logs.values()])
                broker.run(broker.broker.parts.logs.checkpoints.write_all)
            if number in (9, 19):
                broker.run(
                    lambda: [
                        log.roll(now_ms=BEGAN_MS) for log in broker.broker.parts.logs.logs.values()
                    ]
                )
            if number % 10 == 4:
                _transactions(broker.bootstrap, number)
        _delete_records(client)
        _commit(client, 23)
        seen = observe(broker.bootstrap)
    broker.die() if kill else broker.stop()
    broker.stop()
    seen.flushed = _recovery_points(data)
    assert all(seen.flushed[tp] > 0 for tp in PARTITIONS), (
        "some is flushed, so that its loss is found"
    )
    return seen


def _recovery_points(data: Path) -> dict[tuple[str, int], int]:
    rows = [
        line.split()
        for line in (data / "recovery-point-offset-checkpoint").read_text().splitlines()[2:]
    ]
    return {(topic, int(index)): int(offset) for topic, index, offset in rows}


def _transactions(bootstrap: str, number: int) -> None:
    """An aborted transaction, then a committed one, on both partitions of orders."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": TRANSACTIONAL_ID, "linger.ms": 0}
    )
    producer.init_transactions(_PATIENCE_S)
    for outcome in ("aborted", "committed"):
        producer.begin_transaction()
        for index in (0, 1):
            producer.produce(
                "orders",
                f"{outcome}-{number}".encode(),
                partition=index,
                timestamp=BEGAN_MS + 1000 * number,
            )
        producer.flush(_PATIENCE_S)
        if outcome == "aborted":
            producer.abort_transaction(_PATIENCE_S)
        else:
            producer.commit_transaction(_PATIENCE_S)


def _delete_records(client: RawClient) -> None:
    row = DeleteRecordsPartition(partition_index=1, offset=DELETED_BELOW)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name="orders", partitions=[row])], timeout_ms=10_000
    )
    (answer,) = client.call(request, 2).topics[0].partitions
    assert answer.error_code == 0


def _commit(client: RawClient, offset: int) -> None:
    rows = [
        OffsetCommitRequestPartition(partition_index=n, committed_offset=offset + n) for n in (0, 1)
    ]
    request = OffsetCommitRequest(
        group_id=GROUP, topics=[OffsetCommitRequestTopic(name="orders", partitions=rows)]
    )

    client.call(FindCoordinatorRequest(coordinator_keys=[GROUP]), 4)  # creates the internal topic

    def ask() -> tuple[int, ...]:
        (topic,) = client.call(request, 8).topics
        return (topic.partitions[0].error_code,)

    deadline = time.monotonic() + _PATIENCE_S
    while ask()[0] != 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ---- damage ----


def _flip(path: Path, dice: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)


def _truncate(path: Path, dice: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: dice.randrange(len(data))])


def _remove(path: Path, dice: random.Random) -> None:
    path.unlink()


def _garbage(path: Path, dice: random.Random) -> None:
    path.write_bytes(dice.randbytes(max(path.stat().st_size, 100)))


def _unreadable(path: Path, dice: random.Random) -> None:
    """Opening it fails, whoever tries: a directory is in its place."""
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "flipped": _flip,
    "truncated": _truncate,
    "missing": _remove,
    "garbage": _garbage,
    "unreadable": _unreadable,
}
_EMPTY_CANNOT = ("flipped", "truncated")


def damages(data: Path) -> list[tuple[str, str]]:
    """(file, damage) for every file of the directory and every damage that it can take."""
    return [
        (str(path.relative_to(data)), name)
        for path in sorted(path for path in data.rglob("*") if path.is_file())
        for name in DAMAGES
        if path.name != ".lock" and _applies(path, name, data)
    ]


def _applies(path: Path, name: str, data: Path) -> bool:
    if name == "unreadable":
        return path.parent != data
    return bool(path.stat().st_size) or name not in _EMPTY_CANNOT


class Warnings(logging.Handler):
    """What the broker logs at level WARNING and above."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def text(self) -> str:
        return "\n".join(record.getMessage() for record in self.records)

    @property
    def tracebacks(self) -> list[str]:
        return [r.getMessage() for r in self.records if r.exc_info and r.exc_info[0] is not None]

    def __enter__(self) -> Warnings:
        logging.getLogger("millstream").addHandler(self)
        return self

    def __exit__(self, *_exception: object) -> None:
        logging.getLogger("millstream").removeHandler(self)


def copy(template: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(template, to)
    return to
