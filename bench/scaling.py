"""`python -m bench.scaling`: the cost of cluster control by numbers of brokers and partitions.

It goes up to a million partitions on a thousand brokers. The controller, its image and its feed are
real. The brokers do not exist, and a store that only counts takes the place of ZooKeeper. Times are
CPU seconds of one core. Each size runs in a separate process, to measure its memory. `--docs`
writes the table into docs/scaling.md; `--zookeeper` also loads a tree from a real ZooKeeper server.
"""

import argparse
import asyncio
import inspect
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil  # type: ignore[import-untyped]

from bench.machine import facts
from bench.model import HERE
from bench.processes import ROOT, environment
from bench.report import number, write_docs
from millstream.cluster.controller.feed_service import FeedService
from millstream.cluster.controller.isr_changes import IsrRequest
from millstream.cluster.controller.leader_election import LeaderElections
from millstream.cluster.controller.partitions import PartitionControl
from millstream.cluster.controller.reassignments import PartitionReassignments
from millstream.cluster.controller.term import ControllerState, Term
from millstream.control import znodes
from millstream.control.image import ClusterImage
from millstream.control.znodes import BrokerEndpoint, BrokerRegistration, PartitionState
from millstream.core.types import TopicPartition
from millstream.ports.coordination import Check, Create, Delete, Node, Put, Write
from millstream.wire.messages.controller_feed import (
    ControllerFeedRequest,
    ControllerFeedResponse,
    nodes_of,
)

DOCS = HERE.parent / "docs" / "scaling.md"
BEGIN = "<!-- figures: begin (written by `python -m bench.scaling --docs`) -->"
PARTITIONS_PER_TOPIC = 100
REPLICAS = 3
CHANGES = 100
OBSERVER = 2_000_000_000
FRAME_BYTES = 9  # size, correlation id, no tags


class Size(NamedTuple):
    brokers: int
    partitions: int

    def __str__(self) -> str:
        return f"{self.brokers}x{self.partitions}"


SIZES = (Size(10, 10_000), Size(100, 100_000), Size(1000, 1_000_000))
ZOOKEEPER_SIZES = (Size(10, 10_000), Size(100, 100_000))


# ---- the tree of a cluster ----


def registration(node: int) -> BrokerRegistration:
    endpoint = BrokerEndpoint("PLAINTEXT", f"broker-{node}.example.com", 9092)
    return BrokerRegistration(node, (endpoint,), epoch=node + 1)


def topics(size: Size) -> Iterator[list[tuple[str, bytes]]]:
    """Yield the nodes of each topic: the assignment and the states. Replicas are round-robin."""
    for topic_number in range(size.partitions // PARTITIONS_PER_TOPIC):
        first = topic_number * PARTITIONS_PER_TOPIC
        replicas = {
            i: tuple((first + i + r) % size.brokers for r in range(REPLICAS))
            for i in range(PARTITIONS_PER_TOPIC)
        }
        name = f"topic-{topic_number:06}"
        nodes = [
            (
                znodes.topic_path(name),
                znodes.encode_topic(topic_number.to_bytes(16, "big"), replicas),
            )
        ]
        for index, on in replicas.items():
            state = PartitionState(on[0], 3, on)
            nodes.append(
                (znodes.partition_state_path(name, index), znodes.encode_partition_state(state))
            )
        yield nodes


class Counting:
    """A store that only counts writes."""

    def __init__(self) -> None:
        self.multis = self.writes = self.bytes = 0

    async def multi(self, writes: Sequence[Write]) -> None:
        self.multis += 1
        for write in writes:
            if not isinstance(write, Check):
                self.writes += 1
                self.bytes += len(write.path) + (
                    0 if isinstance(write, Delete) else len(write.data)
                )


class Clock:
    """CPU seconds since its creation or the last call."""

    def __init__(self) -> None:
        self._since = time.process_time()

    def lap_s(self) -> float:
        now = time.process_time()
        lap, self._since = now - self._since, now
        return lap


# ---- one size ----


class World:
    """A controller with a full image, and an observer of its feed."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.image = ClusterImage()
        self.store = Counting()
        self.state = ControllerState(self.store)  # type: ignore[arg-type]
        self.control = PartitionControl(self.state, unclean=lambda image, topic: False)
        self.feed = FeedService(self.state, self.control)
        self.position = -1
        self.figures: dict[str, float] = {}

    def load(self) -> None:
        """Fill the image as a new controller does; creating the nodes is not timed."""
        rss = psutil.Process().memory_info().rss
        spent_s = 0.0
        for node in range(self.size.brokers):
            data = znodes.encode_broker(registration(node), now_ms=0)
            self.image.apply(znodes.broker_path(node), data, node + 1)
        for nodes in topics(self.size):
            started = time.process_time()
            for path, data in nodes:
                self.image.apply(path, data, 0)
            spent_s += time.process_time() - started
        self.figures["load_s"] = spent_s
        grown = psutil.Process().memory_info().rss - rss
        self.figures["image_mb"] = grown / 1e6
        self.figures["partition_bytes"] = grown / self.size.partitions

    async def begin(self) -> None:
        self.state.begin(Term(0, 1, 0, self.image, now_ms=lambda: 0))
        clock = Clock()
        await self.control.brokers.reconcile()
        self.figures["settle_s"] = clock.lap_s()
        await self.control.elections.rebalance_leaders(10)
        self.figures["rebalance_s"] = clock.lap_s()

    async def snapshot(self) -> None:
        """Build a snapshot, and apply it as a new broker does."""
        clock, pages, has_more = Clock(), [], False
        while True:
            body = await self._request(more_of_snapshot=has_more)
            pages.append(body)
            response, _ = ControllerFeedResponse.decode(memoryview(body), 0, 0)
            has_more = response.more_follows
            if not has_more:
                self.position = response.position
                break
        decoding = Clock()
        for body in pages:
            ControllerFeedResponse.decode(memoryview(body), 0, 0)
        self.figures["snapshot_make_s"] = clock.lap_s() - 2 * decoding.lap_s()
        fresh = ClusterImage()
        for body in pages:
            response, _ = ControllerFeedResponse.decode(memoryview(body), 0, 0)
            for node in nodes_of(response):
                fresh.apply(node.path, node.data, node.version)
        self.figures["snapshot_take_s"] = clock.lap_s()
        self.figures["snapshot_mb"] = sum(map(len, pages)) / 1e6

    async def _request(self, *, more_of_snapshot: bool = False) -> bytes:
        return await self.feed.ask_encoded(
            ControllerFeedRequest(
                broker_id=OBSERVER,
                controller_epoch=1,
                position=self.position,
                more_of_snapshot=more_of_snapshot,
            )
        )

    async def read_changes(self) -> list[bytes]:
        """Return the responses that an up-to-date broker receives.

        A response may have a single change, and usually does.
        """
        bodies: list[bytes] = []
        while True:
            body = await self._request()
            response, _ = ControllerFeedResponse.decode(memoryview(body), 0, 0)
            if response.position == self.position:
                return bodies
            bodies.append(body)
            self.position = response.position

    async def change(self, name: str, steps: Sequence[Callable[[], Awaitable[Any]]]) -> None:
        """Apply changes one by one, each sent to an up-to-date broker; figures are per change."""
        before = self.store.multis, self.store.writes, self.store.bytes
        controller_s = broker_s = fed_bytes = 0.0
        for step in steps:
            clock = Clock()
            await step()
            controller_s += clock.lap_s()
            bodies = await self.read_changes()
            fed_bytes += sum(len(body) + FRAME_BYTES for body in bodies)
            clock.lap_s()
            for body in bodies:
                response, _ = ControllerFeedResponse.decode(memoryview(body), 0, 0)
                for node in nodes_of(response):
                    self.image.apply(node.path, node.data, node.version)
            broker_s += clock.lap_s()
        after = self.store.multis, self.store.writes, self.store.bytes
        for counter, a, b in zip(("multis", "znodes", "zk_bytes"), before, after, strict=True):
            self.figures[f"{name}_{counter}"] = (b - a) / len(steps)
        self.figures[f"{name}_ms"] = controller_s * 1000 / len(steps)
        self.figures[f"{name}_take_ms"] = broker_s * 1000 / len(steps)
        self.figures[f"{name}_fed_bytes"] = fed_bytes / len(steps)

    async def all(self) -> dict[str, float]:
        self.load()
        await self.begin()
        await self.snapshot()
        await self.change("isr", [partial(self._shrink_isr, tp) for tp in self._some(0)])
        await self.change("leader", [partial(self._change_leader, tp) for tp in self._some(1)])
        await self.change("failure", [self._remove_broker])
        await self.change("join", [self._add_broker])
        await self.change("topic_move", [partial(self._reassign, tp) for tp in self._some(2)])
        return self.figures

    def _state(self, tp: TopicPartition) -> PartitionState:
        return self.image.topics[tp.topic].states[tp.partition]

    async def _shrink_isr(self, tp: TopicPartition) -> None:
        """Propose, as the leader, an ISR without its last member."""
        state, topic_id = self._state(tp), self.image.topics[tp.topic].topic_id
        isr = tuple((node, node + 1) for node in state.isr[:-1])
        request = IsrRequest(topic_id, tp.partition, state.leader_epoch, state.partition_epoch, isr)
        await self.control.isr.alter_partitions(state.leader, state.leader + 1, [request])

    async def _change_leader(self, tp: TopicPartition) -> None:
        """Make another replica preferred, and elect it."""
        topic = self.image.topics[tp.topic]
        replicas = topic.replicas[tp.partition]
        topic.replicas[tp.partition] = (*replicas[1:], replicas[0])
        # Do not wait for brokers, which do not exist here.
        await inspect.unwrap(LeaderElections.elect_leaders)(
            self.control.elections, [tp], unclean=False
        )

    async def _remove_broker(self) -> None:
        node = self.size.brokers // 2
        leaders = sum(
            s.leader == node for t in self.image.topics.values() for s in t.states.values()
        )
        self.figures["failure_leaders"] = leaders
        remaining = {n: broker for n, broker in self.image.brokers.items() if n != node}
        await self.control.brokers.brokers_changed(remaining)

    async def _add_broker(self) -> None:
        node = self.size.brokers
        await self.control.brokers.brokers_changed({**self.image.brokers, node: registration(node)})

    async def _reassign(self, tp: TopicPartition) -> None:
        """Move one replica: the write contains the replicas of the whole topic."""
        replicas = (*self._state(tp).isr[:2], self.size.brokers)
        await inspect.unwrap(PartitionReassignments.reassign)(
            self.control.reassignments, {tp: replicas}
        )

    def _some(self, topic_number: int) -> list[TopicPartition]:
        return [TopicPartition(f"topic-{topic_number:06}", i) for i in range(CHANGES)]


# ---- a real ZooKeeper ----


async def _from_zookeeper(size: Size, connect: str) -> dict[str, float]:
    """Write the tree, and load it as a new controller does.

    The figure is wall time, because most of it is waiting.
    """
    from millstream.ports.coordination import sliced
    from millstream.ports.zookeeper.coordination import ZooKeeperCoordination

    store = await ZooKeeperCoordination(connect).open(30_000)
    try:
        await store.multi([Create(znodes.CONTROLLER_EPOCH, b"1")])
        started = time.perf_counter()
        for nodes in topics(size):
            for writes in sliced([], [[Put(path, data)] for path, data in nodes]):
                await store.multi(writes)
        written_s = time.perf_counter() - started
        started, clock = time.perf_counter(), Clock()
        tree: Mapping[str, Node] = await store.load()
        image = ClusterImage()
        for path, node in sorted(tree.items()):
            image.apply(path, node.data, node.version)
        loaded_s = time.perf_counter() - started
        states = sum(len(topic.states) for topic in image.topics.values())
        if states != size.partitions:
            raise RuntimeError(f"{states} of {size.partitions} partitions were loaded")
        return {"zk_write_s": written_s, "zk_load_s": loaded_s, "zk_load_cpu_s": clock.lap_s()}
    finally:
        await store.close()


def from_zookeeper(size: Size) -> dict[str, float]:
    from millstream.local.zookeeper import LocalZooKeeper

    with tempfile.TemporaryDirectory() as folder:
        server = LocalZooKeeper(folder)
        server.start()
        try:
            return asyncio.run(_from_zookeeper(size, f"127.0.0.1:{server.port}/scaling"))
        finally:
            server.stop()


# ---- the report ----

ROWS: tuple[tuple[str, str, str], ...] = (
    ("partition_bytes", "image, memory per partition", "B"),
    ("image_mb", "image, memory", "MB"),
    ("load_s", "tree into the image", "s"),
    ("zk_load_s", "tree from a real ZooKeeper into the image, wall time", "s"),
    ("settle_s", "new controller: partitions looked through", "s"),
    ("rebalance_s", "leaders counted, every five minutes", "s"),
    ("snapshot_mb", "snapshot for a broker", "MB"),
    ("snapshot_make_s", "snapshot made, once for all brokers", "s"),
    ("snapshot_take_s", "snapshot taken in by a broker", "s"),
    ("isr_ms", "ISR change, controller", "ms"),
    ("isr_fed_bytes", "ISR change, fed to each broker", "B"),
    ("isr_take_ms", "ISR change, each broker", "ms"),
    ("leader_ms", "leader change, controller", "ms"),
    ("leader_znodes", "leader change, znodes written", ""),
    ("leader_fed_bytes", "leader change, fed to each broker", "B"),
    ("leader_take_ms", "leader change, each broker", "ms"),
    ("failure_leaders", "broker lost, leaders moved", ""),
    ("failure_znodes", "broker lost, znodes written", ""),
    ("failure_multis", "broker lost, writes to ZooKeeper", ""),
    ("failure_ms", "broker lost, controller", "ms"),
    ("failure_fed_bytes", "broker lost, fed to each broker", "B"),
    ("failure_take_ms", "broker lost, each broker", "ms"),
    ("join_ms", "broker joins, controller", "ms"),
    ("join_fed_bytes", "broker joins, fed to each other broker", "B"),
    ("topic_move_ms", "one partition of 100 moved, controller", "ms"),
    ("topic_move_zk_bytes", "one partition of 100 moved, written to ZooKeeper", "B"),
    ("topic_move_fed_bytes", "one partition of 100 moved, fed to each broker", "B"),
)


def table(results: Mapping[Size, Mapping[str, float]]) -> str:
    heads = ["", *(f"{size.brokers:,} brokers, {size.partitions:,} partitions" for size in results)]
    lines = [heads, ["--", *("-:" for _ in results)]]
    for name, label, unit in ROWS:
        cells = [
            f"{number(figures[name])} {unit}".strip() if name in figures else "–"
            for figures in results.values()
        ]
        if any(cell != "–" for cell in cells):
            lines.append([label, *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def in_child(size: Size, *extra: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.scaling", "--child", str(size), *extra]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment({}), check=True
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def parse_size(text: str) -> Size:
    brokers, _, partitions = text.partition("x")
    return Size(int(brokers), int(partitions))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument(
        "--sizes", default=",".join(map(str, SIZES)), help="BROKERSxPARTITIONS, separated by commas"
    )
    parser.add_argument(
        "--zookeeper", action="store_true", help="also load trees from a real ZooKeeper server"
    )
    parser.add_argument("--docs", action="store_true", help="write the table into docs/scaling.md")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        size = parse_size(options.child)
        figures = from_zookeeper(size) if options.zookeeper else asyncio.run(World(size).all())
        print(json.dumps(figures))
        return 0
    results: dict[Size, dict[str, float]] = {}
    for size in map(parse_size, options.sizes.split(",")):
        results[size] = in_child(size)
        if options.zookeeper and size in ZOOKEEPER_SIZES:
            results[size] |= in_child(size, "--zookeeper")
        print(f"{size}: {json.dumps(results[size])}", file=sys.stderr, flush=True)
    print(table(results))
    if options.docs:
        machine = facts(Path(tempfile.gettempdir()))
        description = (
            f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}."
        )
        write_docs(DOCS, f"{table(results)}\n{description}\n", BEGIN)
    return 0


if __name__ == "__main__":
    sys.exit(main())
