"""One consumer, many threads: ``consumer.run(handle, workers=16)``.

The calling thread polls and commits; the workers handle records. Records of a partition with the
same key go to the same worker, so they stay in order. Only finished records are committed: in each
partition, everything before the first record that is not finished.

A full pool makes the poller wait. After a moment it pauses the partitions and polls on, so that the
group does not expire the member. Before a partition goes to another member, its running records are
finished and committed; those still queued are left to the new owner.

With ``delivery="at-most-once"`` records are committed before the workers get them. The workers then
handle all of them, even after ``stop``. With ``auto_commit=False`` nothing is committed; call
``consumer.commit()`` after the run.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from millstream.client.delivery import reject_exactly_once
from millstream.client.errors import ClientError, UndecodableRecord
from millstream.client.library import KafkaTopicPartition
from millstream.client.record import Record
from millstream.core.types import TopicPartition

if TYPE_CHECKING:
    from millstream.client.consumer import Consumer

logger = logging.getLogger("millstream.client")

POLL_S = 0.1
PAUSED_POLL_S = 0.02
# Pausing discards the records that the library has fetched, and resuming waits for a fetch. A pool
# that is full only for a moment waits instead.
PAUSE_AFTER_S = 1.0
MAX_POLL_INTERVAL_MS = 300_000  # the library's default
# Time that a nearly full pool gives its workers to make room, so that one poll gets many records.
GATHER_S = 0.002


class Progress:
    """The records in flight of one partition. ``next_offset`` is the offset to commit."""

    def __init__(self) -> None:
        self.revoked = False
        self.running = 0
        self._order: deque[int] = deque()
        self._finished: set[int] = set()
        self.next_offset: int | None = None

    @property
    def waiting(self) -> int:
        return len(self._order)

    def begin(self, offset: int) -> None:
        self._order.append(offset)

    def finish(self, offset: int) -> None:
        self._finished.add(offset)
        while self._order and self._order[0] in self._finished:
            done = self._order.popleft()
            self._finished.discard(done)
            self.next_offset = done + 1


class WorkerPool:
    """Polls for ``workers`` threads.

    ``max_in_flight`` limits the records that are polled and not finished.

    ``on_error(record, error)`` is called for a record that failed or could not be decoded. If it
    returns, the record counts as handled. Without it the first failure ends the run, and the next
    reader of the partition gets the record again.

    After ``stop`` or a failure, running records have ``drain_timeout_s`` to finish. At the end of
    the partitions there is no limit.
    """

    def __init__(
        self,
        consumer: Consumer,
        handle: Callable[[Record], object],
        *,
        workers: int = 8,
        max_in_flight: int = 1000,
        commit_every_s: float = 1.0,
        drain_timeout_s: float = 30.0,
        on_error: Callable[[Record, Exception], object] | None = None,
    ) -> None:
        if workers < 1 or max_in_flight < workers:
            raise ClientError(
                f"a pool cannot have {workers} workers and {max_in_flight} records in flight",
                hint="use at least one worker, and one record in flight for each",
            )
        if consumer.guarantee is not None:
            reject_exactly_once(consumer.guarantee.delivery, "run()")
        self._consumer = consumer
        self._stream = consumer.stream
        self._handle = handle
        self._max_in_flight = max_in_flight
        self._commit_every_s = commit_every_s
        self._drain_timeout_s = drain_timeout_s
        self._on_error = on_error
        self._commits_first = consumer.commits_first
        interval_ms = float(
            consumer.connection.options.get("max.poll.interval.ms", MAX_POLL_INTERVAL_MS)
        )
        self._pause_after_s = min(PAUSE_AFTER_S, interval_ms / 4000)
        self._changed = threading.Condition()
        self._partitions: dict[TopicPartition, Progress] = {}
        self._in_flight = 0
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._paused = False
        self._turn = 0
        self._queues: list[queue.SimpleQueue[tuple[Record, Progress] | None]] = [
            queue.SimpleQueue() for _ in range(workers)
        ]

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        """Run until ``stop``, the end of the partitions, or a failure, which is raised."""
        membership = self._consumer.membership
        if membership is not None:
            membership.on_revoked, membership.on_assigned = self._on_revoked, self._on_assigned
        threads = [
            threading.Thread(
                target=self._work, args=(records,), name=f"worker-{number}", daemon=True
            )
            for number, records in enumerate(self._queues)
        ]
        for thread in threads:
            thread.start()
        try:
            self._poll_until_end()
        finally:
            self._stopping.set()
            self._join(threads)
            self._resume()
            if membership is not None:
                membership.on_revoked = membership.on_assigned = lambda partitions: None
            self._commit(wait=True)
        if self._failure is not None:
            raise self._failure

    def _join(self, threads: Sequence[threading.Thread]) -> None:
        deadline_s = time.monotonic() + self._drain_timeout_s
        for records in self._queues:
            records.put(None)
        for thread in threads:
            thread.join(max(deadline_s - time.monotonic(), 0))
        with self._changed:
            running = sum(progress.running for progress in self._partitions.values())
            unhandled = self._in_flight if self._commits_first else 0
        if unhandled:
            logger.warning(
                "%d records are committed and not handled after %s s",
                unhandled,
                self._drain_timeout_s,
            )
        elif running:
            logger.warning(
                "%d records are still being handled after %s s; the next reader gets them again",
                running,
                self._drain_timeout_s,
            )

    # ---- the polling thread ----

    def _poll_until_end(self) -> None:
        committed_s = time.monotonic()
        while not self._ending() and not (self._stream.finished and self._in_flight == 0):
            self._step()
            if time.monotonic() - committed_s >= self._commit_every_s:
                self._commit(wait=False)
                committed_s = time.monotonic()

    def _ending(self) -> bool:
        return self._stopping.is_set() or self._failure is not None

    def _room(self) -> int:
        return self._max_in_flight - self._in_flight

    def _step(self) -> None:
        if self._stream.finished:  # but its workers are not
            self._wait(lambda: self._in_flight == 0)
        elif self._room() <= 0 or (self._paused and self._room() < self._max_in_flight // 2):
            self._wait(lambda: self._room() > 0)
        else:
            self._resume()
            if self._room() < self._max_in_flight // 4:
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._room() >= self._max_in_flight // 4, GATHER_S
                    )
            self._poll(min(self._room(), 500), POLL_S)

    def _wait(self, enough: Callable[[], bool]) -> None:
        """Wait for the workers. After a moment, pause fetching and poll for the group."""
        if not self._paused:
            deadline_s = time.monotonic() + self._pause_after_s
            with self._changed:
                while (
                    not enough()
                    and not self._ending()
                    and (left_s := deadline_s - time.monotonic()) > 0
                ):
                    self._changed.wait(min(left_s, POLL_S))
                if enough() or self._ending():
                    return
            self._pause()
        self._stream.serve_group(PAUSED_POLL_S)

    def _pause(self) -> None:
        client = self._stream.client
        if client is not None:
            client.pause(client.assignment())
            self._paused = True

    def _resume(self) -> None:
        client = self._stream.client
        if self._paused and client is not None:
            client.resume(client.assignment())
            self._paused = False

    def _on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Pause new partitions too while the pool is paused. Called from within a poll."""
        client = self._stream.client
        if self._paused and client is not None:
            client.pause([KafkaTopicPartition(*partition) for partition in partitions])

    def _poll(self, max_records: int, timeout_s: float) -> None:
        try:
            records = self._stream.poll(max_records, timeout_s)
        except UndecodableRecord as error:
            if self._on_error is None:
                raise
            self._on_error(error.record, error)
            with self._changed:
                self._begin(error.record)
                self._progress(error.record).finish(error.record.offset)
            return
        if not self._commits_first or self._commit_first():
            self._dispatch(records)

    def _dispatch(self, records: Sequence[Record]) -> None:
        polled = self._stream.polled
        raw_keys: Sequence[bytes | None] = [record.key for record in polled]
        with self._changed:
            for record in polled:
                self._begin(record)
            if self._stream.chain is not None:
                # Interceptors may have dropped records, which count as handled.
                keys = {record[:3]: record.key for record in polled}  # by topic, partition, offset
                raw_keys = [keys.pop(record[:3], None) for record in records]
                for topic, partition, offset in keys:
                    self._partitions[TopicPartition(topic, partition)].finish(offset)
            self._in_flight += len(records)
        for record, key in zip(records, raw_keys, strict=True):
            self._queues[self._worker_of(record, key)].put(
                (record, self._partitions[_partition(record)])
            )

    def _begin(self, record: Record) -> None:
        self._progress(record).begin(record.offset)

    def _progress(self, record: Record) -> Progress:
        return self._partitions.setdefault(_partition(record), Progress())

    def _worker_of(self, record: Record, key: bytes | None) -> int:
        """Choose by the key before decoding: a decoded key need not be hashable."""
        if key is None:
            self._turn += 1
            return self._turn % len(self._queues)
        return hash((record.topic, record.partition, key)) % len(self._queues)

    def _commit(self, *, wait: bool) -> None:
        """Commit finished records; without ``auto_commit``, only prepare the caller's commit."""
        membership = self._consumer.membership
        if membership is None or self._commits_first:
            return
        with self._changed:
            offsets = {
                partition: progress.next_offset
                for partition, progress in self._partitions.items()
                if progress.next_offset is not None
            }
            busy = {
                partition for partition, progress in self._partitions.items() if progress.waiting
            }
        for partition, offset in offsets.items():
            membership.advance(partition, offset)
        self._stream.mark_ends(but=busy)
        # The failure may be that of an earlier commit that did not wait, so try once more.
        if self._consumer.auto_commit and not membership.try_commit(wait=wait) and wait:
            membership.try_commit()

    def _commit_first(self) -> bool:
        """Commit polled records; return whether they may be handled.

        If not, the owner of the partition polls them again.
        """
        membership = self._consumer.membership
        assert membership is not None  # at-most-once delivery requires a group
        self._stream.mark_handed_out(self._stream.polled)
        self._stream.mark_ends()
        if membership.try_commit():
            return True
        self._consumer.rewind()
        return False

    def _on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Finish and commit the running records of the partitions. Called from within a poll."""
        deadline_s = time.monotonic() + self._drain_timeout_s
        with self._changed:
            revoked = [
                self._partitions[partition]
                for partition in partitions
                if partition in self._partitions
            ]
            for progress in revoked:
                # No other member reads records that are committed already.
                progress.revoked = not self._commits_first
            while self._busy(revoked) and time.monotonic() < deadline_s:
                self._changed.wait(POLL_S)
        try:
            self._commit(wait=True)
        except ClientError as error:
            logger.warning("another member handles the last records again: %s", error)
        with self._changed:
            for partition in partitions:
                self._partitions.pop(partition, None)

    def _busy(self, revoked: Sequence[Progress]) -> bool:
        if self._commits_first and self._failure is None:
            return any(progress.waiting for progress in revoked)
        return any(progress.running for progress in revoked)

    # ---- the workers ----

    def _work(self, records: queue.SimpleQueue[tuple[Record, Progress] | None]) -> None:
        while (item := records.get()) is not None:
            record, progress = item
            with self._changed:
                skip = progress.revoked or (self._ending() and not self._commits_first)
                progress.running += not skip
            finished = not skip and self._handle_record(record)
            with self._changed:
                progress.running -= not skip
                if finished:
                    progress.finish(record.offset)
                self._in_flight -= 1
                self._changed.notify_all()

    def _handle_record(self, record: Record) -> bool:
        """Handle a record; return whether it counts as handled. If not, the run ends.

        That includes what is not an Exception: sys.exit, pytest.fail.
        """
        try:
            self._call_handler(record)
            return True
        except BaseException as error:
            with self._changed:
                self._failure = self._failure or error
            return False

    def _call_handler(self, record: Record) -> None:
        try:
            self._handle(record)
        except Exception as error:
            if self._on_error is None:
                raise
            self._on_error(record, error)


def _partition(record: Record) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)
