"""One consumer, many threads: ``consumer.run(handle, workers=16)``.

The calling thread polls and commits; the workers handle records. Records with the same key of a partition go to the same worker, so
they keep their order. Only what is finished is committed: of each partition everything before the first record that is not. When
too much is under way it is waited for; after a moment the partitions are paused, and polling goes on, so that the group does not take
the member for dead. Before a partition goes to another member, what runs of it is finished and committed, and what only waits is left
to the new owner.

With ``delivery="at-most-once"`` records are committed before they are given to the workers, which then handle all of them, also
after ``stop``. With ``auto_commit=False`` nothing is committed; ``consumer.commit()`` does it when the run has ended.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from millstream.client.delivery import refuse_exactly_once
from millstream.client.errors import ClientError, UndecodableRecord
from millstream.client.library import KafkaTopicPartition
from millstream.client.record import Record
from millstream.core.types import TopicPartition

if TYPE_CHECKING:
    from millstream.client.consumer import Consumer

log = logging.getLogger("millstream.client")

POLL_S = 0.1
PAUSED_POLL_S = 0.02
# To pause throws away what the library has fetched, and to go on waits out a fetch: a pool that is full for a moment only waits.
PAUSE_AFTER_S = 1.0
MAX_POLL_INTERVAL_MS = 300_000  # the library's default
# A pool that is nearly full gives its workers so long to make more room: one poll for many records.
GATHER_S = 0.002


class Progress:
    """What is under way of one partition. ``next_offset`` is what may be committed."""

    def __init__(self) -> None:
        self.given_up = False
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
    """``max_in_flight`` bounds what is polled and not finished. ``on_error(record, error)`` makes a record that failed, or could not be
    decoded, count as handled, when it returns; without it the first failure ends the run, and that record is read again by whoever
    comes next. After ``stop`` or a failure, what runs has ``drain_timeout_s`` to finish; at the end of what was to be read, all the time
    it takes."""

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
                f"{workers} workers and {max_in_flight} records in flight do not go together",
                hint="one worker at least, and a record in flight for each",
            )
        if consumer.guarantee is not None:
            refuse_exactly_once(consumer.guarantee.delivery, "run()")
        self._consumer = consumer
        self._handle = handle
        self._max_in_flight = max_in_flight
        self._commit_every_s = commit_every_s
        self._drain_timeout_s = drain_timeout_s
        self._on_error = on_error
        self._commits_first = consumer._commits_first
        interval_ms = float(consumer.connection.options.get("max.poll.interval.ms", MAX_POLL_INTERVAL_MS))
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
        """Until ``stop``, the end of what was to be read, or a failure, which is raised when all is tidied up."""
        membership = self._consumer.membership
        if membership is not None:
            membership.on_revoked, membership.on_assigned = self._give_up, self._take_over
        threads = [
            threading.Thread(target=self._work, args=(one,), name=f"worker-{number}", daemon=True)
            for number, one in enumerate(self._queues)
        ]
        for thread in threads:
            thread.start()
        try:
            self._poll_until_the_end()
        finally:
            self._stopping.set()
            self._end(threads)
            self._resume()
            if membership is not None:
                membership.on_revoked = membership.on_assigned = lambda partitions: None
            self._commit(wait=True)
        if self._failure is not None:
            raise self._failure

    def _end(self, threads: Sequence[threading.Thread]) -> None:
        deadline_s = time.monotonic() + self._drain_timeout_s
        for one in self._queues:
            one.put(None)
        for thread in threads:
            thread.join(max(deadline_s - time.monotonic(), 0))
        with self._changed:
            left = sum(one.running for one in self._partitions.values())
            lost = self._in_flight if self._commits_first else 0
        if lost:
            log.warning("%d records are committed and not handled after %s s", lost, self._drain_timeout_s)
        elif left:
            log.warning(
                "%d records are still being handled after %s s; whoever comes next reads them again",
                left,
                self._drain_timeout_s,
            )

    # ---- the polling thread ---------------------------------------------------------------------------------

    def _poll_until_the_end(self) -> None:
        committed_s = time.monotonic()
        while not self._ending() and not (self._consumer.finished and self._in_flight == 0):
            self._step()
            if time.monotonic() - committed_s >= self._commit_every_s:
                self._commit(wait=False)
                committed_s = time.monotonic()

    def _ending(self) -> bool:
        return self._stopping.is_set() or self._failure is not None

    def _room(self) -> int:
        return self._max_in_flight - self._in_flight

    def _step(self) -> None:
        if self._consumer.finished:  # and its workers are not
            self._wait(lambda: self._in_flight == 0)
        elif self._room() <= 0 or (self._paused and self._room() < self._max_in_flight // 2):
            self._wait(lambda: self._room() > 0)
        else:
            self._resume()
            if self._room() < self._max_in_flight // 4:
                with self._changed:
                    self._changed.wait_for(lambda: self._room() >= self._max_in_flight // 4, GATHER_S)
            self._poll(min(self._room(), 500), POLL_S)

    def _wait(self, enough: Callable[[], bool]) -> None:
        """For the workers. What takes longer than a moment is waited for with nothing fetched, but polling, which a group expects."""
        if not self._paused:
            deadline_s = time.monotonic() + self._pause_after_s
            with self._changed:
                while not enough() and not self._ending() and (left_s := deadline_s - time.monotonic()) > 0:
                    self._changed.wait(min(left_s, POLL_S))
                if enough() or self._ending():
                    return
            self._pause()
        self._consumer._listen(PAUSED_POLL_S)

    def _pause(self) -> None:
        client = self._consumer._client
        if client is not None:
            client.pause(client.assignment())
            self._paused = True

    def _resume(self) -> None:
        client = self._consumer._client
        if self._paused and client is not None:
            client.resume(client.assignment())
            self._paused = False

    def _take_over(self, partitions: Sequence[TopicPartition]) -> None:
        """Called from within a poll, when partitions have come: those too wait until there is room."""
        client = self._consumer._client
        if self._paused and client is not None:
            client.pause([KafkaTopicPartition(*one) for one in partitions])

    def _poll(self, most: int, timeout_s: float) -> None:
        try:
            records = self._consumer._poll(most, timeout_s)
        except UndecodableRecord as error:
            if self._on_error is None:
                raise
            self._on_error(error.record, error)
            with self._changed:
                self._begin(error.record)
                self._progress(error.record).finish(error.record.offset)
            return
        if not self._commits_first or self._commit_first():
            self._take(records)

    def _take(self, records: Sequence[Record]) -> None:
        polled = self._consumer._polled
        raw_keys: Sequence[bytes | None] = [one.key for one in polled]
        with self._changed:
            for one in polled:
                self._begin(one)
            if self._consumer._chain is not None:  # which may have left some out: they count as handled
                keys = {one[:3]: one.key for one in polled}  # by topic, partition, offset
                raw_keys = [keys.pop(one[:3], None) for one in records]
                for topic, partition, offset in keys:
                    self._partitions[TopicPartition(topic, partition)].finish(offset)
            self._in_flight += len(records)
        for record, key in zip(records, raw_keys, strict=True):
            self._queues[self._worker_of(record, key)].put((record, self._partitions[_partition(record)]))

    def _begin(self, record: Record) -> None:
        self._progress(record).begin(record.offset)

    def _progress(self, record: Record) -> Progress:
        return self._partitions.setdefault(_partition(record), Progress())

    def _worker_of(self, record: Record, key: bytes | None) -> int:
        """By the key as it was written: what it was decoded to need not be comparable."""
        if key is None:
            self._turn += 1
            return self._turn % len(self._queues)
        return hash((record.topic, record.partition, key)) % len(self._queues)

    def _commit(self, *, wait: bool) -> None:
        """What is finished; but only noted, for the caller to commit, where that is his affair."""
        membership = self._consumer.membership
        if membership is None or self._commits_first:
            return
        with self._changed:
            found = {
                one: at.next_offset for one, at in self._partitions.items() if at.next_offset is not None
            }
            busy = {one for one, at in self._partitions.items() if at.waiting}
        for partition, offset in found.items():
            membership.note(partition, offset)
        self._consumer._note_ends(but=busy)
        # A refusal may be that of an earlier commit, which nobody had waited for.
        if self._consumer.auto_commit and not membership.try_commit(wait=wait) and wait:
            membership.try_commit()

    def _commit_first(self) -> bool:
        """Whether what was polled may be handled; if not, it is polled again by whoever has its partition then."""
        membership = self._consumer.membership
        assert membership is not None  # who has no group has no delivery either
        self._consumer._note(self._consumer._polled)
        self._consumer._note_ends()
        if membership.try_commit():
            return True
        self._consumer.rewind()
        return False

    def _give_up(self, partitions: Sequence[TopicPartition]) -> None:
        """Called from within a poll, before the partitions go."""
        deadline_s = time.monotonic() + self._drain_timeout_s
        with self._changed:
            going = [self._partitions[one] for one in partitions if one in self._partitions]
            for progress in going:
                progress.given_up = not self._commits_first  # nobody else reads what is committed
            while self._busy(going) and time.monotonic() < deadline_s:
                self._changed.wait(POLL_S)
        try:
            self._commit(wait=True)
        except ClientError as error:
            log.warning("what was handled last is handled again by another member: %s", error)
        with self._changed:
            for one in partitions:
                self._partitions.pop(one, None)

    def _busy(self, going: Sequence[Progress]) -> bool:
        if self._commits_first and self._failure is None:
            return any(one.waiting for one in going)
        return any(one.running for one in going)

    # ---- the workers ----------------------------------------------------------------------------------------

    def _work(self, records: queue.SimpleQueue[tuple[Record, Progress] | None]) -> None:
        while (item := records.get()) is not None:
            record, progress = item
            with self._changed:
                skip = progress.given_up or (self._ending() and not self._commits_first)
                progress.running += not skip
            finished = not skip and self._handled(record)
            with self._changed:
                progress.running -= not skip
                if finished:
                    progress.finish(record.offset)
                self._in_flight -= 1
                self._changed.notify_all()

    def _handled(self, record: Record) -> bool:
        """Whether it counts as handled. Whatever else is raised ends the run, also what is no Exception: sys.exit, pytest.fail."""
        try:
            self._try(record)
            return True
        except BaseException as error:
            with self._changed:
                self._failure = self._failure or error
            return False

    def _try(self, record: Record) -> None:
        try:
            self._handle(record)
        except Exception as error:
            if self._on_error is None:
                raise
            self._on_error(record, error)


def _partition(record: Record) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)
