"""Topics that come and go, and records that are deleted, while a broker is killed: who was told
what.

A change that was answered must hold after any crash; one that was cut off may have happened or not.
"""

from __future__ import annotations

import random
import threading

from millstream.core.errors import ErrorCode
from millstream.local.broker import LocalBroker
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.records.batch import Record, build_batch
from support.raw import (
    Closed,
    RawClient,
    fetch,
    produce,
)

CUT_OFF = (Closed, ConnectionError, TimeoutError)


class Churn:
    """Creates and deletes topics ``churn-N`` and deletes records of ``trimmed``, one change at a
    time.
    """

    def __init__(self, bootstrap: str, seed: int) -> None:
        self._bootstrap = bootstrap
        self._dice = random.Random(seed)
        self._ended = threading.Event()
        self._back = threading.Event()
        self._back.set()
        self._next = 0
        self._client: RawClient | None = None
        self.exists: dict[str, bytes] = {}  # name -> topic id, as the broker told it
        self.deleted: dict[str, bytes] = {}
        self.unsure: set[str] = set()
        self.changes = 0
        self.trimmed_to = 0
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="churn", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                try:
                    self._client = self._client or RawClient(self._bootstrap)
                    self._step(self._client)
                    self.changes += 1
                except CUT_OFF:
                    self._reconnect()
        except BaseException as error:
            self.failure = error

    def _reconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        self._back.clear()
        self._back.wait(0.02)

    def broker_is_back(self, broker: LocalBroker) -> None:
        self._back.set()

    def _step(self, client: RawClient) -> None:
        what = self._dice.random()
        if what < 0.4:
            self._create(client)
        elif what < 0.7 and self.exists:
            self._delete(client, self._dice.choice(sorted(self.exists)))
        else:
            self._trim(client)

    def _create(self, client: RawClient) -> None:
        name = f"churn-{self._next}"
        self._next += 1
        self.unsure.add(name)
        topic = CreatableTopic(
            name=name, num_partitions=self._dice.choice([1, 4]), replication_factor=1
        )
        (made,) = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7).topics
        assert made.error_code == 0, made
        self.unsure.discard(name)
        self.exists[name] = bytes(made.topic_id)

    def _delete(self, client: RawClient, name: str) -> None:
        topic_id = self.exists.pop(name)
        self.unsure.add(name)
        (gone,) = client.call(
            DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=10_000), 6
        ).responses
        assert gone.error_code == 0, gone
        self.unsure.discard(name)
        self.deleted[name] = topic_id

    def _trim(self, client: RawClient) -> None:
        """Some records more, and all but the last of them deleted."""
        rows = [Record(n, -1, None, bytes(700), ()) for n in range(5)]
        produced = produce(client, "trimmed", 0, build_batch(rows))
        base = produced.base_offset
        assert base >= self.trimmed_to, produced
        row = DeleteRecordsPartition(partition_index=0, offset=base + 4)
        asked = DeleteRecordsTopic(name="trimmed", partitions=[row])
        answer = client.call(DeleteRecordsRequest(topics=[asked], timeout_ms=10_000), 2)
        (told,) = answer.topics[0].partitions
        assert told.error_code == 0, told
        self.trimmed_to = told.low_watermark

    @property
    def has_done_enough(self) -> bool:
        """Also where it failed, which is told when it is finished."""
        enough = len(self.exists) > 5 and len(self.deleted) > 5 and self.trimmed_to > 20
        return enough or self.failure is not None

    def finish(self) -> None:
        self._ended.set()
        self._thread.join(60)
        assert not self._thread.is_alive() and self.failure is None, self.failure
        if self._client is not None:
            self._client.close()

    def check(self, bootstrap: str) -> None:
        """What was answered holds."""
        with RawClient(bootstrap) as client:
            topics = client.call(MetadataRequest(topics=None), 12).topics
            found = {
                topic.name: bytes(topic.topic_id)
                for topic in topics
                if topic.name.startswith("churn-")
            }
            assert {name: found.get(name) for name in self.exists} == self.exists
            assert not set(found) & set(self.deleted), "a deleted topic came back"
            assert set(found) - set(self.exists) <= self.unsure
            answer = fetch(client, "trimmed", 0, self.trimmed_to - 1)
            assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE, "deleted records came back"
            assert answer.log_start_offset in (-1, self.trimmed_to)
        assert self.has_done_enough
