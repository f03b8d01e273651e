"""The workload of a run: each client on its own machine, in a loop, with everything recorded."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from millstream.core.errors import ErrorCode
from millstream.sim.checks.history import (
    ASSIGN,
    FAIL,
    INFO,
    OK,
    PEEK,
    POLL,
    SEND,
    TXN,
    History,
    Mop,
    Poll,
    Send,
)
from millstream.sim.checks.state_checks import Incarnation, OffsetEvent, Ownership
from millstream.sim.clients.channel import Address, Client, Rejected
from millstream.sim.clients.consumers import Consumer
from millstream.sim.clients.copier import Copier
from millstream.sim.clients.group_member import Gone, GroupMember
from millstream.sim.clients.lifecycle import Recycler, Trimmer, Trims
from millstream.sim.clients.producers import Batch, Fatal, Producer
from millstream.sim.world.machines import Process, World

Records = dict[str, list[tuple[int, str]]]
_SHORT_LIVED = 0.15
_ABORT = 0.12
# The share of version 1 transactional producers that reuse sequences after an abort, how often a
# response to them is lost, and how long they try before they abort.
_REUSES_SEQUENCES = 0.5
_LOST_RESPONSE = 0.25
_IMPATIENCE_S = (0.5, 5.0)
_HEARTBEAT_S = 1.0
RACKS = ("rack-0", "rack-1", "rack-2")


class Workload:
    """The clients, and what they have observed."""

    def __init__(
        self,
        world: World,
        bootstrap: list[Address],
        keys: list[str],
        copied: list[str],
        replication: int = 1,
    ) -> None:
        self.world = world
        self.replication = replication
        self.keys = keys  # the targets of producers
        self.copied = copied  # the sources of copiers, each copied to "copies-N"
        self.history = History()
        self.ownerships: list[Ownership] = []
        self.offsets: list[OffsetEvent] = []
        self.group_reads: dict[str, set[str]] = {}
        self.recycled: list[Incarnation] = []
        self.trims = Trims()
        self.stopping = False
        self.clients: list[Process] = []
        self._bootstrap = bootstrap
        self._incarnations = 0
        self._reached: dict[str, int] = {}

    # -- starting and stopping

    def start(
        self,
        *,
        producers: int,
        transactors: int,
        consumers: int,
        members: int,
        copiers: int,
        recyclers: int = 0,
        trimmers: int = 0,
    ) -> None:
        for i in range(producers):
            self._run(f"producer-{i}", self._produce)
        for i in range(transactors):
            self._run(f"transactor-{i}", self._transact)
        for i in range(consumers):
            self._run(f"consumer-{i}", self._consume if i % 3 else self._peek)
        for i in range(members):
            self._run(f"member-{i}", self._join_group)
        for i in range(copiers):
            self._run(f"copier-{i}", self._copy)
        for i in range(recyclers):
            self._run(f"recycler-{i}", self._recycle)
        for i in range(trimmers):
            self._run(f"trimmer-{i}", self._trim)

    def _run(
        self, name: str, behaviour: Callable[[str, Process, random.Random], Awaitable[None]]
    ) -> None:
        process = self.world.process(name)
        self.clients.append(process)

        async def loop() -> None:
            dice = self.world.dice_for(name)
            while not self.stopping:
                self._incarnations += 1
                await behaviour(f"{name}.{self._incarnations}", process, dice)
                await asyncio.sleep(dice.uniform(0.05, 0.5))

        process.task = process.start(loop(), name)

    def finished(self) -> bool:
        return all(process.task.done() for process in self.clients)

    def _client(self, name: str, process: Process) -> Client:
        return Client(process, name, self._bootstrap)

    # -- producers and consumers

    async def _produce(self, name: str, process: Process, dice: random.Random) -> None:
        client = self._client(name, process)
        producer, count = Producer(client, hasty=dice.random() < 0.5), 0
        try:
            await producer.init()
            while not self.stopping:
                keys = dice.sample(self.keys, dice.randint(1, len(self.keys)))
                rows = []
                for _ in range(dice.randint(1, 5)):
                    values = [f"{name}:{count + i}" for i in range(dice.randint(1, 4))]
                    rows.append((dice.choice(keys), values))
                    count += len(values)
                ops = [
                    self.history.invoke(
                        name, SEND, [Send(key, value) for value in values], client.now
                    )
                    for key, values in rows
                ]
                batches = await producer.deliver(rows)
                for op, batch in zip(ops, batches, strict=True):
                    self.world.activity[f"send {batch.outcome}"] += len(batch.values)
                    self.history.complete(
                        op, batch.outcome, _sends(batch), client.now, error=batch.error
                    )
                if any(batch.outcome != OK for batch in batches):
                    return  # a sequence is missing: this producer id cannot continue
                if dice.random() < _SHORT_LIVED:
                    return  # a new producer id, unknown to the leaders
                await asyncio.sleep(dice.expovariate(2.5))
        except (Fatal, Rejected) as error:
            self.world.log(name, f"gives up: {error}")
        finally:
            client.close()

    async def _transact(self, name: str, process: Process, dice: random.Random) -> None:
        client = self._client(name, process)
        version = dice.choice((1, 2))
        # Incarnations sometimes share an id, so that one fences the other.
        producer, count = (
            Producer(client, f"txn-{dice.randrange(3)}", version, hasty=dice.random() < 0.5),
            0,
        )
        producer.reuses_sequences = version == 1 and dice.random() < _REUSES_SEQUENCES
        try:
            await producer.init()
            while not self.stopping:
                keys = [dice.choice(self.keys) for _ in range(dice.randint(1, 4))]
                sends = [(key, f"{name}:{count + i}") for i, key in enumerate(keys)]
                count += len(sends)
                commit = dice.random() >= _ABORT
                steps = [sends] if dice.random() < 0.5 else [[sent] for sent in sends]
                await self._transaction(name, client, producer, steps, commit, dice)
                await asyncio.sleep(dice.expovariate(2.0))
        except (Fatal, Rejected) as error:
            self.world.log(name, f"gives up: {error}")
        finally:
            client.close()

    async def _transaction(
        self,
        name: str,
        client: Client,
        producer: Producer,
        steps: list[list[tuple[str, str]]],
        commit: bool,
        dice: random.Random,
    ) -> None:
        sends = [sent for step in steps for sent in step]
        op = self.history.invoke(name, TXN, [Send(*sent) for sent in sends], client.now)
        done: list[Send] = []
        commit_requested: float | None = None
        outcome, error = INFO, ""
        try:
            for step in steps:
                await producer.add([key for key, _ in step])
                batches = await self._deliver(producer, step, dice)
                done += [Send(batch.key, batch.values[0], batch.offset) for batch in batches]
                if any(batch.outcome != OK for batch in batches):
                    error = ", ".join(batch.error for batch in batches if batch.error)
                    if not await producer.abort_and_continue(batches):
                        raise Fatal(error)
                    outcome = FAIL
                    return
            commit_requested = client.now if commit else None
            await producer.end(commit=commit)
            outcome = OK if commit else FAIL
        except (Fatal, Rejected) as failure:
            # Before the commit was requested it cannot have happened. After that it is unknown.
            outcome, error = FAIL if commit_requested is None else INFO, str(failure)
            raise
        finally:
            self.world.activity[f"txn {outcome}"] += 1
            value = [*done, *(Send(*sent) for sent in sends[len(done) :])]
            self.history.complete(
                op, outcome, value, client.now, error=error, commit_requested=commit_requested
            )

    async def _deliver(
        self, producer: Producer, step: list[tuple[str, str]], dice: random.Random
    ) -> list[Batch]:
        rows = [(key, [value]) for key, value in step]
        if not producer.reuses_sequences:
            return await producer.deliver(rows)
        batches = await producer.deliver(rows, dice.uniform(*_IMPATIENCE_S))
        if dice.random() < _LOST_RESPONSE:
            dice.choice(batches).lose_response()
        for batch in batches:
            if batch.outcome == INFO:
                self.world.activity["sequences in doubt"] += 1
            if batch.error == ErrorCode.UNKNOWN_PRODUCER_ID.name:
                self.world.activity["sequences rejected"] += 1
        return batches

    async def _consume(self, name: str, process: Process, dice: random.Random) -> None:
        await self._read(name, process, dice, POLL)

    async def _peek(self, name: str, process: Process, dice: random.Random) -> None:
        await self._read(name, process, dice, PEEK)

    async def _read(self, name: str, process: Process, dice: random.Random, f: str) -> None:
        client = self._client(name, process)
        rack = dice.choice(("", *RACKS))
        consumer = Consumer(
            client, committed=f == POLL, max_bytes=dice.choice((512, 4096, 1 << 20)), rack=rack
        )
        keys = self.keys + [copy_of(key) for key in self.copied]
        # Some start at 0, others a little before the position of an earlier consumer.
        back = 1 << 60 if dice.random() < 0.3 else 100
        consumer.assign({key: max(self._reached.get(key, 0) - back, 0) for key in keys})
        polls = dice.randint(10, 100)
        while polls and not self.stopping:
            polls -= 1
            op = self.history.invoke(name, f, [], client.now)
            records = await consumer.poll(max_wait_ms=dice.choice((0, 100, 500)))
            self._polled(records)
            self._reached.update(consumer.positions)
            self.history.complete(op, OK, [Poll(records)], client.now)
            await asyncio.sleep(dice.expovariate(2.0))
        client.close()

    def _polled(self, records: Records) -> None:
        self.world.activity["polled"] += sum(map(len, records.values()))

    # -- groups

    async def _join_group(self, name: str, process: Process, dice: random.Random) -> None:
        client = self._client(name, process)
        member = GroupMember(client, "readers", self.keys)
        until = client.now + dice.uniform(5.0, 40.0)
        try:
            while not self.stopping and client.now < until:
                await member.join()
                if not member.rejoin_due:
                    self.ownerships.append(
                        Ownership(
                            member.group, member.generation, member.member_id, tuple(member.owned)
                        )
                    )
                    self.world.activity["generations joined"] += 1
                    await self._read_owned(name, client, member, dice, until)
            if dice.random() < 0.5:
                await member.leave()
        except Gone as error:
            self.world.log(name, f"out of the group: {error}")
        finally:
            client.close()

    async def _read_owned(
        self, name: str, client: Client, member: GroupMember, dice: random.Random, until: float
    ) -> None:
        """Read and commit the owned keys during one generation."""
        consumer = Consumer(client)
        started = client.now
        committed = await member.committed()
        for key, offset in committed.items():
            self.offsets.append(
                OffsetEvent(started, client.now, member.group, key, offset, True, name)
            )
        consumer.assign({key: max(offset, 0) for key, offset in committed.items()})
        assigned = self.history.invoke(name, ASSIGN, [], client.now)
        self.history.complete(assigned, OK, [], client.now)
        beat = client.now
        while not self.stopping and not member.rejoin_due and client.now < until:
            if member.owned:
                op = self.history.invoke(name, POLL, [], client.now)
                records = await consumer.poll(max_wait_ms=200)
                self._polled(records)
                self.history.complete(op, OK, [Poll(records)], client.now)
                for key, rows in records.items():
                    self.group_reads.setdefault(key, set()).update(value for _, value in rows)
                if records:
                    started = client.now
                    offsets = {key: consumer.positions[key] for key in records}
                    if await member.commit(offsets):
                        self.world.activity["commits"] += 1
                        for key, offset in offsets.items():
                            self.offsets.append(
                                OffsetEvent(
                                    started, client.now, member.group, key, offset, False, name
                                )
                            )
            await asyncio.sleep(dice.uniform(0.01, 0.3))
            if client.now - beat >= _HEARTBEAT_S:
                beat = client.now
                await member.heartbeat()

    # -- clients that delete

    async def _recycle(self, name: str, process: Process, dice: random.Random) -> None:
        client = self._client(name, process)
        recycler = Recycler(client, f"passing-of-{name.partition('.')[0]}", self.replication, name)
        while not self.stopping:
            incarnation = await recycler.recycle_once(dice)
            if incarnation is not None:
                self.recycled.append(incarnation)
                self.world.activity["topics recycled"] += 1
            await asyncio.sleep(dice.expovariate(0.5))
        client.close()

    async def _trim(self, name: str, process: Process, dice: random.Random) -> None:
        client = self._client(name, process)
        trimmer = Trimmer(client, "trimmed-0", name, self.trims)
        try:
            await trimmer.producer.init()
            while not self.stopping:
                if await trimmer.round(dice):
                    self.world.activity["trims"] += 1
                await asyncio.sleep(dice.expovariate(1.0))
        except (Fatal, Rejected) as error:
            self.world.log(name, f"gives up: {error}")
        finally:
            client.close()

    # -- copies

    async def _copy(self, name: str, process: Process, dice: random.Random) -> None:
        client = self._client(name, process)
        source = dice.choice(self.copied)
        copier = Copier(client, f"copy-{source}", source, dice.choice((1, 2)))
        attempt = 0
        try:
            fetched_at, offset = await copier.begin()
            assigned = self.history.invoke(name, ASSIGN, [], client.now)
            self.history.complete(assigned, OK, [], client.now)
            self.offsets.append(
                OffsetEvent(fetched_at, client.now, copier.group, source, offset, True, name)
            )
            while not self.stopping:
                records = await copier.consumer.poll(max_wait_ms=200)
                if rows := records.get(source):
                    attempt += 1
                    await self._copy_once(f"{name}/{attempt}", name, copier, rows)
                await asyncio.sleep(dice.expovariate(2.0))
        except (Fatal, Rejected) as error:
            self.world.log(name, f"gives up: {error}")
        finally:
            client.close()

    async def _copy_once(
        self, tag: str, name: str, copier: Copier, rows: list[tuple[int, str]]
    ) -> None:
        client, producer, target = copier.client, copier.producer, copy_of(copier.source)
        values = [f"{value}|{tag}" for _, value in rows]
        polled = Poll({copier.source: rows})
        op = self.history.invoke(
            name, TXN, [polled, *(Send(target, value) for value in values)], client.now
        )
        outcome, error, base = INFO, "", None
        commit_requested: float | None = None
        try:
            await producer.add([target])
            (batch,) = await producer.deliver([(target, values)])
            if batch.outcome != OK:
                raise Fatal(batch.error)
            base = batch.offset
            offset = copier.consumer.positions[copier.source]
            await copier.commit_offset(offset)
            started = commit_requested = client.now
            await producer.end(commit=True)
            outcome = OK
            self.offsets.append(
                OffsetEvent(started, client.now, copier.group, copier.source, offset, False, name)
            )
        except (Fatal, Rejected) as failure:
            outcome, error = FAIL if commit_requested is None else INFO, str(failure)
            raise
        finally:
            self.world.activity[f"copy {outcome}"] += 1
            sends = [
                Send(target, value, None if base is None else base + i)
                for i, value in enumerate(values)
            ]
            value: list[Mop] = [polled, *sends]
            self.history.complete(
                op, outcome, value, client.now, error=error, commit_requested=commit_requested
            )


def copy_of(key: str) -> str:
    return f"copies-{key.rpartition('-')[2]}"


def _sends(batch: Batch) -> list[Send]:
    return [
        Send(batch.key, value, None if batch.offset is None else batch.offset + i)
        for i, value in enumerate(batch.values)
    ]
