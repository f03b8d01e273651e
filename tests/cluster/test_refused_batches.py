"""Several batches of an idempotent producer in flight, and the first is refused for a reason that passes: those behind it are told the same.

Told that they are out of order, librdkafka begins a new epoch and sends everything without an answer again, for all partitions; what was written
already is then there twice.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from millstream.cluster.partition import Partition
from millstream.control.znodes import PartitionState
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.log.config import LogConfig
from millstream.log.host import LogHost
from millstream.log.open_files import OpenFiles
from millstream.log.partition_log import PartitionLog
from millstream.ports.files import RealFiles
from millstream.wire.batch import Record, build_batch

TP = TopicPartition("orders", 0)
PRODUCER = 7


class Led:
    """A partition that needs two replicas in sync."""

    def __init__(self, directory: Path) -> None:
        log = PartitionLog.create(
            LogHost(RealFiles()),
            OpenFiles(),
            str(directory / str(TP)),
            TP,
            LogConfig(min_insync_replicas=2),
            topic_id=uuid.UUID(int=7),
            start_offset=0,
            now_ms=0,
        )
        self.partition = Partition(TP, bytes(16), log)
        self._version = 0
        self.in_sync(0, 1)

    def follows(self) -> None:
        self._version += 1
        self.partition.follow(PartitionState(1, 1, (0, 1), partition_epoch=self._version))

    def in_sync(self, *nodes: int) -> None:
        self._version += 1
        state = PartitionState(0, 1, nodes, partition_epoch=self._version)
        self.partition.lead(
            0, state, (0, 1), steady_ms=lambda: 0, max_lag_ms=1000, eligible=lambda node, epoch: True
        )

    def send(self, sequence: int, *, epoch: int = 0, now_ms: int = 0) -> ErrorCode:
        batch = build_batch(
            [Record(0, 0, None, b"v")], producer_id=PRODUCER, producer_epoch=epoch, base_sequence=sequence
        )
        records = memoryview(bytearray(batch))
        try:
            if self.partition.leader != 0:
                error = ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                self.partition.explain_gap(records, error, now_ms)
                raise error
            self.partition.append(records, now_ms=now_ms, needs_all=True)
        except ApiError as error:
            return ErrorCode.of(error.code)
        return ErrorCode.NONE


@pytest.fixture
def led(tmp_path: Path) -> Led:
    made = Led(tmp_path)
    assert made.send(0) is ErrorCode.NONE
    return made


def test_batches_behind_a_refused_one_are_refused_for_its_reason(led: Led) -> None:
    led.in_sync(0)
    assert led.send(1) is ErrorCode.NOT_ENOUGH_REPLICAS
    led.in_sync(0, 1)
    assert [led.send(2), led.send(3)] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    assert [led.send(1), led.send(2), led.send(3)] == [ErrorCode.NONE] * 3
    assert led.send(9) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_first_of_those_refused_counts(led: Led) -> None:
    led.in_sync(0)
    assert [led.send(1), led.send(2), led.send(1)] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 3
    led.in_sync(0, 1)
    assert led.send(2) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert [led.send(1), led.send(2)] == [ErrorCode.NONE] * 2


def test_a_real_gap_is_out_of_order(led: Led) -> None:
    assert led.send(2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_another_epoch_and_a_refusal_of_long_ago_explain_nothing(led: Led) -> None:
    led.in_sync(0)
    assert led.send(1) is ErrorCode.NOT_ENOUGH_REPLICAS
    led.in_sync(0, 1)
    assert led.send(3, epoch=1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert led.send(2, now_ms=600_000) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_retry_of_what_is_written_ends_the_refusal(led: Led) -> None:
    led.in_sync(0)
    assert (
        led.send(0) is ErrorCode.NOT_ENOUGH_REPLICAS
    )  # a retry: it is in the log, and waits for its replicas
    led.in_sync(0, 1)
    assert led.send(0) is ErrorCode.NONE
    assert led.partition.refusals is None


def test_a_batch_that_came_before_this_broker_led_explains_the_gap(led: Led) -> None:
    """One that is sent right behind it finds the new leader."""
    led.follows()
    assert led.send(1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    led.in_sync(0, 1)
    assert led.send(2) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [led.send(1), led.send(2)] == [ErrorCode.NONE] * 2


def test_a_refusal_keeps_neither_the_records_nor_their_buffer(led: Led) -> None:
    led.in_sync(0)
    buffer = bytearray(build_batch([Record(0, 0, None, b"v")], producer_id=PRODUCER, base_sequence=1))
    with pytest.raises(ApiError):
        led.partition.append(memoryview(buffer), now_ms=0, needs_all=True)
    assert led.partition.refusals
    buffer.extend(b"a buffer that is referred to cannot grow")
