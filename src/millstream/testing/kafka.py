"""``Kafka``: the interface of tests to a broker: its address, topics, clients, and failures.

It is the same for a broker on a thread of the test's process (``ThreadKafka``) and for a separate
process (``ProcessKafka``).
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
    """A broker with helpers for tests. It closes the clients that it creates."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._admin: Admin | None = None

    @property
    @abstractmethod
    def bootstrap(self) -> str:
        """The ``bootstrap.servers`` for clients."""

    @property
    @abstractmethod
    def faults(self) -> Faults:
        """Lost, delayed and refused requests and responses."""

    @abstractmethod
    def drop_connections(self) -> None:
        """Close every connection; clients may reconnect at once."""

    @abstractmethod
    def advance(self, **duration: float) -> None:
        """Set the broker's clock forward (``days=8``, as for timedelta) and apply retention."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the broker like kill -9: it sends no responses and flushes nothing."""

    @abstractmethod
    def stop(self) -> None:
        """Shut the broker down cleanly."""

    @abstractmethod
    def start(self) -> None:
        """Start the broker after a kill or stop, with the same port and data."""

    def restart(self, *, kill: bool = False) -> None:
        """Stop or kill the broker, and start it with the same port and data."""
        self.kill() if kill else self.stop()
        self.start()

    # ---- topics ----

    @property
    def admin(self) -> Admin:
        from millstream.client import Admin

        if self._admin is None:
            self._admin = self._open.enter_context(Admin(self.bootstrap, timeout_s=TIMEOUT_S))
        return self._admin

    def topic(
        self, name: str, partitions: int = 1, *, replicas: int | None = None, **settings: object
    ) -> str:
        """Create a topic, with settings such as ``retention_ms=1000``, unless it exists.

        Return its name.
        """
        texts = {key.replace("_", "."): str(value) for key, value in settings.items()}
        try:
            self.admin.topics.create(
                name, partitions=partitions, replication_factor=replicas, configs=texts
            )
        except TopicExists:
            pass
        return name

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Return the log end offset of every partition."""
        return {tp.partition: offset for tp, offset in self.admin.offsets.latest(topic).items()}

    def lag(self, group: str) -> dict[TopicPartition, int]:
        """Return the lag of every partition with a committed offset of the group."""
        return {
            lag.partition: lag.lag for lag in self.admin.groups.lags(group) if lag.lag is not None
        }

    # ---- records ----

    def produce(
        self, topic: str, values: Iterable[Payload | tuple[Payload, Payload]], **options: Any
    ) -> int:
        """Send values or (key, value) pairs, wait until all are written, and return their number.

        The topic is created if it does not exist.
        """
        # Not idempotent: librdkafka would wait half a second for a producer id, and no response
        # gets lost here.
        with self.producer(**{"idempotent": False, "linger_ms": 0} | options) as producer:
            for payload in values:
                key, value = payload if isinstance(payload, tuple) else (None, payload)
                producer.send(topic, value, key=key, timestamp_ms=self._timestamp_ms())
        return producer.sent

    def _timestamp_ms(self) -> int | None:
        """Return the broker's time if its clock was set forward, or None.

        Otherwise retention would delete the records at once.
        """
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
        """Return the records up to the current end, or wait for exactly ``n`` records.

        With ``n`` a missing topic is created; otherwise it raises UnknownTopic.
        """
        from millstream.client import consume

        if n is not None and topic not in self.admin.topics.names():
            self.topic(topic)
        return consume(self.bootstrap, topic, n=n, start=start, timeout_s=timeout_s, **options)

    def producer(self, **options: Any) -> Producer:
        from millstream.client import Producer

        producer = Producer(self.bootstrap, **options)
        self._open.callback(producer.abandon)
        return producer

    def consumer(self, topics: str | Iterable[str], **options: Any) -> Consumer:
        from millstream.client import Consumer

        return self._open.enter_context(Consumer(self.bootstrap, topics, **options))

    def close(self) -> None:
        """Close the clients first, because they would retry as long as the process lives."""
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
            raise ValueError(
                f"a broker's clock can only be set forward, not by {forward.total_seconds():g} s"
            )
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
        self.broker.die()  # its data is not read again, so a clean shutdown is not needed
        self.broker.stop()


class ProcessKafka(Kafka):
    """A broker in a separate process: real signals, and no extra thread in the test.

    It can be killed, but has no faults.
    """

    def __init__(self, directory: Path, settings: Mapping[str, object]) -> None:
        super().__init__()
        self.process = LocalBroker(directory, settings)
        self.process.tied = True  # so that it ends if the test's process is killed
        self.start()

    @property
    def bootstrap(self) -> str:
        return self.process.bootstrap

    @property
    def faults(self) -> Faults:
        raise NotImplementedError("faults need a broker in the test's process (process=False)")

    def drop_connections(self) -> None:
        raise NotImplementedError(
            "a broker process cannot drop its connections: use restart(kill=True)"
        )

    def advance(self, **duration: float) -> None:
        raise NotImplementedError("advance() needs a broker in the test's process (process=False)")

    def kill(self) -> None:
        self.process.kill()

    def stop(self) -> None:
        self.process.stop()

    def start(self) -> None:
        # The kernel ends a tied child with the thread that made it, so use a thread that lives as
        # long as this process.
        _SPAWNER.submit(self.process.spawn).result()
        self.process.wait_ready()

    def close(self) -> None:
        super().close()
        if self.process.running:
            self.process.kill()
