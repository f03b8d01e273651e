"""Several batches of an idempotent producer in flight, and the first is refused for a reason that passes: those behind it are told the same.

Told that they are out of order, librdkafka begins a new epoch and sends everything without an answer again, for all partitions; what was written
already is then there twice. And where one behind it is written, librdkafka takes the first for acknowledged: it would be lost.
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
from millstream.log.host import LogHost
from millstream.log.partition_log import PartitionLog
from millstream.log.producers.state import Origin, comes_after
from millstream.log.segments.open_files import OpenFiles
from millstream.ports.files import RealFiles
from millstream.wire.records.batch import Record, build_batch, build_marker

TP = TopicPartition("orders", 0)
TOPIC_ID = bytes(16)
PRODUCER, ANOTHER = 7, 8


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
            0, state, replicas, steady_ms=self._time, max_lag_ms=1000, eligible=lambda node, epoch: True
        )

    def alone(self) -> None:
        self.in_sync(0, replicas=(0,))

    def send(
        self, sequence: int, *, epoch: int = 0, producer: int = PRODUCER, transactional: bool = False
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
        """The coordinator ends the open transaction."""
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


def test_another_epoch_explains_nothing(led: Led) -> None:
    led.in_sync(0)
    assert led.send(1) is ErrorCode.NOT_ENOUGH_REPLICAS
    led.in_sync(0, 1)
    assert led.send(3, epoch=1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("producer", [PRODUCER, ANOTHER])
def test_a_batch_that_comes_again_without_the_one_before_is_not_refused_for_that_any_more(
    led: Led, producer: int
) -> None:
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


def test_what_is_refused_again_is_awaited_again(led: Led) -> None:
    led.in_sync(0)
    for _ in range(5):
        assert [led.send(1), led.send(2), led.send(3)] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 3
    led.in_sync(0, 1)
    assert [led.send(2), led.send(2)] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2


def test_the_repetition_of_an_earlier_batch_does_not_end_the_refusal_of_a_later_one(led: Led) -> None:
    led.in_sync(0)
    assert led.send(1) is ErrorCode.NOT_ENOUGH_REPLICAS
    led.in_sync(0, 1)
    assert led.send(0) is ErrorCode.NONE  # again
    assert led.send(2) is ErrorCode.NOT_ENOUGH_REPLICAS


def test_a_refused_batch_that_another_leader_wrote_explains_nothing(led: Led) -> None:
    led.follows()
    assert led.send(1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    log = led.partition.online_log
    copied = build_batch([Record(0, 0, None, b"v")], producer_id=PRODUCER, producer_epoch=0, base_sequence=1)
    log.append(memoryview(bytearray(copied)), leader_epoch=1, now_ms=0, origin=Origin.CLIENT)
    led.leads_again()
    led.now_ms = HANDOVER_MS + 10
    assert led.send(9) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_that_begin_again_are_behind_the_last_ones(led: Led) -> None:
    last = (1 << 31) - 1
    assert comes_after(0, last) and comes_after(1, 0) and comes_after(3, last - 1)
    assert not comes_after(last, 0) and not comes_after(5, 5)


def test_an_older_epoch_does_not_hide_what_was_refused_in_the_present_one(led: Led) -> None:
    led.in_sync(0)
    assert led.send(0, epoch=3, producer=ANOTHER) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert led.send(0, epoch=2, producer=ANOTHER) is ErrorCode.NOT_ENOUGH_REPLICAS
    led.in_sync(0, 1)
    assert led.send(1, epoch=3, producer=ANOTHER) is ErrorCode.NOT_ENOUGH_REPLICAS


def test_what_is_abandoned_is_forgotten(led: Led) -> None:
    led.in_sync(0)
    assert led.send(0, producer=ANOTHER) is ErrorCode.NOT_ENOUGH_REPLICAS
    led.in_sync(0, 1)
    led.now_ms = 600_000
    assert led.send(1) is ErrorCode.NONE
    assert not led.pending.any


def test_names_that_no_topic_can_have_are_not_kept(led: Led) -> None:
    led.pending.record_rejection(
        "x" * 250, 0, ProducerBatch(ANOTHER, 0, 0), ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    )
    assert not led.pending.any


def test_the_retry_of_what_is_written_ends_the_refusal(led: Led) -> None:
    led.in_sync(0)
    assert (
        led.send(0) is ErrorCode.NOT_ENOUGH_REPLICAS
    )  # a retry: it is in the log, and waits for its replicas
    led.in_sync(0, 1)
    assert led.send(0) is ErrorCode.NONE
    assert not led.pending.any


def test_a_batch_that_came_before_this_broker_led_explains_the_gap(led: Led) -> None:
    """One that is sent right behind it finds the new leader."""
    led.follows()
    assert led.send(1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    led.leads_again()
    assert led.send(2) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [led.send(1), led.send(2)] == [ErrorCode.NONE] * 2


def test_nothing_is_taken_behind_the_refused_first_batch_of_a_producer(led: Led) -> None:
    """The log knows nothing of it, and would take any sequence."""
    led.in_sync(0)
    assert led.send(0, producer=ANOTHER) is ErrorCode.NOT_ENOUGH_REPLICAS
    led.in_sync(0, 1)
    assert [led.send(n, producer=ANOTHER) for n in (1, 2)] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    assert [led.send(n, producer=ANOTHER) for n in (0, 1, 2)] == [ErrorCode.NONE] * 3


def test_a_refused_batch_that_is_tried_on_and_on_explains_what_is_behind_it_all_the_time(led: Led) -> None:
    led.in_sync(0)
    for minute in range(5):
        led.now_ms = minute * 59_000
        assert led.send(0, producer=ANOTHER) is ErrorCode.NOT_ENOUGH_REPLICAS
    led.in_sync(0, 1)
    led.now_ms += 59_000
    assert led.send(1, producer=ANOTHER) is ErrorCode.NOT_ENOUGH_REPLICAS


def test_a_batch_that_came_before_the_topic_was_known_explains_the_gap(led: Led) -> None:
    """It was asked for by an id of which this broker had not heard."""
    first = ProducerBatch(ANOTHER, 0, 0)
    led.pending.record_rejection(TOPIC_ID, TP.partition, first, ApiError(ErrorCode.UNKNOWN_TOPIC_ID))
    assert led.send(1, producer=ANOTHER) is ErrorCode.UNKNOWN_TOPIC_ID
    assert [led.send(n, producer=ANOTHER) for n in (0, 1)] == [ErrorCode.NONE] * 2
    assert not led.pending.any


@pytest.mark.parametrize("producer", [PRODUCER, ANOTHER])
def test_what_the_leader_before_refused_is_waited_for(led: Led, producer: int) -> None:
    """librdkafka sends the next batch to the new leader while the one before it comes back from the old one."""
    led.follows()
    led.leads_again()
    first = 1 if producer == PRODUCER else 0
    behind = [first + 1, first + 2]
    assert [led.send(n, producer=producer) for n in behind] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    assert [led.send(n, producer=producer) for n in (first, *behind)] == [ErrorCode.NONE] * 3
    assert led.send(99, producer=producer) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_what_does_not_come_is_not_waited_for_long(led: Led) -> None:
    """What was known of a producer may have been deleted with its records."""
    led.follows()
    led.leads_again()
    for _ in range(2):
        assert [led.send(5), led.send(5, producer=ANOTHER)] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    assert led.send(5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    led.in_sync(0)
    assert led.send(5, producer=ANOTHER) is ErrorCode.NOT_ENOUGH_REPLICAS
    led.in_sync(0, 1)
    assert [led.send(n, producer=ANOTHER) for n in (5, 6)] == [ErrorCode.NONE] * 2


def test_that_another_led_is_noticed_when_the_changes_come_together(led: Led) -> None:
    """This broker leads in both of the epochs that it hears of."""
    led.skips_an_epoch()
    assert led.send(1, producer=ANOTHER) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [led.send(n, producer=ANOTHER) for n in (0, 1)] == [ErrorCode.NONE] * 2


def test_what_an_earlier_leader_refused_is_waited_for_anew_after_every_change(led: Led) -> None:
    led.follows()
    led.leads_again()
    assert led.send(5, producer=ANOTHER) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert led.send(5, producer=ANOTHER) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    led.follows()
    led.leads_again()
    assert led.send(5, producer=ANOTHER) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert led.send(0, producer=ANOTHER) is ErrorCode.NONE


def test_what_was_written_long_ago_is_out_of_order_also_after_another_led(led: Led) -> None:
    assert [led.send(n) for n in range(1, 9)] == [ErrorCode.NONE] * 8
    led.follows()
    led.leads_again()
    assert led.send(1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_leader_of_long_ago_explains_nothing(led: Led) -> None:
    led.follows()
    led.leads_again()
    led.now_ms = HANDOVER_MS + 1
    assert led.send(5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_producer_that_is_not_known_may_have_been_sent_on_by_another_replica(led: Led) -> None:
    """At any time: a client may have taken that one for the leader. Then it is as with Kafka: what was known of the producer may have been deleted."""
    assert [led.send(5, producer=ANOTHER) for _ in range(3)] == [
        *[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2,
        ErrorCode.NONE,
    ]


def test_a_producer_that_has_long_begun_was_forgotten(led: Led) -> None:
    assert led.send(BEGINNING, producer=ANOTHER) is ErrorCode.NONE


def test_no_attempt_is_forgotten_for_the_sake_of_others(monkeypatch: pytest.MonkeyPatch, led: Led) -> None:
    """Else nobody would be told often enough where too many begin at a time."""
    monkeypatch.setattr(pending_sequences, "_MAX_ENTRIES", 3)
    told = [[led.send(5, producer=100 + n) for n in range(5)] for _ in range(3)]
    refused, written = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE
    assert told[0] == [*[refused] * 3, *[written] * 2]
    assert [row[:3] for row in told[1:]] == [[refused] * 3, [written] * 3]


def test_where_there_is_no_other_replica_any_sequence_is_taken_of_a_producer_that_is_not_known(
    led: Led,
) -> None:
    led.alone()
    assert led.send(5, producer=ANOTHER) is ErrorCode.NONE


@pytest.mark.parametrize("producer", [PRODUCER, ANOTHER])
def test_what_is_refused_behind_another_keeps_no_buffer_either(led: Led, producer: int) -> None:
    """Neither does the error, whoever has caught it: what refers to itself is not freed before the collector comes."""
    led.follows()
    led.leads_again()
    buffer = bytearray(
        build_batch([Record(0, 0, None, b"v")], producer_id=producer, producer_epoch=0, base_sequence=5)
    )
    gc.disable()
    try:
        with contextlib.suppress(ApiError):
            led.partition.append(memoryview(buffer), now_ms=0, needs_all=True)
        buffer.extend(b"a buffer that is referred to cannot grow")
    finally:
        gc.enable()


def test_a_refusal_keeps_neither_the_records_nor_their_buffer(led: Led) -> None:
    led.in_sync(0)
    buffer = bytearray(build_batch([Record(0, 0, None, b"v")], producer_id=PRODUCER, base_sequence=1))
    with pytest.raises(ApiError):
        led.partition.append(memoryview(buffer), now_ms=0, needs_all=True)
    assert led.pending.any
    buffer.extend(b"a buffer that is referred to cannot grow")


def test_batch_that_overtakes_its_transaction_on_a_new_leader_is_refused(led: Led) -> None:
    """The sequences of an aborted batch are used again, and the leader before refused the first batch that does."""
    assert led.send(0, producer=ANOTHER, transactional=True) is ErrorCode.NONE
    led.ends(commit=False, producer=ANOTHER)
    led.follows()
    led.leads_again()
    second = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert led.send(1, producer=ANOTHER, transactional=True) is second
    assert led.send(0, producer=ANOTHER, transactional=True) is ErrorCode.UNKNOWN_PRODUCER_ID


def test_transaction_behind_an_ended_one_is_taken_at_the_third_attempt_of_its_batch(led: Led) -> None:
    """All batches before it were acknowledged: nothing else comes."""
    assert led.send(0, producer=ANOTHER, transactional=True) is ErrorCode.NONE
    led.ends(commit=True, producer=ANOTHER)
    led.follows()
    led.leads_again()
    attempts = [led.send(1, producer=ANOTHER, transactional=True) for _ in range(3)]
    assert attempts == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2 + [ErrorCode.NONE]
    led.ends(commit=True, producer=ANOTHER)
    # The next one has its predecessor under this leader.
    assert led.send(2, producer=ANOTHER, transactional=True) is ErrorCode.NONE


def test_batch_behind_a_refused_one_does_not_open_the_transaction(led: Led) -> None:
    """The refused one uses sequences of an aborted batch again, so the one behind it fits."""
    assert led.send(0, producer=ANOTHER, transactional=True) is ErrorCode.NONE
    led.ends(commit=False, producer=ANOTHER)
    led.in_sync(0)
    assert led.send(0, producer=ANOTHER, transactional=True) is ErrorCode.NOT_ENOUGH_REPLICAS
    led.in_sync(0, 1)
    assert led.send(1, producer=ANOTHER, transactional=True) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert led.send(0, producer=ANOTHER, transactional=True) is ErrorCode.UNKNOWN_PRODUCER_ID
