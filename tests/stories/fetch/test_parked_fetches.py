"""Fetches that wait: what an append costs while many of them do, and what ends their waiting."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from millstream.cluster.replicas import waiters as waiters_module
from millstream.cluster.replicas.partition import Partition
from millstream.core.errors import ErrorCode
from millstream.log.errors import ColdRead
from millstream.log.partition_log import PartitionLog, ReadResult
from millstream.ports import turns
from millstream.replication.fetch_session import PartitionFetch
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.records.batch import Record, build_batch
from support.in_process import InProcessBroker
from support.processes import wait_until
from support.raw import Closed, RawClient, create_topic, produce

# Longer than a client waits for an answer: one that comes only when the time is over fails the
# test.
FOREVER_MS = 100_000
ENDLESS = 1 << 30
PARTITIONS = 40
FETCHES = 10
BATCH = build_batch([Record(0, -1, None, b"x" * 100, ())])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[InProcessBroker]:
    with InProcessBroker({"log.dirs": tmp_path, "broker.id": 1}) as made:
        yield made


@pytest.fixture
def producer(broker: InProcessBroker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap) as made:
        yield made


@pytest.fixture
def clients(broker: InProcessBroker) -> Iterator[Callable[[int], list[RawClient]]]:
    with ExitStack() as stack:
        yield lambda count: [stack.enter_context(RawClient(broker.bootstrap)) for _ in range(count)]


def request(topic: str, min_bytes: int, partitions: int = PARTITIONS, **more: int) -> FetchRequest:
    rows = [
        FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1 << 20)
        for n in range(partitions)
    ]
    return FetchRequest(
        max_wait_ms=FOREVER_MS,
        min_bytes=min_bytes,
        max_bytes=50 << 20,
        topics=[FetchTopic(topic=topic, partitions=rows)],
        **more,
    )


def partition_of(broker: InProcessBroker, topic: str, index: int) -> Partition:
    return broker.broker.parts.replicas.leader(topic, index)


def parked(broker: InProcessBroker, topic: str, index: int = PARTITIONS - 1) -> int:
    """How many fetches watch a partition: the last one, so that they watch all."""
    return broker.run(lambda: len(partition_of(broker, topic, index).waiters.watchers or ()))


def park(
    broker: InProcessBroker, topic: str, fetches: list[RawClient], asked: FetchRequest
) -> None:
    for client in fetches:
        client.send(asked, 12)
    wait_until(lambda: parked(broker, topic) == len(fetches), "the fetches wait")


def append(producer: RawClient, topic: str, partition: int) -> None:
    assert produce(producer, topic, partition, BATCH).error_code == 0


def received(client: RawClient) -> dict[int, Any]:
    _, answer = client.receive()
    return {row.partition_index: row for topic in answer.responses for row in topic.partitions}


def sizes(client: RawClient) -> dict[int, int]:
    """Bytes by partition, of those that have any."""
    return {index: len(row.records) for index, row in received(client).items() if row.records}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by the partition's name with every read of a log."""
    seen: list[str] = []
    read = PartitionLog.read

    def counting(self: PartitionLog, *args: Any, **more: Any) -> ReadResult:
        seen.append(str(self.tp))
        return read(self, *args, **more)

    monkeypatch.setattr(PartitionLog, "read", counting)
    return seen


# ---- what an append costs ----


def test_an_append_reads_nothing_but_its_own_partition_once_for_each_fetch(
    broker, producer, clients, reads
):
    create_topic(producer, "t", PARTITIONS)
    for index in range(PARTITIONS):
        append(producer, "t", index)  # so that every partition has something to be read
    park(broker, "t", clients(FETCHES), request("t", ENDLESS))
    for index in (0, 7, 7, PARTITIONS - 1):
        reads.clear()
        append(producer, "t", index)
        broker.run(lambda: None)
        wait_until(lambda: len(reads) >= FETCHES, "every fetch has counted")
        assert reads == [f"t-{index}"] * FETCHES
    assert parked(broker, "t") == FETCHES


def test_no_read_happens_inside_the_append(broker, producer, clients, reads):
    create_topic(producer, "t", PARTITIONS)
    park(broker, "t", clients(FETCHES), request("t", 1))

    def append_here() -> int:
        partition_of(broker, "t", 3).append(memoryview(bytearray(BATCH)), now_ms=1, needs_all=False)
        return len(reads)

    assert broker.run(append_here) == 0


def test_appends_of_one_turn_are_counted_once(broker, producer, clients, reads):
    create_topic(producer, "t", PARTITIONS)
    park(broker, "t", clients(FETCHES), request("t", ENDLESS))

    def append_often() -> None:
        for _ in range(50):
            partition_of(broker, "t", 3).append(
                memoryview(bytearray(BATCH)), now_ms=1, needs_all=False
            )

    broker.run(append_often)
    wait_until(lambda: len(reads) >= FETCHES, "every fetch has counted")
    assert broker.run(lambda: list(reads)) == ["t-3"] * FETCHES


def test_a_fetch_that_waits_leaves_nothing_behind(broker, producer, clients):
    create_topic(producer, "t", PARTITIONS)
    waiting = clients(FETCHES)
    park(broker, "t", waiting, request("t", 1))
    append(producer, "t", 0)
    assert [sizes(client) for client in waiting] == [{0: len(BATCH)}] * FETCHES
    for client in waiting:
        client.send(request("t", ENDLESS), 12)
    wait_until(lambda: parked(broker, "t") == FETCHES, "the fetches wait again")
    for client in waiting:
        client.close()
    wait_until(lambda: parked(broker, "t") == 0, "the fetches of closed connections are forgotten")
    assert broker.run(
        lambda: [partition_of(broker, "t", n).waiters.watchers for n in range(PARTITIONS)]
    ) == ([None] * PARTITIONS)


# ---- what ends the waiting ----


def test_the_least_bytes_are_reached_over_several_partitions(broker, producer, clients):
    create_topic(producer, "t", PARTITIONS)
    append(producer, "t", 0)  # there before the wait
    (client,) = clients(1)
    park(broker, "t", [client], request("t", 5 * len(BATCH)))
    for index in (1, 1, 2):
        append(producer, "t", index)
    assert parked(broker, "t") == 1
    append(producer, "t", 0)
    assert sizes(client) == {0: 2 * len(BATCH), 1: 2 * len(BATCH), 2: len(BATCH)}


def test_a_batch_above_the_limit_of_its_partition_counts_whole(broker, producer, clients):
    create_topic(producer, "t", PARTITIONS)
    (client,) = clients(1)
    asked = request("t", 2 * len(BATCH))
    for row in asked.topics[0].partitions:
        row.partition_max_bytes = 1
    park(broker, "t", [client], asked)
    append(producer, "t", 5)
    append(producer, "t", 4)
    assert sizes(client) == {4: len(BATCH)}  # the second batch has no room in the answer


def test_the_deletion_of_a_topic_ends_the_waiting(broker, producer, clients):
    create_topic(producer, "t", PARTITIONS)
    create_topic(producer, "other")
    waiting = clients(FETCHES)
    asked = request("t", ENDLESS)
    asked.topics.append(
        FetchTopic(topic="other", partitions=[FetchPartition(partition=0, fetch_offset=0)])
    )
    park(broker, "t", waiting, asked)
    deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="other")], timeout_ms=10_000)
    assert producer.call(deletion, 6).responses[0].error_code == 0
    for client in waiting:
        _, answer = client.receive()
        codes = {
            topic.topic: {row.error_code for row in topic.partitions} for topic in answer.responses
        }
        assert codes == {"t": {0}, "other": {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}}


def test_a_partition_that_goes_offline_ends_the_waiting(broker, producer, clients):
    create_topic(producer, "t", PARTITIONS)
    (client,) = clients(1)
    park(broker, "t", [client], request("t", ENDLESS))
    broker.run(lambda: broker.broker.parts.replicas.went_offline([partition_of(broker, "t", 3).tp]))
    failed = {index: row.error_code for index, row in received(client).items() if row.error_code}
    assert failed == {3: ErrorCode.KAFKA_STORAGE_ERROR}


def test_no_record_is_missed_however_fetch_and_append_meet(broker, producer, clients):
    """Both are under way at once: the append lands before the read, between read and wait, or
    after.
    """
    create_topic(producer, "t", 2)
    (client,) = clients(1)
    for offset in range(300):
        asked = request("t", 1, partitions=2)
        for row in asked.topics[0].partitions:
            row.fetch_offset = offset
        client.send(asked, 12)
        append(producer, "t", 0)
        append(producer, "t", 1)
        got = sizes(client)
        assert got and set(got) <= {0, 1}


def test_an_append_in_the_turn_in_which_the_wait_begins_is_seen(
    broker, producer, clients, monkeypatch
):
    from millstream.broker.fetch import delayed

    create_topic(producer, "t", PARTITIONS)
    wait = delayed.wait

    def append_first(fetch: Any, seconds: float) -> Any:
        waiting = wait(fetch, seconds)
        partition_of(broker, "t", 3).append(memoryview(bytearray(BATCH)), now_ms=1, needs_all=False)
        return waiting

    monkeypatch.setattr(delayed, "wait", append_first)
    (client,) = clients(1)
    client.send(request("t", 1), 12)
    assert sizes(client) == {3: len(BATCH)}


@pytest.mark.parametrize("partitions", [1, PARTITIONS])
def test_what_is_not_in_memory_when_the_waiting_ends_comes_from_a_thread(
    broker, producer, clients, monkeypatch, partitions
):
    create_topic(producer, "t", partitions)
    (client,) = clients(1)
    client.send(request("t", 1, partitions), 12)
    wait_until(lambda: parked(broker, "t", partitions - 1) == 1, "the fetch waits")
    read = PartitionLog.read

    def cold(self: PartitionLog, *args: Any, may_block: bool, **more: Any) -> ReadResult:
        if not may_block:
            raise ColdRead
        return read(self, *args, may_block=may_block, **more)

    monkeypatch.setattr(PartitionLog, "read", cold)
    append(producer, "t", 0)
    assert sizes(client) == {0: len(BATCH)}
    append(producer, "t", 0)
    client.send(request("t", 1, partitions), 12)
    assert sizes(client) == {0: 2 * len(BATCH)}


def test_a_defect_while_the_waiting_ends_closes_the_connection_and_is_told(
    broker, producer, clients, monkeypatch, caplog
):
    from millstream.broker.fetch.state import Fetch

    create_topic(producer, "t", PARTITIONS)
    broken, other = clients(2)
    park(broker, "t", [broken, other], request("t", 1))
    respond, failed = Fetch.respond, []

    def fails_for_the_first(self: Fetch) -> Any:
        if not failed or failed[0] is self:
            failed[:] = [self]
            raise RuntimeError("planted")
        return respond(self)

    monkeypatch.setattr(Fetch, "respond", fails_for_the_first)
    append(producer, "t", 3)
    assert sizes(other) == {3: len(BATCH)}
    with pytest.raises(Closed):
        broken.receive()
    assert "planted" in caplog.text


def test_records_of_one_partition_are_read_once_for_the_fetch_that_waits_for_them(
    broker, producer, clients, reads
):
    create_topic(producer, "t", 1)
    (client,) = clients(1)
    client.send(request("t", 1, 1), 12)
    wait_until(lambda: parked(broker, "t", 0) == 1, "the fetch waits")
    append(producer, "t", 0)
    assert sizes(client) == {0: len(BATCH)}
    assert reads == ["t-0"]


def test_an_answer_that_has_to_wait_for_its_turn_is_read_again(
    broker, producer, clients, reads, monkeypatch
):
    monkeypatch.setattr(turns, "_SLICE_S", 0.0)
    create_topic(producer, "t", 1)
    first, second = clients(2)
    for client in (first, second):
        client.send(request("t", 1, 1), 12)
    wait_until(lambda: parked(broker, "t", 0) == 2, "the fetches wait")
    append(producer, "t", 0)
    assert sizes(first) == sizes(second) == {0: len(BATCH)}
    assert reads == ["t-0"] * 3


def test_an_old_client_is_woken_too(broker, producer, clients):
    create_topic(producer, "t", PARTITIONS)
    (client,) = clients(1)
    client.send(request("t", 1), 3)
    wait_until(lambda: parked(broker, "t") == 1, "the fetch waits")
    append(producer, "t", 3)
    assert list(sizes(client)) == [3]


# ---- others who wait for a partition ----


def test_a_wake_without_arguments_is_called_by_the_append_itself(broker, producer):
    create_topic(producer, "t")
    ends: list[int] = []

    def append_here() -> list[int]:
        partition = partition_of(broker, "t", 0)

        def wake() -> None:
            ends.append(partition.online_log.high_watermark)

        partition.waiters.add(wake)
        partition.append(memoryview(bytearray(BATCH)), now_ms=1, needs_all=False)
        partition.waiters.remove(wake)
        partition.append(memoryview(bytearray(BATCH)), now_ms=1, needs_all=False)
        return list(ends)

    assert broker.run(append_here) == [1]


def test_watchers_of_a_partition_are_told_in_portions(broker, producer, monkeypatch):
    """Two at a time, and two such portions in a turn without time; one that stops watching in
    between is not told.
    """
    monkeypatch.setattr(turns, "_SLICE_S", 0.0)
    monkeypatch.setattr(waiters_module, "_WATCHERS_PER_TURN", 2)
    create_topic(producer, "t")
    told: list[tuple[int, int]] = []  # turn and watcher

    async def watch() -> None:
        partition = partition_of(broker, "t", 0)
        turn = 0

        def watcher(number: int) -> Callable[[PartitionFetch], None]:
            return lambda wanted: told.append((turn, number))

        watchers = [watcher(number) for number in range(7)]
        for one in watchers:
            partition.waiters.watch(one, PartitionFetch("t", 0, 0, 1, -1, -1))
        turns.has_time()  # the turn has none left
        partition.waiters.notify_watchers()
        while len(told) < 6:
            await asyncio.sleep(0)
            turn += 1
            partition.waiters.unwatch(watchers[4])
            turns.has_time()
        for one in watchers:
            partition.waiters.unwatch(one)

    broker.wait(watch())
    assert [number for _, number in told] == [0, 1, 2, 3, 5, 6]
    # Asking for the time begins a turn, so that the first portion is followed by a second one.
    assert max(Counter(turn for turn, _ in told).values()) <= 4


def test_fetches_of_a_client_that_goes_are_abandoned_in_slices(broker, producer, monkeypatch):
    monkeypatch.setattr(turns, "_QUANTUM_S", 0.0)
    monkeypatch.setattr(turns, "_SLICE_S", 0.0)
    create_topic(producer, "t", PARTITIONS)
    with RawClient(broker.bootstrap) as client:
        for _ in range(FETCHES):
            client.send(request("t", 1), 12)
        wait_until(lambda: parked(broker, "t") == FETCHES, "the fetches wait")
    left: list[int] = []
    wait_until(
        lambda: left.append(parked(broker, "t")) or left[-1] == 0, "the fetches to be forgotten"
    )
    append(producer, "t", 0)  # no one is told
    assert parked(broker, "t") == 0


# ---- turns ----


def test_many_tasks_that_become_ready_at_once_leave_turns_to_others(monkeypatch):
    """With no time for a second one in a turn, each turn of the loop has one of them."""
    monkeypatch.setattr(turns, "_SLICE_S", 0.0)
    happened: list[str] = []

    async def main() -> None:
        loop, left = asyncio.get_running_loop(), 5

        def work() -> None:
            nonlocal left
            if turns.has_time():
                happened.append("work")
                left -= 1
            else:
                loop.call_soon(work)

        for _ in range(left):
            loop.call_soon(work)
        while left:
            await asyncio.sleep(0)
            happened.append("other")

    asyncio.run(main())
    assert happened.count("work") == 5
    assert "work work" not in " ".join(happened)
