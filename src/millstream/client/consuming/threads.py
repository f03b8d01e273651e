"""A consumer per thread, all in one group: use several cores for work that releases the GIL.

    with ConsumerThreads(bootstrap, "orders", handle_batch, group="billing", threads=4) as running:
        running.wait()

Each thread has its own consumer and partitions, so records of a partition are handled in order. A
batch is committed when its handler returns; with ``delivery="at-most-once"`` before the handler is
called, with ``auto_commit=False`` never. A failure in one thread stops all of them; ``wait`` raises
it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from millstream.client.connection import Bootstrap
from millstream.client.consumer import Consumer
from millstream.client.delivery import reject_exactly_once
from millstream.client.record import Record

POLL_S = 0.1


class ConsumerThreads:
    """Runs from ``start`` (or the beginning of a ``with`` block) to ``stop``."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        topics: str | Iterable[str],
        handle: Callable[[list[Record]], object],
        *,
        group: str,
        threads: int = 4,
        max_records: int = 500,
        **options: Any,
    ) -> None:
        """Take the ``options`` of Consumer."""
        reject_exactly_once(options.get("delivery"), "ConsumerThreads")
        self._make: Callable[[], Consumer] = lambda: Consumer(
            bootstrap, topics, group=group, **options
        )
        self._handle = handle
        self._max_records = max_records
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, name=f"consumer-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Make each thread finish and commit its batch, and leave the group."""
        self._stopping.set()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for all threads to end; raise the failure of one, or TimeoutError."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(None if deadline_s is None else max(deadline_s - time.monotonic(), 0))
        if self._failure is not None:
            raise self._failure
        if any(thread.is_alive() for thread in self._threads):
            raise TimeoutError("the consumer threads have not ended")

    def _run(self) -> None:
        try:
            with self._make() as consumer:
                while not self._stopping.is_set() and not consumer.finished:
                    self._handle_next(consumer)
        except BaseException as error:
            self._failure = self._failure or error
            self._stopping.set()

    def _handle_next(self, consumer: Consumer) -> None:
        assert consumer.membership is not None
        records = consumer.poll(self._max_records, POLL_S)
        if consumer.commits_first and not consumer.membership.try_commit():
            consumer.rewind()  # the owner of the partition reads them again
            return
        if records:
            self._handle(records)
        if consumer.auto_commit:
            consumer.membership.try_commit()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        for thread in self._threads:
            thread.join()
        if error is None and self._failure is not None:
            raise self._failure
