"""A broker as a member of its cluster, which may be of one: joins, follows the controller, may be it, and leaves in good order.

The order of joining: run for controller, follow whoever is it until the image is whole (the logs are loaded then), register, and wait to see the
registration in the image. A broker that is alone registers first: nobody else could lead meanwhile, and no partition changes its leader for a
restart. Leaving is the reverse: ask the controller to move what is led here, then end the session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any

from millstream.cluster.controller.changes import Controller
from millstream.cluster.controller.election import NO_CONTROLLER, ControllerElection
from millstream.cluster.controller.feed_service import FeedService
from millstream.cluster.controller.partitions import PartitionControl
from millstream.cluster.controller.term import ControllerState
from millstream.cluster.coordinators.internal_topics import (
    OFFSETS,
    TRANSACTIONS,
    wanted_factor,
    wanted_min_isr,
)
from millstream.cluster.membership.identity import UNREADABLE, ClusterIdentity, unreadable
from millstream.cluster.membership.metadata_follower import FeedSource, MetadataFollower
from millstream.cluster.membership.registration import NOT_REGISTERED, Registration
from millstream.cluster.peers import Peers
from millstream.control import znodes
from millstream.control.growth import expanded_replicas
from millstream.control.image import Change, ClusterImage
from millstream.control.znodes import BrokerEndpoint, BrokerRegistration
from millstream.core.config import BrokerConfig, stored_topic_overrides
from millstream.core.errors import ApiError, ErrorCode
from millstream.core.types import TopicPartition
from millstream.ports.clock import Clock
from millstream.ports.coordination import Coordination, CoordinationError, SessionState
from millstream.ports.network import Network
from millstream.wire.messages.controller_feed import (
    ControllerFeedRequest,
    ControllerFeedResponse,
    OfflineReplicas,
)

log = logging.getLogger("millstream.member")

# The controller answers a long poll after half a second; this much later it is not there any more.
_FEED_TIMEOUT_S = 10.0
_STOP_S = 15.0
# So long without a connection to ZooKeeper and without a word of the controller: nobody will take over in time. Long enough to find another server
# of an ensemble.
_NOBODY_S, _LOOK_S = 3.0, 0.25
# Purposes of connections to the controller. Topic creations have a connection to themselves: a
# CreateTopics holds back the requests behind it, and changes of an ISR must not wait for it.
FEED, TO_CONTROLLER, CREATIONS, FORWARDED = "feed", "controller", "creations", "forward"
_HOUSEKEEPING_S = 1.0
UNCLEAN = "unclean.leader.election.enable"

RunInBackground = Callable[[str, Coroutine[Any, Any, None]], None]


class ClusterMember:
    """This broker's part in the cluster."""

    def __init__(
        self,
        broker: BrokerRegistration,
        listener: str,
        image: ClusterImage,
        config: BrokerConfig,
        coordination: Coordination,
        *,
        cluster_id: str,
        network: Network,
        clock: Clock,
        new_id: Callable[[], bytes],
        on_changes: Callable[[Sequence[Change]], Awaitable[None]],
        offline_replicas: Callable[[], Collection[TopicPartition]],
        full_replicas: Callable[[], Collection[TopicPartition]],
        all_directories_online: Callable[[], bool],
        torn: Callable[[], bool] = lambda: False,
    ) -> None:
        """``listener`` is the one that brokers use among themselves. ``torn`` tells whether the ends
        of this broker's logs may be missing."""
        self.node_id = broker.node_id
        self._listener = listener
        self._image = image
        self._config = config
        self._coordination = coordination
        self._offline_replicas = offline_replicas
        self._full_replicas = full_replicas
        self._all_directories_online = all_directories_online
        self._changed = asyncio.Event()
        self._on_image = on_changes
        self._controller_at: tuple[str, int] | None = None
        self._wants_to_stop = False
        self._may_stop = asyncio.Event()
        self._answered_s = 0.0  # by the controller, in the time of the loop
        self.peers = Peers(network, f"broker-{broker.node_id}")
        self.state = ControllerState(coordination)
        self.partitions = PartitionControl(self.state, unclean=self._unclean)
        self.controller = Controller(self.state, config, new_id=new_id)
        self.feed = FeedService(self.state, self.partitions)
        self.identity = ClusterIdentity(coordination, cluster_id)
        here = self.endpoint(broker)
        self.election = ControllerElection(
            broker.node_id,
            (here.host, here.port),
            coordination,
            self.state,
            self.partitions,
            self.identity,
            now_ms=clock.now_ms,
            incarnation=broker.incarnation,
            on_controller=self._leave_former_controller,
        )
        self.registration = Registration(coordination, broker, self.identity, now_ms=clock.now_ms, torn=torn)
        self.follower = MetadataFollower(
            image,
            cluster_id,
            find_controller=self._find_controller,
            request=self._feed_request,
            on_changes=self._take_in,
            on_answer=self._on_feed_answer,
        )

    # ---- joining --------------------------------------------------------------------------------------------

    async def join(self, run: RunInBackground, *, alone: bool, patience_s: float) -> None:
        """Returns when this broker is registered and knows it. ``run`` keeps the loops that follow."""
        if alone:
            await self.registration.register(patience_s=patience_s)
        try:
            await self.election.look()
        except (CoordinationError, ApiError) as error:
            log.info("who is the controller cannot be told now: %s", error)
        run("controller election", self.election.run())
        run("metadata", self.follower.run())
        await self.follower.ready.wait()
        if not alone:
            await self.registration.register(patience_s=patience_s)
        run("registration", self.registration.run())
        run("controller", self._look_after())
        self.follower.hurry()
        await self._until(self._is_known)

    def _is_known(self) -> bool:
        me = self._image.brokers.get(self.node_id)
        return me is not None and me.epoch == self.registration.epoch

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    # ---- following ------------------------------------------------------------------------------------------

    @property
    def controller_id(self) -> int:
        return self.election.controller_id

    def _leave_former_controller(self, host: str, port: int) -> None:
        """Another one has taken over: nobody waits any longer for an answer of the one before, which may be frozen or cut off."""
        there = host, port
        # At the same place it is another process: what was sent to the one before is lost too.
        keep = there if there != self._controller_at else None
        self._controller_at = there
        self.peers.drop((FEED, TO_CONTROLLER, CREATIONS, FORWARDED), keep=keep)

    @property
    def request_timeout_s(self) -> float:
        return self._config.integer("request.timeout.ms") / 1000

    @property
    def broker_epoch(self) -> int:
        return self.registration.epoch

    async def _take_in(self, changes: Sequence[Change]) -> None:
        await self._on_image(changes)
        self._changed.set()

    async def _find_controller(self) -> FeedSource:
        if self.state.active:
            return self.feed
        return _RemoteFeed(self.peers, *await self.controller_address())

    async def controller_address(self) -> tuple[str, int]:
        """Where the controller listens; raises ApiError while there is none."""
        try:
            node = await self._coordination.get(znodes.CONTROLLER)
        except CoordinationError as error:
            raise ApiError(ErrorCode.NOT_CONTROLLER, str(error)) from None
        if node is None:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        try:
            return znodes.decode_controller_address(node.data)
        except UNREADABLE as error:
            raise ApiError(ErrorCode.NOT_CONTROLLER, str(unreadable(znodes.CONTROLLER, error))) from None

    def endpoint(self, broker: BrokerRegistration) -> BrokerEndpoint:
        """Where this broker reaches another."""
        return broker.endpoint(self._listener) or broker.endpoints[0]

    def address_of(self, node_id: int) -> BrokerEndpoint | None:
        """Where this broker reaches a live broker; None if it is not live."""
        broker = self._image.brokers.get(node_id)
        return self.endpoint(broker) if broker is not None else None

    def _feed_request(self) -> ControllerFeedRequest:
        return ControllerFeedRequest(
            broker_id=self.node_id,
            broker_epoch=self.registration.epoch,
            wants_to_stop=self._wants_to_stop,
            directories_offline=not self._all_directories_online(),
            offline_replicas=self._by_topic(self._offline_replicas()),
            full_replicas=self._by_topic(self._full_replicas()),
        )

    def _by_topic(self, replicas: Collection[TopicPartition]) -> list[OfflineReplicas]:
        indexes: dict[bytes, list[int]] = {}
        for tp in replicas:
            topic = self._image.topics.get(tp.topic)
            if topic is not None:
                indexes.setdefault(topic.topic_id, []).append(tp.partition)
        return [OfflineReplicas(topic_id=topic_id, partitions=some) for topic_id, some in indexes.items()]

    def _on_feed_answer(self, answer: ControllerFeedResponse) -> None:
        self._answered_s = asyncio.get_running_loop().time()
        self.identity.saw(answer.controller_epoch)
        if answer.may_stop:
            self._may_stop.set()

    # ---- as controller --------------------------------------------------------------------------------------

    def _unclean(self, image: ClusterImage, topic: str) -> bool:
        """Asked for each of many topics when a broker goes: nothing else of their settings is looked at."""
        own = image.topic_configs.get(topic, {}).get(UNCLEAN)
        if own is None:
            return self._config.flag(UNCLEAN)
        return bool(stored_topic_overrides({UNCLEAN: own}).values.get(UNCLEAN))

    def _unclean_settings(self) -> object:
        """What allows unclean elections, of all topics and of each."""
        configs = self.state.image.topic_configs.items()
        return (
            self._config.flag(UNCLEAN),
            [name for name, config in configs if config.get(UNCLEAN) == "true"],
        )

    async def _look_after(self) -> None:
        """What a controller does now and then."""
        rebalance_at = self._next_rebalance()
        unclean: object = None
        while True:
            await asyncio.sleep(_HOUSEKEEPING_S)
            if not self.state.active:
                continue
            try:
                if unclean != (unclean := self._unclean_settings()):
                    await self.partitions.elect_offline()
                await self.controller.finish_deletions()
                await self.forget_deleted()
                await self._grow_internal_topics()
                if asyncio.get_running_loop().time() >= rebalance_at:
                    rebalance_at = self._next_rebalance()
                    if self._config.flag("auto.leader.rebalance.enable"):
                        await self.partitions.rebalance_leaders(
                            self._config.integer("leader.imbalance.per.broker.percentage")
                        )
            except ApiError as error:
                log.info("not done now: %s", error)

    async def _grow_internal_topics(self) -> None:
        """Made when the cluster was smaller, they get their replicas when there are brokers for them."""
        image = self.state.image
        brokers = sorted(image.brokers.keys() - image.stopping)
        for name in (OFFSETS, TRANSACTIONS):
            topic = image.topics.get(name)
            if topic is None or topic.topic_id in image.kept_small:
                continue
            factor = wanted_factor(self._config, name, len(brokers))
            wanted = expanded_replicas(topic, factor, brokers)
            if wanted:
                log.info("%s gets %d replicas of each partition", name, factor)
                await self.partitions.reassign(
                    {TopicPartition(name, i): nodes for i, nodes in wanted.items()}, by_hand=False
                )
            elif name == TRANSACTIONS and not topic.reassigning:
                await self._raise_min_isr(name, wanted_min_isr(self._config, factor))

    async def _raise_min_isr(self, name: str, least: int) -> None:
        """Once the replicas are there: a decided transaction must not be known to one broker alone."""
        own = stored_topic_overrides(self.state.image.topic_configs.get(name, {})).values
        given = own.get("min.insync.replicas", 1)
        if isinstance(given, int) and given < least:
            await self.controller.set_topic_config(
                name, lambda image: {**image.topic_configs.get(name, {}), "min.insync.replicas": str(least)}
            )

    def _next_rebalance(self) -> float:
        interval_s = self._config.integer("leader.imbalance.check.interval.seconds")
        return asyncio.get_running_loop().time() + interval_s

    async def forget_deleted(self) -> None:
        """Deletions that every broker concerned has taken in, with all its directories online to do so. Every other that is there has heard
        of them, too: who coordinates groups goes by the notes, and would leave their offsets alone."""
        image, feed = self.state.image, self.state.term.feed
        if any(feed.taken_in(node) != feed.position for node in image.brokers):
            return
        done = {
            name: list(ids)
            for name, ids in image.being_deleted.items()
            if all(map(self._has_deleted, image.deleted_from[name])) and not _is_there(image, name, ids)
        }
        if done and feed.position:
            await self.controller.forget_deleted(done)

    def _has_deleted(self, node: int) -> bool:
        term = self.state.term
        there = node in term.image.brokers and self.partitions.has_all_directories(node)
        return there and term.feed.taken_in(node) == term.feed.position

    # ---- leaving --------------------------------------------------------------------------------------------

    async def hand_over(self) -> None:
        """Before stopping: what is led here goes to others, if there are any, within a bound."""
        others = self._image.brokers.keys() - {self.node_id}
        if not others or self.registration.epoch == NOT_REGISTERED:
            return
        self._wants_to_stop = True
        self.follower.hurry()
        try:
            async with asyncio.timeout(_STOP_S):
                await self._until_released()
        except TimeoutError:
            log.warning("stopping without having handed over everything")

    async def _until_released(self) -> None:
        """By the controller; or until it is clear that there is none that could."""
        loop = asyncio.get_running_loop()
        hopeful_s = loop.time()
        while not self._may_stop.is_set():
            if self._coordination.session is SessionState.CONNECTED:
                hopeful_s = loop.time()
            if loop.time() - max(hopeful_s, self._answered_s) > _NOBODY_S:
                log.warning(
                    "stopping without handing over: neither ZooKeeper nor the controller has answered for %g s",
                    _NOBODY_S,
                )
                return
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._may_stop.wait()
            except TimeoutError:
                continue

    async def resign(self) -> None:
        """Once nothing is fetched here any more: the next controller does not know that this broker is on its way out, and might take it into an
        ISR again."""
        if self._wants_to_stop:
            await self.state.close()
            await self.election.resign()

    async def close(self) -> None:
        await self.state.close()
        self.state.end()
        self.peers.close()


def _is_there(image: ClusterImage, name: str, ids: Collection[bytes]) -> bool:
    """Noted as deleted, and not gone yet."""
    topic = image.topics.get(name)
    return topic is not None and topic.topic_id in ids


class _RemoteFeed:
    """The feed of a controller that is another broker."""

    def __init__(self, peers: Peers, host: str, port: int) -> None:
        self._peers = peers
        self._host, self._port = host, port

    async def ask(self, request: ControllerFeedRequest) -> ControllerFeedResponse:
        answer: ControllerFeedResponse = await self._peers.ask(
            FEED, self._host, self._port, request, timeout_s=_FEED_TIMEOUT_S
        )
        return answer


__all__ = ["NO_CONTROLLER", "ClusterMember"]
