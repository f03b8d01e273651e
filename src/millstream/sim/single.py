"""A run with one broker on its embedded store: everything that does not need a second broker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from millstream.control.image import ClusterImage
from millstream.sim.broker import SimBroker
from millstream.sim.checks.convergence import replication_factor_kept, unsettled
from millstream.sim.checks.history import ASSIGN, OK, POLL, Poll
from millstream.sim.checks.history_checks import Violation
from millstream.sim.checks.observe import ChangeCounter, assigned, hosted, samples, whole_logs
from millstream.sim.checks.state_checks import (
    Replica,
    Sample,
    acknowledged_records_survive,
    incarnations_are_separate,
    log_starts_advance,
)
from millstream.sim.checks.verdict import Evidence, judge, leaders
from millstream.sim.clients.channel import Client, Lost, NotSent
from millstream.sim.clients.consumers import Consumer
from millstream.sim.clients.workload import Workload, copy_of
from millstream.sim.faults.power import LAST_LOST_POWER
from millstream.sim.nemesis import Nemesis
from millstream.sim.world.machines import World
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)

_SAMPLE_S = 0.1
_FINAL_S = 120.0
_CONVERGE_S = 120.0
_CONVERGE_STEP_S = 0.25

# A run with less than this proves nothing.
_MINIMUM = {"send ok": 100, "txn ok": 10, "polled": 500, "commits": 5, "copy ok": 3, "faults": 5}


class Single:
    """One broker, its clients, the faults, and the checks afterwards."""

    def __init__(self, world: World, *, quick: bool = False, only: Sequence[str] = ()) -> None:
        self.world = world
        self._faults_s, self._quiet_s = (10.0, 4.0) if quick else (24.0, 6.0)
        self._only = only  # inject only these faults
        self.dice = world.dice_for("single")
        self.keys = [f"data-{i}" for i in range(3)]
        self.copied = self.keys[:2]
        self.brokers = self.make_brokers()
        for broker in self.brokers:
            broker.machine.slowness = self.dice.choice((1.0, 1.0, 5.0, 15.0))
        addresses = [broker.address for broker in self.brokers]
        self.workload = Workload(world, addresses, self.keys, self.copied, self.replication)
        self.samples: list[Sample] = []
        self._done = False

    replication = 1
    size = 1
    clients: ClassVar[dict[str, int]] = {
        "producers": 2,
        "transactors": 2,
        "consumers": 3,
        "members": 2,
        "copiers": 2,
        "recyclers": 1,
        "trimmers": 1,
    }
    minimum: ClassVar[dict[str, int]] = _MINIMUM

    def make_brokers(self) -> list[SimBroker]:
        return [SimBroker(self.world, 1, self.settings())]

    def settings(self) -> dict[str, Any]:
        dice = self.dice
        return {
            # A single broker has no replica to restore from after a power cut, so it flushes every
            # record before it acknowledges.
            "log.flush.interval.messages": 1,
            "offsets.topic.num.partitions": 2,
            "transaction.state.log.num.partitions": 2,
            "log.roll.ms": dice.choice((3_000, 604_800_000)),
            "log.cleaner.backoff.ms": 1000,
            "group.initial.rebalance.delay.ms": dice.choice((0, 500)),
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 2000,
            "connections.max.idle.ms": dice.choice((10_000, 600_000)),
            "log.segment.delete.delay.ms": 2000,
        }

    # -- the run

    async def run(self) -> list[Violation]:
        await self._start()
        sampling = asyncio.get_running_loop().create_task(self._sample())
        self.workload.start(**self.clients)
        nemesis = self.nemesis()
        await nemesis.run(self._faults_s)
        await nemesis.heal()
        await asyncio.sleep(self._quiet_s)
        await self._end_workload()
        await self._final_reads()
        unsettled = await self._converge()
        image = self.image()
        logs, partitions = whole_logs(self.brokers, image), assigned(image)
        self._done = True
        await sampling
        violations: list[Violation] = []
        if not self.world.activity[LAST_LOST_POWER]:
            violations += unsettled
            violations += replication_factor_kept(partitions, self.replication)
            violations += self.check(logs)
        for broker in self.brokers:
            if broker.running:
                await broker.stop()
        return violations

    def nemesis(self) -> Nemesis:
        return Nemesis(self.world, self.brokers, self.workload, only=self._only)

    async def _start(self) -> None:
        for broker in self.brokers[: self.size]:
            await broker.start()
        client = Client(
            self.world.process("admin"), "admin", [broker.address for broker in self.brokers]
        )
        for topic, partitions in (
            ("data", len(self.keys)),
            ("copies", len(self.copied)),
            ("trimmed", 1),
        ):
            await self._create(client, topic, partitions)

    async def _create(self, client: Client, topic: str, partitions: int) -> None:
        row = CreatableTopic(
            name=topic,
            num_partitions=partitions,
            replication_factor=self.replication,
            configs=[
                CreatableTopicConfig(name=name, value=value) for name, value in self.topic_configs()
            ],
        )
        while True:
            try:
                response = await client.request_any(
                    CreateTopicsRequest(topics=[row], timeout_ms=5000), 5
                )
                if response.topics[0].error_code in (0, 36):
                    return
            except (NotSent, Lost):
                pass
            await asyncio.sleep(0.5)

    def topic_configs(self) -> list[tuple[str, str]]:
        return [("internal.segment.bytes", str(self.dice.choice((2048, 16384, 1 << 20))))]

    async def _sample(self) -> None:
        changes = ChangeCounter(self.world.activity)
        while not self._done:
            for broker in self.brokers:
                changes.observe(broker)
                self.samples.extend(samples(broker))
            await asyncio.sleep(_SAMPLE_S)

    async def _end_workload(self) -> None:
        self.workload.stopping = True
        while not self.workload.finished():  # noqa: ASYNC110 - other processes' tasks
            await asyncio.sleep(0.5)
        for process in self.workload.clients:
            process.task.result()

    async def _final_reads(self) -> None:
        """Let a new consumer read every key to its end, once no transaction is open."""
        process = self.world.process("auditor")
        client = Client(process, "auditor", [broker.address for broker in self.brokers])
        consumer = Consumer(client)
        keys = [*self.keys, *map(copy_of, self.copied)]
        consumer.assign(dict.fromkeys(keys, 0))
        uncommitted = Consumer(client, committed=False)
        history = self.workload.history
        assigned = history.invoke("auditor", ASSIGN, [], client.now)
        history.complete(assigned, OK, [], client.now)
        until = client.now + _FINAL_S
        left = list(keys)
        while left and client.now < until:
            op = history.invoke("auditor", POLL, [], client.now)
            history.complete(op, OK, [Poll(await consumer.poll())], client.now)
            for key in list(left):
                end = await uncommitted.end_offset(key)
                if end is not None and consumer.positions[key] >= end:
                    left.remove(key)
        if left and not self.world.activity[LAST_LOST_POWER]:
            self.world.scheduler.errors.append(f"keys that cannot be read to their end: {left}")

    def image(self) -> ClusterImage:
        """Return the topics, as the controller has them."""
        broker = self.brokers[0].broker
        assert broker is not None
        return broker.image

    async def _converge(self) -> list[Violation]:
        """Wait until the cluster has converged. Return the differences that remain in the end."""
        until = self.world.scheduler.now + _CONVERGE_S
        while differences := list(unsettled(assigned(self.image()), hosted(self.brokers))):
            if self.world.scheduler.now >= until:
                return differences
            await asyncio.sleep(_CONVERGE_STEP_S)
        return []

    # -- the checks

    def check(self, logs: dict[str, list[Replica]]) -> list[Violation]:
        workload = self.workload
        violations = judge(
            Evidence(
                workload.history.completions(),
                logs,
                workload.offsets,
                workload.ownerships,
                self.samples,
                group_reads=workload.group_reads,
                copies={key: copy_of(key) for key in self.copied},
            )
        )
        leading = leaders(logs)
        trims = workload.trims
        violations += acknowledged_records_survive(trims.acknowledged, leading)
        kept = {key: log for key, log in leading.items() if not key.startswith("__")}
        violations += log_starts_advance(trims.starts, kept, trims.requested)
        violations += incarnations_are_separate(workload.recycled)
        return violations

    def too_little(self) -> list[str]:
        """Return the activities that were too few."""
        activity = self.world.activity
        activity["faults"] = sum(
            count for name, count in activity.items() if name.startswith("nemesis ")
        )
        missing = [name for name, minimum in self.minimum.items() if activity[name] < minimum]
        return missing + (["power"] if activity[LAST_LOST_POWER] else [])
