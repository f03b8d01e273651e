"""The controller's changes to partitions: who leads, who is in sync, and where replicas are.

Brokers come and go, stop in good order, lose a directory; leaders propose another ISR; operators elect and move. Each is decided by a pure
function of ``control/``, for all partitions it concerns, and written as few times as it fits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from millstream.cluster.controller.term import ControllerState, change, uninterrupted
from millstream.cluster.controller.topic_deletion import finish_deletions
from millstream.control import reassignment, znodes
from millstream.control.election import Brokers, elect, elect_preferred, elect_unclean
from millstream.control.growth import kept_small_after
from millstream.control.image import ClusterImage, NodeData, TopicImage
from millstream.control.moves import Reassignments
from millstream.control.placement import check_assignment
from millstream.control.registered import registered_with
from millstream.control.topics import NodeWrites, state_write
from millstream.control.znodes import Assignment, BrokerRegistration, PartitionState
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import NO_LEADER, TopicPartition
from millstream.ports.turns import Pace

log = logging.getLogger("millstream.controller")

# So many partitions are looked at before others get a turn.
_SLICE = 2000
# So many nodes of moves are encoded before they are written.
_MOVED_NODES = 500


class IsrRequest(NamedTuple):
    """A leader's proposal for one partition. Epochs of members are -1 where the version of the request has none."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]


class PartitionControl:
    """Everything that changes the state or the replicas of partitions, while this broker is the controller."""

    def __init__(self, state: ControllerState, *, unclean: Callable[[ClusterImage, str], bool]) -> None:
        """``unclean`` tells whether a topic allows unclean elections."""
        self.state = state
        self._unclean = unclean
        self._offline: dict[int, frozenset[TopicPartition]] = {}
        self._full: dict[int, frozenset[TopicPartition]] = {}
        self._without_directories: set[int] = set()
        # Brokers that may stop, each with the change that took from it what it led.
        self._stopped: dict[int, int] = {}

    def begin(self) -> None:
        """What a former term knew of brokers, each will tell again."""
        self._offline.clear()
        self._full.clear()
        self._without_directories.clear()
        self._stopped.clear()

    # ---- brokers --------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """At the beginning of a term, with the lock: what happened while there was no controller. A broker that was away and is back has lost
        its place in the ISR like any other: it may have lost the end of its log as well."""
        image = self.state.image
        back = [one for one in image.brokers.values() if self._was_away(one)]
        if back:
            log.info("away while there was no controller: brokers %s", [one.node_id for one in back])
            self.state.tell(NodeData(znodes.broker_path(one.node_id), None) for one in back)
        await finish_deletions(self.state)
        await self._distrust(one for one in (*image.brokers.values(), *back) if self._is_new(one))
        await self._write_missing_states()
        able = frozenset(image.brokers.keys() - image.stopping)
        await self._elect_where(lambda topic: _unsettled(topic, able))
        await self._remember((*image.brokers.values(), *back))
        if back:
            await self._brokers_came(back)

    def _is_new(self, broker: BrokerRegistration) -> bool:
        return self.state.image.broker_epochs.get(broker.node_id) != broker.epoch

    async def _distrust(self, brokers: Iterable[BrokerRegistration]) -> None:
        """Brokers that are back from a power cut, or the like, or with a new disk, and may lack the ends of their logs: where another
        replica was in sync, whether it is there now or not, they no longer count as such (as KIP-966 has it). That other one is waited for."""
        torn = {broker.node_id for broker in brokers if broker.torn}
        if not torn:
            return
        groups: list[NodeWrites] = []
        async for topic, index in self._partitions():
            state = topic.states[index]
            isr = tuple(node for node in state.isr if node not in torn)
            if isr and isr != state.isr:
                leader = state.leader if state.leader not in torn else NO_LEADER
                epoch = state.leader_epoch + (leader != state.leader)
                after = replace(state, leader=leader, leader_epoch=epoch, isr=isr)
                groups.append([self._write(topic, index, after)])
        if groups:
            log.info("brokers %s may lack the ends of %d logs", sorted(torn), len(groups))
        await self.state.commit(*groups)

    def _was_away(self, broker: BrokerRegistration) -> bool:
        return self.state.image.broker_epochs.get(broker.node_id, broker.epoch) != broker.epoch

    async def _remember(self, brokers: Iterable[BrokerRegistration]) -> None:
        """After those that went have lost what they had, and before those that came can get anything."""
        image, live = self.state.image, list(brokers)
        epochs = {broker.node_id: broker.epoch for broker in live}
        writes: NodeWrites = []
        if epochs != image.broker_epochs:
            writes.append((znodes.BROKER_EPOCHS, znodes.encode_broker_epochs(epochs)))
        data = znodes.encode_registered(registered_with(image, live).values())
        if data != znodes.encode_registered(image.registered.values()):
            writes.append((znodes.REGISTERED, data))
        await self.state.commit(writes)

    @uninterrupted
    async def brokers_changed(self, found: Mapping[int, BrokerRegistration]) -> None:
        """These are registered now. One with another epoch has been away in between."""
        async with self.state.lock:
            known = self.state.image.brokers
            gone = [
                node for node, was in known.items() if node not in found or found[node].epoch != was.epoch
            ]
            come = [found[node] for node in found if node in gone or node not in known]
            if gone:
                await self._brokers_gone(gone)
            await self._distrust(come)
            if gone or come:
                await self._remember(found.values())
            if come:
                await self._brokers_came(come)

    async def _brokers_gone(self, nodes: Sequence[int]) -> None:
        log.info("brokers gone: %s", nodes)
        for node in nodes:
            self._offline.pop(node, None)
            self._full.pop(node, None)
            self._without_directories.discard(node)
            self._stopped.pop(node, None)
            self.state.term.feed.forget(node)
        image = self.state.image
        stopping = znodes.encode_stopping(image.stopping - set(nodes))
        told = [NodeData(znodes.broker_path(node), None) for node in nodes]
        self.state.tell([*told, NodeData(znodes.STOPPING, stopping)])
        gone = frozenset(nodes)
        await self._elect_where(lambda topic: _taking_part(topic, gone))

    async def _brokers_came(self, brokers: Sequence[BrokerRegistration]) -> None:
        log.info("brokers came: %s", [broker.node_id for broker in brokers])
        self.state.tell(
            NodeData(znodes.broker_path(one.node_id), znodes.encode_broker(one, now_ms=0), one.epoch)
            for one in brokers
        )
        nodes = {broker.node_id for broker in brokers}
        await self._elect_where(
            lambda topic: [
                index for index in _leaderless(topic) if not nodes.isdisjoint(topic.replicas[index])
            ]
        )

    def is_registered(self, node: int, epoch: int) -> bool:
        """Whether this is the process that has the broker's id now."""
        registered = self.state.image.brokers.get(node)
        return registered is not None and registered.epoch == epoch

    async def replicas_offline(self, node: int, epoch: int, offline: frozenset[TopicPartition]) -> None:
        """A live broker tells which of its replicas it cannot serve."""
        if self._offline.get(node, frozenset()) != offline:
            await self._note_offline(node, epoch, offline)

    async def replicas_full(self, node: int, epoch: int, full: frozenset[TopicPartition]) -> None:
        """Take in which replicas of a live broker are in a directory without room."""
        if self._full.get(node, frozenset()) != full:
            await self._note_full(node, epoch, full)

    def directories_offline(self, node: int, some: bool) -> None:
        """A live broker tells whether some of its directories have failed."""
        if some:
            self._without_directories.add(node)
        else:
            self._without_directories.discard(node)

    def has_all_directories(self, node: int) -> bool:
        return node not in self._without_directories

    @uninterrupted
    async def _note_offline(self, node: int, epoch: int, offline: frozenset[TopicPartition]) -> None:
        async with self.state.lock:
            if not self.is_registered(node, epoch):
                return  # it has restarted while this waited for its turn
            touched = self._offline.get(node, frozenset()) ^ offline
            self._offline[node] = offline
            if offline:
                log.warning("broker %d cannot serve %d of its replicas", node, len(offline))
            await self._elect_touched(touched)
            # Last: clients would be told that there is no leader until there is another.
            self.state.tell([NodeData(znodes.offline_path(node), znodes.encode_offline(offline))])

    @uninterrupted
    async def _note_full(self, node: int, epoch: int, full: frozenset[TopicPartition]) -> None:
        async with self.state.lock:
            if not self.is_registered(node, epoch):
                return  # it has restarted since it asked
            touched = self._full.get(node, frozenset()) ^ full
            self._full[node] = full
            if full:
                log.warning("broker %d has no room for %d of its replicas", node, len(full))
            # First: a leader waits for a replica that has left the ISR while it may be about to join again.
            self.state.tell([NodeData(znodes.full_path(node), znodes.encode_offline(full))])
            await self._elect_touched(touched)

    async def _elect_touched(self, touched: Iterable[TopicPartition]) -> None:
        indexes: dict[str, list[int]] = {}
        for tp in touched:
            indexes.setdefault(tp.topic, []).append(tp.partition)
        topics = [topic for name in indexes if (topic := self.state.image.topics.get(name)) is not None]
        await self._elect_where(
            lambda topic: [index for index in indexes[topic.name] if index in topic.states], topics
        )

    async def stop_broker(self, node: int, epoch: int) -> bool:
        """It wants to stop: what it leads goes to others. True once that is done, as far as it can be, and it knows."""
        if node not in self._stopped:
            await self._hand_over(node, epoch)
        handed_over = self._stopped.get(node)  # gone where the broker is
        return handed_over is not None and self.state.term.feed.taken_in(node) >= handed_over

    @uninterrupted
    async def _hand_over(self, node: int, epoch: int) -> None:
        async with self.state.lock:
            if not self.is_registered(node, epoch):
                return
            image = self.state.image
            data = znodes.encode_stopping(image.stopping | {node})
            self.state.tell([NodeData(znodes.STOPPING, data)])
            await self._elect_where(
                lambda topic: [index for index in topic.states if node in topic.replicas[index]]
            )
            self._stopped[node] = self.state.term.feed.position

    # ---- elections ------------------------------------------------------------------------------------------

    def _brokers(self) -> Brokers:
        image = self.state.image
        return Brokers(frozenset(image.brokers), image.stopping)

    def _offline_of(self, topic: TopicImage, index: int) -> tuple[int, ...]:
        tp = TopicPartition(topic.name, index)
        return tuple(node for node, partitions in self._offline.items() if tp in partitions)

    def _full_of(self, topic: TopicImage, index: int) -> tuple[int, ...]:
        tp = TopicPartition(topic.name, index)
        return tuple(node for node, partitions in self._full.items() if tp in partitions)

    async def _elect_where(
        self, concerns: Callable[[TopicImage], Collection[int]], topics: Collection[TopicImage] | None = None
    ) -> None:
        """Decides anew for all partitions that an event concerns, of these topics or of all. Looking for them costs a fraction of a
        microsecond for each partition that there is; everything else, only for those that are found."""
        groups: list[NodeWrites] = []
        brokers, seen = self._brokers(), 0
        for topic in self.state.image.topics.values() if topics is None else topics:
            found = concerns(topic)
            if found:
                groups += self._elected(topic, found, brokers)
            seen += len(topic.states)
            if seen >= _SLICE:
                seen = 0
                await asyncio.sleep(0)  # nothing changes meanwhile, because changes come one at a time
        await self.state.commit(*groups)

    def _elected(self, topic: TopicImage, indexes: Iterable[int], brokers: Brokers) -> list[NodeWrites]:
        unclean = self._unclean(self.state.image, topic.name)
        writes: list[NodeWrites] = []
        for index in indexes:
            state = topic.states[index]
            after = self._elect(topic, index, state, brokers, unclean=unclean)
            if after != state:
                writes.append([self._write(topic, index, after)])
        return writes

    def _elect(
        self, topic: TopicImage, index: int, state: PartitionState, brokers: Brokers, *, unclean: bool
    ) -> PartitionState:
        return elect(
            state,
            topic.replicas[index],
            brokers,
            unclean=unclean,
            offline=self._offline_of(topic, index),
            full=self._full_of(topic, index),
        )

    @uninterrupted
    async def elect_offline(self) -> None:
        """Partitions without a leader: they may be allowed an unclean election now."""
        async with self.state.lock:
            await self._elect_where(_leaderless)

    async def _partitions(self) -> AsyncIterator[tuple[TopicImage, int]]:
        """All of them, with a turn for others now and then; nothing changes meanwhile, because changes come one at a time."""
        seen = 0
        for topic in self.state.image.topics.values():
            for index in topic.states:
                seen += 1
                if not seen % _SLICE:
                    await asyncio.sleep(0)
                yield topic, index

    def _write(self, topic: TopicImage, index: int, after: PartitionState) -> tuple[str, bytes | None]:
        return state_write(topic.name, index, self._stamped(after))

    def _stamped(self, after: PartitionState) -> PartitionState:
        return replace(after, controller_epoch=self.state.term.epoch)

    async def _write_missing_states(self) -> None:
        """A controller that fell while it made a topic left partitions without a state: they are new."""
        live = frozenset(self.state.image.brokers)
        groups: list[NodeWrites] = []
        for topic in self.state.image.topics.values():
            for index, replicas in topic.replicas.items():
                if index not in topic.states:
                    isr = tuple(node for node in replicas if node in live) or replicas
                    leader = isr[0] if isr[0] in live else NO_LEADER
                    groups.append([self._write(topic, index, PartitionState(leader, 0, isr))])
        await self.state.commit(*groups)

    @change
    async def elect_leaders(
        self, partitions: Sequence[TopicPartition] | None, *, unclean: bool
    ) -> dict[TopicPartition, ErrorCode]:
        """An operator's wish, for these partitions or, where it makes a difference, for all."""
        results: dict[TopicPartition, ErrorCode] = {}
        groups: list[NodeWrites] = []
        pace = Pace()
        for tp in partitions if partitions is not None else self._all():
            await pace.rest()
            code, after = self._wished(tp, unclean)
            if after is not None:
                groups.append([self._write(self.state.image.topics[tp.topic], tp.partition, after)])
            if partitions is not None or code is not ErrorCode.ELECTION_NOT_NEEDED:
                results[tp] = code
        await self.state.commit(*groups)
        return results

    def _all(self) -> list[TopicPartition]:
        topics = self.state.image.topics.values()
        return [TopicPartition(topic.name, index) for topic in topics for index in topic.states]

    def _wished(self, tp: TopicPartition, unclean: bool) -> tuple[ErrorCode, PartitionState | None]:
        topic = self.state.image.topics.get(tp.topic)
        if topic is None or tp.partition not in topic.states:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        state, replicas = topic.states[tp.partition], topic.replicas[tp.partition]
        offline = self._offline_of(topic, tp.partition)
        if unclean:
            if state.leader != NO_LEADER:
                return ErrorCode.ELECTION_NOT_NEEDED, None
            after = elect_unclean(state, replicas, self._brokers(), offline=offline)
            refused = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        else:
            if state.leader == replicas[0]:
                return ErrorCode.ELECTION_NOT_NEEDED, None
            after = elect_preferred(state, replicas, self._brokers(), offline=offline)
            refused = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        return (ErrorCode.NONE, after) if after != state else (refused, None)

    @uninterrupted
    async def rebalance_leaders(self, most_percent: int) -> None:
        """Gives leadership back to the preferred replicas of brokers that lead too few of theirs."""
        async with self.state.lock:
            preferred, elsewhere = Counter[int](), Counter[int]()
            async for topic, index in self._partitions():
                first = topic.replicas[index][0]
                preferred[first] += 1
                elsewhere[first] += topic.states[index].leader != first
            short = {n for n, count in elsewhere.items() if count * 100 > most_percent * preferred[n]}
            groups: list[NodeWrites] = []
            brokers = self._brokers()
            async for topic, index in self._partitions():
                state, replicas = topic.states[index], topic.replicas[index]
                if replicas[0] in short and index not in topic.reassigning:
                    offline = self._offline_of(topic, index)
                    after = elect_preferred(state, replicas, brokers, offline=offline)
                    if after != state:
                        groups.append([self._write(topic, index, after)])
            await self.state.commit(*groups)

    # ---- in-sync replicas -----------------------------------------------------------------------------------

    @uninterrupted
    async def alter_partitions(
        self, node: int, broker_epoch: int, requests: Sequence[IsrRequest]
    ) -> dict[tuple[bytes, int], PartitionState | ErrorCode]:
        """Leaders' proposals: the state that came of each, or why not."""
        async with self.state.lock:
            if not self.is_registered(node, broker_epoch):
                raise ApiError(ErrorCode.STALE_BROKER_EPOCH)
            results: dict[tuple[bytes, int], PartitionState | ErrorCode] = {}
            groups: list[NodeWrites] = []
            moves = Reassignments()
            pace = Pace()
            for request in requests:
                await pace.rest()
                refused = self._refused(node, request)
                if refused is None:
                    groups += self._accept(request, moves)
                results[request.topic_id, request.partition] = refused or ErrorCode.NONE
            await self.state.commit(*groups)
            await self._make(moves)
            return {key: self._outcome(node, key, code) for key, code in results.items()}

    def _refused(self, node: int, request: IsrRequest) -> ErrorCode | None:
        """As Kafka's controller has it: who is behind is told so, who is ahead has a newer controller than this one."""
        image = self.state.image
        name = image.names_by_id.get(request.topic_id)
        if name is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        topic = image.topics[name]
        state = topic.states.get(request.partition)
        if state is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if request.leader_epoch > state.leader_epoch or request.partition_epoch > state.partition_epoch:
            return ErrorCode.NOT_CONTROLLER
        if request.leader_epoch < state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if node != state.leader:
            return ErrorCode.INVALID_REQUEST
        if request.partition_epoch < state.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        members = [member for member, _epoch in request.isr]
        sound = len(set(members)) == len(members) and set(members) <= set(topic.replicas[request.partition])
        if node not in members or not sound:
            return ErrorCode.INVALID_REQUEST
        if not all(self._may_be_in_sync(member, epoch) for member, epoch in request.isr):
            return ErrorCode.INELIGIBLE_REPLICA
        full = self._full_of(topic, request.partition)
        if node not in full and not set(members).isdisjoint(full):
            return ErrorCode.INELIGIBLE_REPLICA
        return None

    def _may_be_in_sync(self, node: int, epoch: int) -> bool:
        registered = self.state.image.brokers.get(node)
        if registered is None or node in self.state.image.stopping:
            return False
        return epoch in (-1, registered.epoch)

    def _accept(self, request: IsrRequest, moves: Reassignments) -> list[NodeWrites]:
        """What is to be written for it, unless it ends a move: then it is one of ``moves``."""
        image = self.state.image
        topic = image.topics[image.names_by_id[request.topic_id]]
        state = topic.states[request.partition]
        isr = tuple(member for member, _epoch in request.isr)
        after = PartitionState(state.leader, state.leader_epoch, isr)
        assignment = topic.assignment(request.partition)
        if reassignment.is_complete(assignment, after):
            log.info("%s-%d has moved to %s", topic.name, request.partition, assignment.target)
            assignment, after = reassignment.complete(assignment, after, self._brokers())
            self._move(topic, request.partition, assignment, after, moves)
            return []
        if state.leader in self._full_of(topic, request.partition):
            # It may hand over to a member that has just joined.
            after = self._elect(topic, request.partition, after, self._brokers(), unclean=False)
        return [[self._write(topic, request.partition, after)]]

    def _outcome(
        self, node: int, key: tuple[bytes, int], code: PartitionState | ErrorCode
    ) -> PartitionState | ErrorCode:
        if code is not ErrorCode.NONE:
            return code
        image = self.state.image
        state = image.topics[image.names_by_id[key[0]]].states[key[1]]
        return state if state.leader == node else ErrorCode.NEW_LEADER_ELECTED

    # ---- reassignment ---------------------------------------------------------------------------------------

    @change
    async def reassign(
        self,
        wishes: Mapping[TopicPartition, Sequence[int] | None],
        *,
        may_change_factor: bool = True,
        by_hand: bool = True,
    ) -> dict[TopicPartition, ApiError | None]:
        """Replicas for each partition, or None to go back to where it came from. What an operator has wished for is remembered where
        it would be undone."""
        results: dict[TopicPartition, ApiError | None] = {}
        moves, pace = Reassignments(), Pace()
        accepted: dict[TopicPartition, Sequence[int] | None] = {}
        for tp, target in wishes.items():
            try:
                self._plan_move(tp, target, may_change_factor, moves)
                results[tp] = None
                accepted[tp] = target
            except ApiError as error:
                results[tp] = error
            await pace.rest()
        if by_hand:
            small = kept_small_after(self.state.image, accepted)
            if small != self.state.image.kept_small:
                await self.state.commit([(znodes.KEPT_SMALL, znodes.encode_kept_small(small))])
        await self._make(moves)
        return results

    def _plan_move(
        self, tp: TopicPartition, target: Sequence[int] | None, may_change_factor: bool, moves: Reassignments
    ) -> None:
        topic = self.state.image.topics.get(tp.topic)
        if topic is None or tp.partition not in topic.states:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        state, current = topic.states[tp.partition], topic.assignment(tp.partition)
        if target is None:
            back = reassignment.cancel(current, state, self._brokers())
            self._move(topic, tp.partition, *back, moves)
            return
        # A replica that is there already may be away for the time being.
        wanted = check_assignment(target, {*self.state.image.registered_brokers(), *current.replicas})
        if not may_change_factor and len(wanted) != len(current.origin):
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor is changed from {len(current.origin)} to {len(wanted)}",
            )
        after = reassignment.begin(current, wanted)
        if reassignment.is_complete(after, state):
            after, state = reassignment.complete(after, state, self._brokers())
        self._move(topic, tp.partition, after, state, moves)

    def _move(
        self,
        topic: TopicImage,
        index: int,
        assignment: Assignment,
        state: PartitionState,
        moves: Reassignments,
    ) -> None:
        """The replicas and the state, in one write."""
        moves.add(topic, index, assignment, self._stamped(state))

    async def _make(self, moves: Reassignments) -> None:
        """In slices, so that a topic with thousands of partitions does not hold up everybody else."""
        groups: list[NodeWrites] = []
        nodes = 0
        for group in moves.groups():
            groups.append(group)
            nodes += len(group)
            if nodes >= _MOVED_NODES:
                await self.state.commit(*groups)
                groups, nodes = [], 0
        await self.state.commit(*groups)

    def moving(self, wanted: Iterable[TopicPartition] | None) -> dict[TopicPartition, Assignment]:
        """Reassignments under way, of these partitions or of all."""
        topics = self.state.image.topics
        if wanted is None:
            wanted = [TopicPartition(t.name, index) for t in topics.values() for index in t.reassigning]
        found = {tp: topics[tp.topic].reassigning.get(tp.partition) for tp in wanted if tp.topic in topics}
        return {tp: one for tp, one in found.items() if one is not None}


def _taking_part(topic: TopicImage, nodes: frozenset[int]) -> Collection[int]:
    """Partitions that one of these brokers leads or is in sync with."""
    return [
        index
        for index, state in topic.states.items()
        if state.leader in nodes or not nodes.isdisjoint(state.isr)
    ]


def _unsettled(topic: TopicImage, able: frozenset[int]) -> Collection[int]:
    """Where somebody leads or is in sync who cannot be."""
    return [
        index
        for index, state in topic.states.items()
        if state.leader not in able or not able.issuperset(state.isr)
    ]


def _leaderless(topic: TopicImage) -> Collection[int]:
    return [index for index, state in topic.states.items() if state.leader == NO_LEADER]
