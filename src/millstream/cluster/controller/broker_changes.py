"""The controller's reaction to brokers that register, fail, restart, shut down or lose a directory.

Each event may cost the broker its leaderships and its place in the ISR of many partitions. The
elections are decided by pure functions of ``control/`` and written for all partitions together.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from millstream.cluster.controller.leader_election import (
    LeaderElections,
    all_partitions,
    leaderless,
)
from millstream.cluster.controller.term import ControllerState, uninterrupted
from millstream.cluster.controller.topic_deletion import finish_deletions
from millstream.cluster.controller.unavailable_replicas import UnavailableReplicas
from millstream.control import znodes
from millstream.control.image import NodeData, TopicImage
from millstream.control.registered import registered_with
from millstream.control.topics import NodeWrites
from millstream.control.znodes import BrokerRegistration, PartitionState
from millstream.core.types import NO_LEADER, TopicPartition

log = logging.getLogger("millstream.controller")


class BrokerChanges:
    """Changes partitions when brokers change, while this broker is the controller."""

    def __init__(
        self, state: ControllerState, unavailable: UnavailableReplicas, elections: LeaderElections
    ) -> None:
        self.state = state
        self._unavailable = unavailable
        self._elections = elections
        # Brokers that may shut down, each with the feed position of the change that took its
        # leaderships away.
        self._handed_over: dict[int, int] = {}

    def start_term(self) -> None:
        """Drop what brokers reported in an earlier term: each of them reports again."""
        self._unavailable.clear()
        self._handed_over.clear()

    # ---- the start of a term ----

    async def reconcile(self) -> None:
        """Catch up, at the start of a term, with events while there was no controller.

        The caller holds the lock. A broker that restarted in that time has lost its place in the
        ISR like any other: it may have lost the end of its log as well.
        """
        image = self.state.image
        restarted = [broker for broker in image.brokers.values() if self._has_restarted(broker)]
        if restarted:
            nodes = [broker.node_id for broker in restarted]
            log.info("brokers %s restarted while there was no controller", nodes)
            self.state.publish(NodeData(znodes.broker_path(node), None) for node in nodes)
        await finish_deletions(self.state)
        brokers = (*image.brokers.values(), *restarted)
        await self._remove_torn_from_isr(broker for broker in brokers if self._is_new(broker))
        await self._write_missing_states()
        able = frozenset(image.brokers.keys() - image.stopping)
        await self._elections.elect_where(lambda topic: _needs_election(topic, able))
        await self._store_registrations((*image.brokers.values(), *restarted))
        if restarted:
            await self._brokers_joined(restarted)

    def _is_new(self, broker: BrokerRegistration) -> bool:
        return self.state.image.broker_epochs.get(broker.node_id) != broker.epoch

    def _has_restarted(self, broker: BrokerRegistration) -> bool:
        return self.state.image.broker_epochs.get(broker.node_id, broker.epoch) != broker.epoch

    async def _write_missing_states(self) -> None:
        """Write the states of new partitions whose creation a failed controller left unfinished."""
        live = frozenset(self.state.image.brokers)
        groups: list[NodeWrites] = []
        for topic in self.state.image.topics.values():
            for index, replicas in topic.replicas.items():
                if index not in topic.states:
                    isr = tuple(node for node in replicas if node in live) or replicas
                    leader = isr[0] if isr[0] in live else NO_LEADER
                    state = PartitionState(leader, 0, isr)
                    groups.append([self.state.term.state_write(topic, index, state)])
        await self.state.commit(*groups)

    # ---- registrations ----

    @uninterrupted
    async def brokers_changed(self, registered: Mapping[int, BrokerRegistration]) -> None:
        """Take in which brokers are registered. A new epoch means that the broker has restarted."""
        async with self.state.lock:
            known = self.state.image.brokers
            gone = [
                node
                for node, broker in known.items()
                if node not in registered or registered[node].epoch != broker.epoch
            ]
            joined = [registered[node] for node in registered if node in gone or node not in known]
            if gone:
                await self._brokers_gone(gone)
            await self._remove_torn_from_isr(joined)
            if gone or joined:
                await self._store_registrations(registered.values())
            if joined:
                await self._brokers_joined(joined)

    async def _brokers_gone(self, nodes: Sequence[int]) -> None:
        log.info("brokers gone: %s", nodes)
        for node in nodes:
            self._unavailable.forget_broker(node)
            self._handed_over.pop(node, None)
            self.state.term.feed.forget_broker(node)
        image = self.state.image
        stopping = znodes.encode_stopping(image.stopping - set(nodes))
        deletions = [NodeData(znodes.broker_path(node), None) for node in nodes]
        self.state.publish([*deletions, NodeData(znodes.STOPPING, stopping)])
        gone = frozenset(nodes)
        await self._elections.elect_where(lambda topic: _led_or_in_sync(topic, gone))

    async def _remove_torn_from_isr(self, brokers: Iterable[BrokerRegistration]) -> None:
        """Remove brokers that may lack the ends of their logs from the ISR (as KIP-966 does).

        That is so after a power cut, and with a new disk. Where another replica was in sync, the
        partition waits for that one, live or not. The last member of an ISR stays.
        """
        torn = {broker.node_id for broker in brokers if broker.torn}
        if not torn:
            return
        groups: list[NodeWrites] = []
        async for topic, index in all_partitions(self.state.image):
            state = topic.states[index]
            isr = tuple(node for node in state.isr if node not in torn)
            if isr and isr != state.isr:
                leader = state.leader if state.leader not in torn else NO_LEADER
                epoch = state.leader_epoch + (leader != state.leader)
                after = replace(state, leader=leader, leader_epoch=epoch, isr=isr)
                groups.append([self.state.term.state_write(topic, index, after)])
        if groups:
            log.info("brokers %s may lack the ends of %d logs", sorted(torn), len(groups))
        await self.state.commit(*groups)

    async def _store_registrations(self, brokers: Iterable[BrokerRegistration]) -> None:
        """Make the broker epochs durable.

        This comes after failed brokers have lost their leaderships, and before new ones can get
        any: a crash in between repeats the first step, and never skips it.
        """
        image, live = self.state.image, list(brokers)
        epochs = {broker.node_id: broker.epoch for broker in live}
        writes: NodeWrites = []
        if epochs != image.broker_epochs:
            writes.append((znodes.BROKER_EPOCHS, znodes.encode_broker_epochs(epochs)))
        data = znodes.encode_registered(registered_with(image, live).values())
        if data != znodes.encode_registered(image.registered.values()):
            writes.append((znodes.REGISTERED, data))
        await self.state.commit(writes)

    async def _brokers_joined(self, brokers: Sequence[BrokerRegistration]) -> None:
        log.info("brokers joined: %s", [broker.node_id for broker in brokers])
        self.state.publish(
            NodeData(
                znodes.broker_path(broker.node_id),
                znodes.encode_broker(broker, now_ms=0),
                broker.epoch,
            )
            for broker in brokers
        )
        nodes = {broker.node_id for broker in brokers}
        await self._elections.elect_where(
            lambda topic: [
                index for index in leaderless(topic) if not nodes.isdisjoint(topic.replicas[index])
            ]
        )

    # ---- reports of live brokers ----

    async def replicas_offline(
        self, node: int, epoch: int, offline: frozenset[TopicPartition]
    ) -> None:
        """Take in which replicas a live broker cannot serve."""
        if self._unavailable.offline_on(node) != offline:
            await self._change_offline(node, epoch, offline)

    async def replicas_full(self, node: int, epoch: int, full: frozenset[TopicPartition]) -> None:
        """Take in which replicas of a live broker are in a directory without room."""
        if self._unavailable.full_on(node) != full:
            await self._change_full(node, epoch, full)

    @uninterrupted
    async def _change_offline(
        self, node: int, epoch: int, offline: frozenset[TopicPartition]
    ) -> None:
        async with self.state.lock:
            if not self.state.is_registered(node, epoch):
                return  # it restarted while the report waited for the lock
            changed = self._unavailable.offline_on(node) ^ offline
            self._unavailable.set_offline(node, offline)
            if offline:
                log.warning("broker %d cannot serve %d of its replicas", node, len(offline))
            await self._elect_leaders_of(changed)
            # Published last: until there is another leader, clients would learn that there is none.
            self.state.publish(
                [NodeData(znodes.offline_path(node), znodes.encode_offline(offline))]
            )

    @uninterrupted
    async def _change_full(self, node: int, epoch: int, full: frozenset[TopicPartition]) -> None:
        async with self.state.lock:
            if not self.state.is_registered(node, epoch):
                return  # it restarted while the report waited for the lock
            changed = self._unavailable.full_on(node) ^ full
            self._unavailable.set_full(node, full)
            if full:
                log.warning("broker %d has no room for %d of its replicas", node, len(full))
            # Published first: a leader's high watermark waits for a replica outside the ISR that
            # may be about to join, and one without room is not.
            self.state.publish([NodeData(znodes.full_path(node), znodes.encode_offline(full))])
            await self._elect_leaders_of(changed)

    async def _elect_leaders_of(self, partitions: Iterable[TopicPartition]) -> None:
        indexes: dict[str, list[int]] = {}
        for tp in partitions:
            indexes.setdefault(tp.topic, []).append(tp.partition)
        topics = [
            topic for name in indexes if (topic := self.state.image.topics.get(name)) is not None
        ]
        await self._elections.elect_where(
            lambda topic: [index for index in indexes[topic.name] if index in topic.states], topics
        )

    # ---- controlled shutdown ----

    async def stop_broker(self, node: int, epoch: int) -> bool:
        """Move the leaderships of a broker that wants to shut down to others.

        Return whether it may stop: as many as possible are moved, and the broker knows about it.
        """
        if node not in self._handed_over:
            await self._hand_over(node, epoch)
        # Missing if the broker has failed.
        position = self._handed_over.get(node)
        return position is not None and self.state.term.feed.applied_position(node) >= position

    @uninterrupted
    async def _hand_over(self, node: int, epoch: int) -> None:
        async with self.state.lock:
            if not self.state.is_registered(node, epoch):
                return
            image = self.state.image
            data = znodes.encode_stopping(image.stopping | {node})
            self.state.publish([NodeData(znodes.STOPPING, data)])
            await self._elections.elect_where(
                lambda topic: [index for index in topic.states if node in topic.replicas[index]]
            )
            self._handed_over[node] = self.state.term.feed.position


def _led_or_in_sync(topic: TopicImage, nodes: frozenset[int]) -> Collection[int]:
    """Return the partitions that one of these brokers leads, or is in the ISR of."""
    return [
        index
        for index, state in topic.states.items()
        if state.leader in nodes or not nodes.isdisjoint(state.isr)
    ]


def _needs_election(topic: TopicImage, able: frozenset[int]) -> Collection[int]:
    """Return the partitions whose leader or ISR includes a broker that is not able to serve."""
    return [
        index
        for index, state in topic.states.items()
        if state.leader not in able or not able.issuperset(state.isr)
    ]
