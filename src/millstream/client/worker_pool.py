"""One consumer, many threads: ``consumer.run(handle, workers=16)``.

The calling thread polls and commits; the workers handle records. Records with the same key of a partition go to the same worker, so
they keep their order. Only what is finished is committed: of each partition everything before the first record that is not. While
too much is under way the partitions are paused, and polling goes on, so that the group does not take the member for dead. Before a
partition goes to another member, what runs of it is finished and committed, and what only waits is left to the new owner.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from millstream.client.errors import ClientError, UndecodableRecord
from millstream.client.library import KafkaTopicPartition
from millstream.client.record import Record
from millstream.core.types import TopicPartition

if TYPE_CHECKING:
    from millstream.client.consumer import Consumer

log = logging.getLogger("millstream.client")

POLL_S = 0.1
FULL_POLL_S = 0.02


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
    comes next."""

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
        self._consumer = consumer
        self._handle = handle
        self._max_in_flight = max_in_flight
        self._commit_every_s = commit_every_s
        self._drain_timeout_s = drain_timeout_s
        self._on_error = on_error
        self._changed = threading.Condition()
        self._partitions: dict[TopicPartition, Progress] = {}
        self._in_flight = 0
        self._failure: Exception | None = None
        self._stopping = threading.Event()
        self._paused: list[KafkaTopicPartition] = []
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
            membership.on_revoked = self._give_up
        threads = [
            threading.Thread(target=self._work, args=(one,), name=f"worker-{number}", daemon=True)
            for number, one in enumerate(self._queues)
        ]
        for thread in threads:
            thread.start()
        try:
            self._poll_until_the_end()
            self._wait_for_all()
        finally:
            self._stopping.set()
            for one in self._queues:
                one.put(None)
            for thread in threads:
                thread.join(self._drain_timeout_s)
            self._commit(wait=True)
            if membership is not None:
                membership.on_revoked = lambda partitions: None
        if self._failure is not None:
            raise self._failure

    # ---- the polling thread ---------------------------------------------------------------------------------

    def _poll_until_the_end(self) -> None:
        committed_s = time.monotonic()
        while not self._stopping.is_set() and self._failure is None and not self._consumer.finished:
            room = self._max_in_flight - self._in_flight
            if room > 0 and not self._paused:
                self._poll(min(room, 500), POLL_S)
            else:
                self._keep_alive(room)
            if time.monotonic() - committed_s >= self._commit_every_s:
                self._commit(wait=False)
                committed_s = time.monotonic()

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
        self._take(records)

    def _take(self, records: Sequence[Record]) -> None:
        with self._changed:
            polled = self._consumer._polled
            if len(records) != len(polled):  # an interceptor left some out: they count as handled
                for one in polled:
                    self._begin(one)
                left = {(one.topic, one.partition, one.offset) for one in records}
                for one in polled:
                    if (one.topic, one.partition, one.offset) not in left:
                        self._progress(one).finish(one.offset)
            else:
                for one in records:
                    self._begin(one)
            self._in_flight += len(records)
        for record in records:
            self._queues[self._worker_of(record)].put((record, self._partitions[_partition(record)]))

    def _begin(self, record: Record) -> None:
        self._progress(record).begin(record.offset)

    def _progress(self, record: Record) -> Progress:
        return self._partitions.setdefault(_partition(record), Progress())

    def _worker_of(self, record: Record) -> int:
        if record.key is None:
            self._turn += 1
            return self._turn % len(self._queues)
        return hash((record.topic, record.partition, _hashable(record.key))) % len(self._queues)

    def _keep_alive(self, room: int) -> None:
        """Too much is under way: nothing more is fetched, but polling goes on. Half of it done, fetching goes on."""
        client = self._consumer._client
        if client is None:
            return
        if not self._paused:
            self._paused = client.assignment()
            client.pause(self._paused)
        elif room >= self._max_in_flight // 2:
            client.resume([one for one in client.assignment() if one in self._paused])
            self._paused = []
            return
        self._poll(500, FULL_POLL_S)  # brings what a rebalance brought, which is not paused

    def _wait_for_all(self) -> None:
        deadline_s = time.monotonic() + self._drain_timeout_s
        with self._changed:
            while self._unfinished() and time.monotonic() < deadline_s:
                self._changed.wait(POLL_S)

    def _unfinished(self) -> bool:
        if self._stopping.is_set() or self._failure is not None:
            return any(one.running for one in self._partitions.values())
        return self._in_flight > 0

    def _commit(self, *, wait: bool) -> None:
        membership = self._consumer.membership
        if membership is None:
            return
        with self._changed:
            found = {
                one: at.next_offset for one, at in self._partitions.items() if at.next_offset is not None
            }
            busy = {one for one, at in self._partitions.items() if at.waiting}
        for partition, offset in found.items():
            membership.note(partition, offset)
        self._consumer._note_ends(but=busy)
        membership.commit(wait=wait)

    def _give_up(self, partitions: Sequence[TopicPartition]) -> None:
        """Called from within a poll, before the partitions go."""
        deadline_s = time.monotonic() + self._drain_timeout_s
        with self._changed:
            going = [self._partitions[one] for one in partitions if one in self._partitions]
            for progress in going:
                progress.given_up = True
            while any(one.running for one in going) and time.monotonic() < deadline_s:
                self._changed.wait(POLL_S)
        try:
            self._commit(wait=True)
        except ClientError as error:
            log.warning("what was handled last is handled again by another member: %s", error)
        with self._changed:
            for one in partitions:
                self._partitions.pop(one, None)

    # ---- the workers ----------------------------------------------------------------------------------------

    def _work(self, records: queue.SimpleQueue[tuple[Record, Progress] | None]) -> None:
        while (item := records.get()) is not None:
            record, progress = item
            with self._changed:
                skip = progress.given_up or self._stopping.is_set() or self._failure is not None
                progress.running += not skip
            finished = not skip and self._handled(record)
            with self._changed:
                progress.running -= not skip
                if finished:
                    progress.finish(record.offset)
                self._in_flight -= 1
                self._changed.notify_all()

    def _handled(self, record: Record) -> bool:
        try:
            self._handle(record)
            return True
        except Exception as error:
            failure = error
        try:
            if self._on_error is not None:
                self._on_error(record, failure)
                return True
        except Exception as error:
            failure = error
        with self._changed:
            self._failure = self._failure or failure
        return False


def _partition(record: Record) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def _hashable(key: object) -> object:
    try:
        hash(key)
        return key
    except TypeError:
        return repr(key)
