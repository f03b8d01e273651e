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

    def in_sync(self, *nodes: int) -> None:
        self._version += 1
        state = PartitionState(0, 1, nodes, partition_epoch=self._version)
        self.partition.lead(0, state, (0, 1), now_ms=0, max_lag_ms=1000, eligible=lambda node, epoch: True)

    def send(self, sequence: int, *, epoch: int = 0, now_ms: int = 0) -> ErrorCode:
        batch = build_batch(
            [Record(0, 0, None, b"v")], producer_id=PRODUCER, producer_epoch=epoch, base_sequence=sequence
        )
        try:
            self.partition.append(memoryview(bytearray(batch)), now_ms=now_ms, needs_all=True)
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
