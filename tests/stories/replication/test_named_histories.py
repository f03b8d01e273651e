"""Histories that made Kafka lose records or let replicas part, on the real leaders and followers:
they end well, and end badly without leader epochs, or without what keeps deletions from being
forgotten too early.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from millstream.cluster.replicas import fetcher, follower_session
from millstream.cluster.replicas.partition import Partition
from millstream.log.state import LogState
from millstream.sim.checks.history_checks import Violation
from millstream.sim.clients.consumers import Consumer
from millstream.sim.clients.producers import Producer
from millstream.wire.records.batch import Record
from support.sim.stories import HOST, KEY, Story, Worst, play


@pytest.fixture
def without_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Followers as they were before KIP-101: they say nothing of epochs, and begin by cutting their
    log to the high watermark.
    """
    row, add = follower_session.FollowedPartition.row, fetcher._LeaderLoop.add

    def row_without(self: follower_session.FollowedPartition, max_bytes: int) -> Any:
        made = row(self, max_bytes)
        made.last_fetched_epoch = -1
        return made

    def cut_and_add(self: fetcher._LeaderLoop, partition: Partition) -> None:
        known = self.session.followed.get(partition.tp)
        if known is None or known.partition is not partition or not known.current:
            partition.online_log.truncate_to(partition.online_log.high_watermark)
        add(self, partition)

    monkeypatch.setattr(follower_session.FollowedPartition, "row", row_without)
    monkeypatch.setattr(fetcher._LeaderLoop, "add", cut_and_add)


class LeaderFallsTwice(Story):
    """Everybody has the second record, and who leads in the end does not know yet that everybody
    has it. Cutting to its high watermark on the way loses what was acknowledged.
    """

    replicas: ClassVar = (1, 3, 2)
    configs: ClassVar = {"min.insync.replicas": 2}

    async def tell(self) -> list[Violation]:
        producer = await self.producer()
        await self.send(producer, "first")
        await self.until(lambda: all(self.high_watermark(node) == 1 for node in self.replicas))
        sending = asyncio.get_running_loop().create_task(self.send(producer, "second"))
        await self.at_once_when(lambda: self.end(2) == 2)
        self.cut(1, 2)  # broker 2 still tells how far it is, and hears nothing more
        await sending
        assert self.high_watermark(1) == 2 and self.high_watermark(2) == 1
        self.cut(3, 2)
        self.kill(1)
        await self.until(lambda: self.leads(3) and self.partition(2).leader == 3)
        self.kill(3)
        await self.until(lambda: self.leads(2))
        self.world.network.heal()
        for node in (1, 3):
            await self.brokers[node].start()
        await self.until(lambda: len(self.partition(2).isr) == 3)
        return self.judged(2)


class BothLosePower(Story):
    """The follower loses its second record with its power, comes back first, leads, and writes
    another one in that place.
    """

    replicas: ClassVar = (1, 2)
    configs: ClassVar = {"min.insync.replicas": 1}

    async def tell(self) -> list[Violation]:
        producer = await self.producer()
        await self.send(producer, "first")
        await self.until(lambda: all(self.high_watermark(node) == 1 for node in self.replicas))
        self.brokers[2].machine.disk.root.sync_all()
        await self.send(producer, "second")
        await self.until(lambda: self.high_watermark(2) == 2)
        await asyncio.sleep(5)  # the high watermark is on disk
        self.brokers[1].machine.disk.root.sync_all()
        self.brokers[2].machine.disk.dice = Worst()  # type: ignore[assignment]
        self.brokers[1].crash()
        self.brokers[2].crash()
        self.expire(1)
        await asyncio.sleep(1)  # the other one is the last in sync
        self.expire(2)
        await asyncio.sleep(1)
        await self.brokers[2].start()
        await self.until(lambda: self.leads(2))
        assert self.end(2) == 1
        # lost with the power of the only one that could lead: nobody promised it
        self.acknowledged.pop()
        await self.send(await self.producer(), "third")
        await self.brokers[1].start()
        await self.until(lambda: len(self.partition(2).isr) == 2)
        await self.until(lambda: self.high_watermark(1) == self.high_watermark(2) == 2)
        return self.judged(2)


class TailsOfThreeLeaders(Story):
    """Each of three leaders has written what none of the others has (KIP-279): the two that come
    back follow the third.
    """

    configs: ClassVar = {"min.insync.replicas": 1}

    async def tell(self) -> list[Violation]:
        await self.send(await self.producer(), "first")
        await self.until(lambda: all(self.high_watermark(node) == 1 for node in self.replicas))
        self.cut(1, 2)
        self.cut(1, 3)
        self.cut(2, 3)
        alone = [await self._write_alone(1, 1)]
        self.kill(1)
        await self.until(lambda: self.leads(2) and self.partition(3).leader == 2)
        alone.append(await self._write_alone(2, 2))
        self.kill(2)
        await self.until(lambda: self.leads(3))
        for task in alone:
            task.cancel()
        await self.send(await self.producer(), "third")
        self.world.network.heal()
        for node in (1, 2):
            await self.brokers[node].start()
        await self.until(lambda: len(self.partition(3).isr) == 3)
        await self.until(lambda: self.end(1) == self.end(2) == self.end(3))
        assert not any("alone" in value for batch in self.log(1).batches for value in batch.values)
        return self.judged(3)

    async def _write_alone(self, node: int, count: int) -> asyncio.Task[Any]:
        """What nobody has but this leader, and nobody is told."""
        producer, end = await self.producer(), self.end(node)
        rows = [(KEY, [f"alone on {node}: {i}"]) for i in range(count)]
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(producer.deliver(rows))
        await self.until(lambda: self.end(node) == end + count)
        return task


@pytest.mark.parametrize("story", [LeaderFallsTwice, BothLosePower, TailsOfThreeLeaders])
def test_nothing_is_lost_and_replicas_agree(story: type[Story]) -> None:
    assert play(story) == []


@pytest.mark.usefixtures("without_epochs")
def test_truncation_to_the_high_watermark_loses_an_acknowledged_record() -> None:
    """What the design documents of replication begin with, and KIP-101's first scenario."""
    assert "acknowledged-lost" in play(LeaderFallsTwice)


@pytest.mark.usefixtures("without_epochs")
def test_truncation_to_the_high_watermark_lets_replicas_part() -> None:
    """KIP-101's second scenario."""
    assert "replicas-differ" in play(BothLosePower)


# ---- deletions ----


class Keyed(Producer):
    """Writes "key=value"; no value deletes the key."""

    def _record(self, i: int, now_ms: int, value: str) -> Record:
        key, _, rest = value.partition("=")
        return Record(i, now_ms, key.encode(), value.encode() if rest else None, ())


class AwayForLong(Story):
    """A replica has a key and an open transaction, and is away while the one is deleted and the
    other aborted, for longer than ``delete.retention.ms``; in the end it is the only one that is
    left.
    """

    configs: ClassVar = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.ms": 2000,
        "delete.retention.ms": 1000,
        "min.insync.replicas": 1,
    }

    async def tell(self) -> list[Violation]:
        writer = Keyed(self.client)
        await writer.init()
        other = Keyed(self.client, "transactions", version=1)
        await other.init()
        await writer.deliver([(KEY, ["deleted=1"])])
        await other.add([KEY])
        await other.deliver([(KEY, ["aborted=1"])])
        await self.until(lambda: all(self.end(node) == 2 for node in self.replicas))
        self.kill(3)
        await self.until(lambda: len(self.partition(1).isr) == 2)
        await writer.deliver([(KEY, ["deleted="])])
        await other.end(commit=False)
        await other.add([KEY])
        await other.deliver([(KEY, ["committed=1"])])
        await other.end(commit=True)
        await self._fill(writer, 40)
        await self.brokers[3].start()
        await self.until(lambda: len(self.partition(1).isr) == 3)
        for node in (1, 2):
            self.kill(node)
        await self.until(lambda: self.leads(3))
        await self._fill(writer, 40)
        return await self._read()

    async def _fill(self, writer: Producer, seconds: int) -> None:
        """So that segments close and are cleaned."""
        for i in range(seconds):
            await writer.deliver([(KEY, [f"filler=1{i}"])])
            await asyncio.sleep(1.0)

    async def _read(self) -> list[Violation]:
        consumer = Consumer(self.client)
        consumer.assign({KEY: 0})
        values: list[str] = []
        while consumer.positions[KEY] < self.high_watermark(3):
            before = consumer.positions[KEY]
            values += [value for _, value in (await consumer.poll()).get(KEY, [])]
            if consumer.positions[KEY] == before:
                values.append("stuck")
                break
        wrong = [value for value in values if value in ("deleted=1", "aborted=1", "stuck")]
        assert "committed=1" in values or wrong
        return [Violation(value.partition("=")[0], KEY, "is back") for value in wrong]


def test_a_replica_that_was_away_for_long_brings_nothing_back() -> None:
    assert play(AwayForLong) == []


def test_deletions_that_are_forgotten_too_early_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(LogState, "may_drop_deletions")
    monkeypatch.setattr(
        LogState,
        "may_drop_deletions",
        property(lambda log: True, lambda log, value: None),
        raising=False,
    )
    assert {"deleted", "aborted"} <= set(play(AwayForLong))


# ---- what is gone stays gone, and holds nobody up ----


class TopicMadeAnewWhileAway(Story):
    """A broker comes back when a topic has been deleted, and is then given the new topic of that
    name. What the controller tells it first is a snapshot from before all that.
    """

    async def tell(self) -> list[Violation]:
        producer = await self.producer()
        await self.send(producer, "of the first topic")
        self.kill(3)
        await self.delete_topic()
        self.acknowledged.clear()
        await self.brokers[3].start()
        await self.create_topic()
        await self.send(await self.producer(), "of the second topic")
        await self.until(lambda: len(self.partition(1).isr) == 3)
        return self.judged(3)


class IdIsLostWhileAway(Story):
    """A power cut has left nothing of the file that says which topic a replica belongs to. When the
    broker is back, there is another topic of that name, as long as the first one was.
    """

    async def tell(self) -> list[Violation]:
        await self.send(await self.producer(), "of the first topic")
        await self.until(lambda: self.end(3) == 1)
        self.brokers[
            3
        ].kill()  # its session lives for a while, so that it is given a replica of the new topic
        self.brokers[3].machine.disk.write_bytes("/data/data-0/partition.metadata", b"")
        await self.delete_topic()
        self.acknowledged.clear()
        await self.create_topic(away=3)
        await self.send(await self.producer(), "of the second topic")
        await self.brokers[3].start()
        await self.until(lambda: len(self.partition(1).isr) == 3)
        return self.judged(3)


class StartsInsideABatch(Story):
    """Records are deleted up to the middle of a batch while a replica is away that has nothing of
    it.
    """

    async def tell(self) -> list[Violation]:
        producer = await self.producer()
        self.kill(3)
        (batch,) = await producer.deliver([(KEY, ["a", "b", "c"])])
        assert batch.offset == 0
        await self.delete_records(2)
        await self.brokers[3].start()
        await self.until(lambda: len(self.partition(1).isr) == 3)
        assert self.partition(3).online_log.log_start_offset == 2
        self.acknowledged.append((KEY, 2, "c"))
        return self.judged(3)


class DeletedAndKilled(Story):
    """A follower is killed right after a deletion was answered, and leads when it is back."""

    async def tell(self) -> list[Violation]:
        producer = await self.producer()
        for value in "abcde":
            await self.send(producer, value)
        await self.delete_records(3)
        self.kill(3)
        self.kill(1)
        await self.until(lambda: self.leads(2))
        self.kill(2)
        await self.brokers[2].start()
        await self.until(lambda: self.leads(2))
        assert self.partition(2).online_log.log_start_offset == 3
        return []


class ConnectionBreaksAtTheStart(Story):
    """ZooKeeper cannot be reached for a while when a broker asks it for the first time."""

    async def tell(self) -> list[Violation]:
        self.kill(3)
        starting = asyncio.get_running_loop().create_task(self.brokers[3].start())
        sessions = self.zookeeper.sessions.values()
        await self.at_once_when(lambda: any(one.client_name == "broker-3#2" for one in sessions))
        self.world.network.cut("broker-3", HOST)
        self.world.network.cut(HOST, "broker-3")
        await asyncio.sleep(7.0)  # longer than a connection is believed in
        assert not starting.done()
        self.world.network.heal()
        assert await starting
        await self.until(lambda: len(self.partition(1).isr) == 3)
        return self.judged(3)


@pytest.mark.parametrize(
    "story",
    [
        TopicMadeAnewWhileAway,
        IdIsLostWhileAway,
        StartsInsideABatch,
        DeletedAndKilled,
        ConnectionBreaksAtTheStart,
    ],
)
def test_a_replica_that_was_away_takes_part_again(story: type[Story]) -> None:
    assert play(story) == []


class PowerCutOfTheOneThatIsReached(Story):
    """Two are in sync. One is cut off from ZooKeeper and has everything; the other loses its power,
    and what it had not synced, and is back first. It must not lead.
    """

    configs: ClassVar = {"min.insync.replicas": 2}

    async def tell(self) -> list[Violation]:
        producer = await self.producer()
        await self.send(producer, "first")
        await self.until(lambda: all(self.high_watermark(node) == 1 for node in self.replicas))
        self.brokers[2].machine.disk.root.sync_all()
        self.kill(3)
        await self.until(lambda: len(self.partition(1).isr) == 2)
        await self.send(producer, "second")
        self.world.network.cut("broker-1", HOST)
        self.world.network.cut(HOST, "broker-1")
        self.brokers[2].machine.disk.dice = Worst()  # type: ignore[assignment]
        self.brokers[2].crash()
        self.expire(2)
        self.expire(1)
        await asyncio.sleep(2)
        await self.brokers[2].start()
        await asyncio.sleep(5)
        assert not self.leads(2) and self.end(2) == 1
        self.world.network.heal()
        await self.until(lambda: self.leads(1))
        await self.until(lambda: len(self.partition(1).isr) == 2)
        return self.judged(1)


def test_a_replica_that_lost_its_power_does_not_lead_while_another_was_in_sync() -> None:
    assert play(PowerCutOfTheOneThatIsReached) == []
