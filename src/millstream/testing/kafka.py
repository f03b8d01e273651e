"""``Kafka``: what a test has in its hands: the address of a broker, topics by name, clients, and ways to make it fail.

The same whether the broker is on a thread of the test's process (``ThreadKafka``) or a process of its own (``ProcessKafka``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.client.errors import TopicExists
from millstream.core.types import TopicPartition
from millstream.local.broker import LocalBroker

if TYPE_CHECKING:
    from millstream.client import Admin, Consumer, Position, Producer, Record
    from millstream.client.producer import Payload
    from millstream.testing.faults import Faults
    from millstream.testing.thread_broker import ThreadBroker

TIMEOUT_S = 10.0
_SPAWNER = ThreadPoolExecutor(1, "broker-processes")


class Kafka(ABC):
    """A broker and what goes with it. Clients that it makes are closed with it."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._admin: Admin | None = None

    @property
    @abstractmethod
    def bootstrap(self) -> str:
        """What a client is given as its ``bootstrap.servers``."""

    @property
    @abstractmethod
    def faults(self) -> Faults:
        """Requests and answers that get lost, come late, or are refused."""

    @abstractmethod
    def drop_connections(self) -> None:
        """End every connection there is; clients may come back at once."""

    @abstractmethod
    def advance(self, **duration: float) -> None:
        """Set the broker's clock forward (``days=8``: as for timedelta), and let retention do what is due by then."""

    @abstractmethod
    def kill(self) -> None:
        """As kill -9: nothing is answered or flushed."""

    @abstractmethod
    def stop(self) -> None:
        """In good order."""

    @abstractmethod
    def start(self) -> None:
        """After a kill or a stop: on the same port and data."""

    def restart(self, *, kill: bool = False) -> None:
        """Stop it, or kill it, and start it again on the same port and data."""
        self.kill() if kill else self.stop()
        self.start()

    # ---- topics ---------------------------------------------------------------------------------------------

    @property
    def admin(self) -> Admin:
        from millstream.client import Admin

        if self._admin is None:
            self._admin = self._open.enter_context(Admin(self.bootstrap, timeout_s=TIMEOUT_S))
        return self._admin

    def topic(
        self, name: str, partitions: int = 1, *, replicas: int | None = None, **settings: object
    ) -> str:
        """Make a topic, with settings such as ``retention_ms=1000``, unless it is there already; its name."""
        texts = {key.replace("_", "."): str(value) for key, value in settings.items()}
        try:
            self.admin.topics.create(name, partitions=partitions, replication_factor=replicas, configs=texts)
        except TopicExists:
            pass
        return name

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Of every partition the offset that the next record gets."""
        return {one.partition: offset for one, offset in self.admin.offsets.latest(topic).items()}

    def lag(self, group: str) -> dict[TopicPartition, int]:
        """Of every partition that the group has committed, how many records it has not."""
        return {one.partition: one.lag for one in self.admin.groups.lags(group) if one.lag is not None}

    # ---- records --------------------------------------------------------------------------------------------

    def produce(self, topic: str, values: Iterable[Payload | tuple[Payload, Payload]], **options: Any) -> int:
        """Send values, or (key, value) pairs, and wait until all are written; how many. The topic is made if need be."""
        # Not idempotent: librdkafka would wait half a second for a producer id, and a test has no lost answers here.
        with self.producer(**{"idempotent": False, "linger_ms": 0} | options) as producer:
            for one in values:
                key, value = one if isinstance(one, tuple) else (None, one)
                producer.send(topic, value, key=key, timestamp_ms=self._timestamp_ms())
        return producer.sent

    def _timestamp_ms(self) -> int | None:
        """Where the broker's clock was set forward, records have its time too: else retention would take them at once."""
        return None

    def consume(
        self,
        topic: str,
        n: int | None = None,
        *,
        start: str | int | Position = "earliest",
        timeout_s: float = TIMEOUT_S,
        **options: Any,
    ) -> list[Record]:
        """The records up to the present end; with ``n``, exactly so many, waiting for those that are still to come.

        A topic that does not exist is an error (UnknownTopic), unless something is waited for: then it is made.
        """
        from millstream.client import consume

        if n is not None and topic not in self.admin.topics.names():
            self.topic(topic)
        return consume(self.bootstrap, topic, n=n, start=start, timeout_s=timeout_s, **options)

    def producer(self, **options: Any) -> Producer:
        from millstream.client import Producer

        made = Producer(self.bootstrap, **options)
        self._open.callback(made.abandon)
        return made

    def consumer(self, topics: str | Iterable[str], **options: Any) -> Consumer:
        from millstream.client import Consumer

        return self._open.enter_context(Consumer(self.bootstrap, topics, **options))

    def close(self) -> None:
        """Clients first: one that is left would look for the broker for as long as the process lives."""
        self._admin = None
        self._open.close()


class ThreadKafka(Kafka):
    """A broker on a thread of this process."""

    def __init__(self, broker: ThreadBroker) -> None:
        super().__init__()
        self.broker = broker

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap

    @property
    def faults(self) -> Faults:
        return self.broker.faults

    def drop_connections(self) -> None:
        self.broker.drop_connections()

    def advance(self, **duration: float) -> None:
        forward = timedelta(**duration)
        if forward < timedelta():
            raise ValueError(f"a broker's clock goes forward only, not by {forward.total_seconds():g} s")
        self.broker.advance(int(forward.total_seconds() * 1000))

    def _timestamp_ms(self) -> int | None:
        return self.broker.clock.now_ms() if self.broker.clock.ahead_ms else None

    def kill(self) -> None:
        self.broker.die()

    def stop(self) -> None:
        self.broker.stop()

    def start(self) -> None:
        self.broker.start()

    def close(self) -> None:
        self.faults.clear()
        super().close()
        self.broker.die()  # nobody reads its data again: a clean end would be for nothing
        self.broker.stop()


class ProcessKafka(Kafka):
    """A broker in a process of its own: real signals, and no thread beside the test's. It can be killed but not told to err."""

    def __init__(self, directory: Path, settings: Mapping[str, object]) -> None:
        super().__init__()
        self.process = LocalBroker(directory, settings)
        self.process.tied = True  # nobody else ends it where the test's process is killed
        self.start()

    @property
    def bootstrap(self) -> str:
        return self.process.bootstrap

    @property
    def faults(self) -> Faults:
        raise NotImplementedError("faults need the broker in the test's own process (process=False)")

    def drop_connections(self) -> None:
        raise NotImplementedError("connections of a broker process end with it: use restart(kill=True)")

    def advance(self, **duration: float) -> None:
        raise NotImplementedError("time travel needs the broker in the test's own process (process=False)")

    def kill(self) -> None:
        self.process.kill()

    def stop(self) -> None:
        self.process.stop()

    def start(self) -> None:
        # What the kernel waits for is the end of the thread that made the child: one that lives as long as this process.
        _SPAWNER.submit(self.process.spawn).result()
        self.process.wait_ready()

    def close(self) -> None:
        super().close()
        if self.process.running:
            self.process.kill()
