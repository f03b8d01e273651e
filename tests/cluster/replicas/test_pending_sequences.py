"""Batches of an idempotent producer behind a rejected one get the same retriable error.

After an out-of-order error librdkafka starts a new epoch and sends all unacknowledged batches
again, in all partitions. Those that were written already are duplicated. And if a later batch is
written, librdkafka takes the first for acknowledged: it would be lost.
"""

from __future__ import annotations

import contextlib
import gc
import uuid
from pathlib import Path

import pytest

from millstream.cluster.replicas import pending_sequences
from millstream.cluster.replicas.partition import Partition
from millstream.cluster.replicas.pending_sequences import (
    BEGINNING,
    HANDOVER_MS,
    PendingSequences,
    ProducerBatch,
    producer_batch,
)
from millstream.control.znodes import PartitionState
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.log.config import LogConfig
from millstream.log.management.host import LogHost
from millstream.log.partition_log import PartitionLog
from millstream.log.producers.state import Origin, comes_after
from millstream.log.segments.open_files import OpenFiles
from millstream.ports.files import RealFiles
from millstream.wire.records.batch import Record, build_batch, build_marker

TP = TopicPartition("orders", 0)
TOPIC_ID = bytes(16)
PRODUCER, ANOTHER = 7, 8


class Led:
    """A led partition that needs two replicas in sync."""

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
        self.now_ms = 0
        self.pending = PendingSequences(self._time)
        self.partition = Partition(TP, TOPIC_ID, log, self.pending)
        self._version, self._epoch = 0, 0
        self.in_sync(0, 1)

    def _time(self) -> int:
        return self.now_ms

    def follows(self) -> None:
        self._version += 1
        self._epoch += 1
        self.partition.follow(PartitionState(1, self._epoch, (0, 1), partition_epoch=self._version))

    def leads_again(self) -> None:
        self._epoch += 1
        self.in_sync(0, 1)

    def skips_an_epoch(self) -> None:
        self._epoch += 2
        self.in_sync(0, 1)

    def in_sync(self, *nodes: int, replicas: tuple[int, ...] = (0, 1)) -> None:
        self._version += 1
        state = PartitionState(0, self._epoch, nodes, partition_epoch=self._version)
        self.partition.lead(
            0,
            state,
            replicas,
            steady_ms=self._time,
            max_lag_ms=1000,
            eligible=lambda node, epoch: True,
        )

    def alone(self) -> None:
        self.in_sync(0, replicas=(0,))

    def send(
        self,
        sequence: int,
        *,
        epoch: int = 0,
        producer: int = PRODUCER,
        transactional: bool = False,
    ) -> ErrorCode:
        batch = build_batch(
            [Record(0, 0, None, b"v")],
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        records = memoryview(bytearray(batch))
        try:
            if self.partition.leader != 0:
                error = ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                sent = producer_batch(records)
                assert sent is not None
                self.pending.record_rejection(TP.topic, TP.partition, sent, error)
                raise error
            self.partition.append(records, now_ms=0, needs_all=True)
        except ApiError as error:
            return ErrorCode.of(error.code)
        return ErrorCode.NONE

    def ends(self, *, commit: bool, producer: int = PRODUCER) -> None:
        """End the open transaction, as the coordinator does."""
        marker = build_marker(
            base_offset=0,
            leader_epoch=0,
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
            commit=commit,
            timestamp=0,
        )
        self.partition.append(
            memoryview(bytearray(marker)), now_ms=0, needs_all=False, origin=Origin.COORDINATOR
        )


@pytest.fixture
def led(tmp_path: Path) -> Led:
    made = Led(tmp_path)
    assert made.send(0) is ErrorCode.NONE
    return made


def test_batches_behind_a_rejected_one_get_the_same_error(led: Led) -> None:
    led.in_sync(0)
    assert led.send(1) is ErrorCode.NOT_ENOUGH_REPLICAS
    led.in_sync(0, 1)
    assert [led.send(2), led.send(3)] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    assert [led.send(1), led.send(2), led.send(3)] == [ErrorCode.NONE] * 3
    assert led.send(9) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_first_rejected_batch_counts(led: Led) -> None:
    led.in_sync(0)
    assert [led.send(1), led.send(2), led.send(1)] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 3
    led.in_sync(0, 1)
    assert led.send(2) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert [led.send(1), led.send(2)] == [ErrorCode.NONE] * 2


def test_a_real_gap_is_out_of_order(led: Led) -> None:
    assert led.send(2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_rejection_in_another_producer_epoch_is_ignored(led: Led) -> None:
    led.in_sync(0)
    assert led.send(1) is ErrorCode.NOT_ENOUGH_REPLICAS
    led.in_sync(0, 1)
    assert led.send(3, epoch=1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("producer", [PRODUCER, ANOTHER])
def test_repeated_batch_without_its_predecessor_is_left_to_the_log(led: Led, producer: int) -> None:
    """Its producer has given the other one up."""
    led.in_sync(0)
    first = 1 if producer == PRODUCER else 0
    assert led.send(first, producer=producer) is ErrorCode.NOT_ENOUGH_REPLICAS
    led.in_sync(0, 1)
    for _ in range(2):
        behind = [led.send(first + n, producer=producer) for n in (1, 2)]
        assert behind == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    expected = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if producer == PRODUCER else ErrorCode.NONE
    assert [led.send(first + n, producer=producer) for n in (1, 2)] == [expected] * 2


def test_a_batch_that_is_rejected_again_is_pending_again(led: Led) -> None:
    led.in_sync(0)
    for _ in range(5):
        assert [led.send(1), led.send(2), led.send(3)] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 3
    led.in_sync(0, 1)
    assert [led.send(2), led.send(2)] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2


def test_a_retry_of_an_earlier_batch_keeps_a_later_one_pending(led: Led) -> None:
    led.in_sync(0)
    assert led.send(1) is ErrorCode.NOT_ENOUGH_REPLICAS
    led.in_sync(0, 1)
    assert led.send(0) is ErrorCode.NONE  # again
    assert led.send(2) is ErrorCode.NOT_ENOUGH_REPLICAS


def test_a_rejected_batch_written_by_another_leader_is_not_pending(led: Led) -> None:
    led.follows()
    assert led.send(1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    log = led.partition.online_log
    copied = build_batch(
        [Record(0, 0, None, b"v")], producer_id=PRODUCER, producer_epoch=0, base_sequence=1
    )
    log.append(memoryview(bytearray(copied)), leader_epoch=1, now_ms=0, origin=Origin.CLIENT)
    led.leads_again()
    led.now_ms = HANDOVER_MS + 10
    assert led.send(9) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap_around(led: Led) -> None:
    last = (1 << 31) - 1
    assert comes_after(0, last) and comes_after(1, 0) and comes_after(3, last - 1)
    assert not comes_after(last, 0) and not comes_after(5, 5)


def test_a_stale_epoch_does_not_hide_a_pending_batch(led: Led) -> None:
    led.in_sync(0)
    assert led.send(0, epoch=3, producer=ANOTHER) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert led.send(0, epoch=2, producer=ANOTHER) is ErrorCode.NOT_ENOUGH_REPLICAS
    led.in_sync(0, 1)
    assert led.send(1, epoch=3, producer=ANOTHER) is ErrorCode.NOT_ENOUGH_REPLICAS


def test_abandoned_batches_expire(led: Led) -> None:
    led.in_sync(0)
    assert led.send(0, producer=ANOTHER) is ErrorCode.NOT_ENOUGH_REPLICAS
    led.in_sync(0, 1)
    led.now_ms = 600_000
    assert led.send(1) is ErrorCode.NONE
    assert not led.pending.any


def test_rejections_of_invalid_topic_names_are_not_kept(led: Led) -> None:
    led.pending.record_rejection(
        "x" * 250, 0, ProducerBatch(ANOTHER, 0, 0), ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    )
    assert not led.pending.any


def test_the_retry_of_a_written_batch_ends_the_rejection(led: Led) -> None:
    led.in_sync(0)
    assert (
        led.send(0) is ErrorCode.NOT_ENOUGH_REPLICAS
    )  # a retry: it is in the log, and waits for its replicas
    led.in_sync(0, 1)
    assert led.send(0) is ErrorCode.NONE
    assert not led.pending.any


def test_a_batch_rejected_before_leadership_explains_the_gap(led: Led) -> None:
    """A batch that is sent right behind it reaches the new leader."""
    led.follows()
    assert led.send(1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    led.leads_again()
    assert led.send(2) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [led.send(1), led.send(2)] == [ErrorCode.NONE] * 2


def test_batches_behind_a_rejected_first_batch_are_rejected(led: Led) -> None:
    """The log does not know the producer, and would accept any sequence."""
    led.in_sync(0)
    assert led.send(0, producer=ANOTHER) is ErrorCode.NOT_ENOUGH_REPLICAS
    led.in_sync(0, 1)
    assert [led.send(n, producer=ANOTHER) for n in (1, 2)] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    assert [led.send(n, producer=ANOTHER) for n in (0, 1, 2)] == [ErrorCode.NONE] * 3


def test_a_batch_that_is_retried_stays_the_reason_for_later_ones(led: Led) -> None:
    led.in_sync(0)
    for minute in range(5):
        led.now_ms = minute * 59_000
        assert led.send(0, producer=ANOTHER) is ErrorCode.NOT_ENOUGH_REPLICAS
    led.in_sync(0, 1)
    led.now_ms += 59_000
    assert led.send(1, producer=ANOTHER) is ErrorCode.NOT_ENOUGH_REPLICAS


def test_a_batch_for_an_unknown_topic_id_explains_the_gap(led: Led) -> None:
    """The request named a topic id that this broker did not know yet."""
    first = ProducerBatch(ANOTHER, 0, 0)
    led.pending.record_rejection(
        TOPIC_ID, TP.partition, first, ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
    )
    assert led.send(1, producer=ANOTHER) is ErrorCode.UNKNOWN_TOPIC_ID
    assert [led.send(n, producer=ANOTHER) for n in (0, 1)] == [ErrorCode.NONE] * 2
    assert not led.pending.any


@pytest.mark.parametrize("producer", [PRODUCER, ANOTHER])
def test_a_batch_rejected_by_the_previous_leader_is_awaited(led: Led, producer: int) -> None:
    """librdkafka sends the next batch to the new leader before the old one has responded."""
    led.follows()
    led.leads_again()
    first = 1 if producer == PRODUCER else 0
    behind = [first + 1, first + 2]
    assert [led.send(n, producer=producer) for n in behind] == [
        ErrorCode.NOT_LEADER_OR_FOLLOWER
    ] * 2
    assert [led.send(n, producer=producer) for n in (first, *behind)] == [ErrorCode.NONE] * 3
    assert led.send(99, producer=producer) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_missing_batch_is_awaited_for_two_attempts(led: Led) -> None:
    """The producer may have expired with its records."""
    led.follows()
    led.leads_again()
    for _ in range(2):
        assert [led.send(5), led.send(5, producer=ANOTHER)] == [
            ErrorCode.NOT_LEADER_OR_FOLLOWER
        ] * 2
    assert led.send(5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    led.in_sync(0)
    assert led.send(5, producer=ANOTHER) is ErrorCode.NOT_ENOUGH_REPLICAS
    led.in_sync(0, 1)
    assert [led.send(n, producer=ANOTHER) for n in (5, 6)] == [ErrorCode.NONE] * 2


def test_another_leader_in_between_is_noticed_by_the_epoch(led: Led) -> None:
    """This broker leads in both epochs that it learns of."""
    led.skips_an_epoch()
    assert led.send(1, producer=ANOTHER) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [led.send(n, producer=ANOTHER) for n in (0, 1)] == [ErrorCode.NONE] * 2


def test_attempts_are_counted_again_after_every_leader_change(led: Led) -> None:
    led.follows()
    led.leads_again()
    assert led.send(5, producer=ANOTHER) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert led.send(5, producer=ANOTHER) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    led.follows()
    led.leads_again()
    assert led.send(5, producer=ANOTHER) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert led.send(0, producer=ANOTHER) is ErrorCode.NONE


def test_an_old_batch_is_out_of_order_after_a_leader_change_too(led: Led) -> None:
    assert [led.send(n) for n in range(1, 9)] == [ErrorCode.NONE] * 8
    led.follows()
    led.leads_again()
    assert led.send(1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_leader_change_long_ago_does_not_count(led: Led) -> None:
    led.follows()
    led.leads_again()
    led.now_ms = HANDOVER_MS + 1
    assert led.send(5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_unknown_producer_may_have_been_redirected_by_a_replica(led: Led) -> None:
    """At any time: a client may have taken that replica for the leader.

    After two attempts it is as in Kafka: the producer may have expired.
    """
    assert [led.send(5, producer=ANOTHER) for _ in range(3)] == [
        *[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2,
        ErrorCode.NONE,
    ]


def test_an_unknown_producer_with_a_high_sequence_has_expired(led: Led) -> None:
    assert led.send(BEGINNING, producer=ANOTHER) is ErrorCode.NONE


def test_attempts_are_not_evicted_by_those_of_other_producers(
    monkeypatch: pytest.MonkeyPatch, led: Led
) -> None:
    """Otherwise attempts would never add up if too many producers start at a time."""
    monkeypatch.setattr(pending_sequences, "_MAX_ENTRIES", 3)
    results = [[led.send(5, producer=100 + n) for n in range(5)] for _ in range(3)]
    refused, written = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE
    assert results[0] == [*[refused] * 3, *[written] * 2]
    assert [row[:3] for row in results[1:]] == [[refused] * 3, [written] * 3]


def test_a_single_replica_accepts_any_sequence_of_unknown_producers(
    led: Led,
) -> None:
    led.alone()
    assert led.send(5, producer=ANOTHER) is ErrorCode.NONE


@pytest.mark.parametrize("producer", [PRODUCER, ANOTHER])
def test_a_rejection_behind_another_keeps_no_buffer(led: Led, producer: int) -> None:
    """Nor does the error: a reference cycle would keep it until the garbage collector runs."""
    led.follows()
    led.leads_again()
    buffer = bytearray(
        build_batch(
            [Record(0, 0, None, b"v")], producer_id=producer, producer_epoch=0, base_sequence=5
        )
    )
    gc.disable()
    try:
        with contextlib.suppress(ApiError):
            led.partition.append(memoryview(buffer), now_ms=0, needs_all=True)
        buffer.extend(b"a buffer that is referred to cannot grow")
    finally:
        gc.enable()


def test_a_rejection_keeps_neither_records_nor_buffer(led: Led) -> None:
    led.in_sync(0)
    buffer = bytearray(
        build_batch([Record(0, 0, None, b"v")], producer_id=PRODUCER, base_sequence=1)
    )
    with pytest.raises(ApiError):
        led.partition.append(memoryview(buffer), now_ms=0, needs_all=True)
    assert led.pending.any
    buffer.extend(b"a buffer that is referred to cannot grow")


def test_batch_that_overtakes_its_transaction_is_rejected(led: Led) -> None:
    """An aborted batch's sequences are reused, and the previous leader rejected the first batch."""
    assert led.send(0, producer=ANOTHER, transactional=True) is ErrorCode.NONE
    led.ends(commit=False, producer=ANOTHER)
    led.follows()
    led.leads_again()
    second = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert led.send(1, producer=ANOTHER, transactional=True) is second
    assert led.send(0, producer=ANOTHER, transactional=True) is ErrorCode.UNKNOWN_PRODUCER_ID


def test_transaction_behind_an_ended_one_is_accepted_after_two_tries(led: Led) -> None:
    """All batches before it were acknowledged: no other one will arrive."""
    assert led.send(0, producer=ANOTHER, transactional=True) is ErrorCode.NONE
    led.ends(commit=True, producer=ANOTHER)
    led.follows()
    led.leads_again()
    attempts = [led.send(1, producer=ANOTHER, transactional=True) for _ in range(3)]
    assert attempts == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2 + [ErrorCode.NONE]
    led.ends(commit=True, producer=ANOTHER)
    # The next one has its predecessor under this leader.
    assert led.send(2, producer=ANOTHER, transactional=True) is ErrorCode.NONE


def test_batch_behind_a_rejected_one_does_not_open_a_transaction(led: Led) -> None:
    """The rejected one reuses sequences of an aborted batch, so the one behind it fits."""
    assert led.send(0, producer=ANOTHER, transactional=True) is ErrorCode.NONE
    led.ends(commit=False, producer=ANOTHER)
    led.in_sync(0)
    assert led.send(0, producer=ANOTHER, transactional=True) is ErrorCode.NOT_ENOUGH_REPLICAS
    led.in_sync(0, 1)
    assert led.send(1, producer=ANOTHER, transactional=True) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert led.send(0, producer=ANOTHER, transactional=True) is ErrorCode.UNKNOWN_PRODUCER_ID
