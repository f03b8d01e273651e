"""A broker as a member of its cluster, from joining to controlled shutdown.

To join, a broker runs for controller. Then it follows the controller's feed until its image is
complete, which also loads the logs. Then it registers, and waits until it sees its registration in
the image. A broker without a cluster registers first: no other broker could lead in the meantime,
and so no partition changes its leader for a restart. To leave, it asks the controller to move its
leaderships, then ends its session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any

from millstream.cluster.controller.changes import Controller
from millstream.cluster.controller.election import NO_CONTROLLER, ControllerElection
from millstream.cluster.controller.feed_service import FeedService
from millstream.cluster.controller.housekeeping import (
    ControllerHousekeeping,
    allows_unclean_election,
)
from millstream.cluster.controller.partitions import PartitionControl
from millstream.cluster.controller.term import ControllerState
from millstream.cluster.membership.identity import UNREADABLE, ClusterIdentity, unreadable
from millstream.cluster.membership.metadata_follower import FeedSource, MetadataFollower
from millstream.cluster.membership.registration import NOT_REGISTERED, Registration
from millstream.cluster.peers import Peers
from millstream.control import znodes
from millstream.control.image import Change, ClusterImage
from millstream.control.znodes import BrokerEndpoint, BrokerRegistration
from millstream.core.config import BrokerConfig
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

# The controller answers a long poll after half a second; after this time it is down.
_FEED_TIMEOUT_S = 10.0
_STOP_S = 15.0
# After this time without a connection to ZooKeeper and without a response of the controller, no
# broker will take over in time. It is long enough to find another server of an ensemble.
_NO_CONTROLLER_S, _CHECK_S = 3.0, 0.25
# Purposes of connections to the controller. Topic creations have their own connection: a
# CreateTopics delays the requests behind it, and ISR changes must not wait for it.
FEED, TO_CONTROLLER, CREATIONS, FORWARDED = "feed", "controller", "creations", "forward"

RunInBackground = Callable[[str, Coroutine[Any, Any, None]], None]


class ClusterMember:
    """This broker's membership of the cluster, and its work as controller."""

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
        """``listener`` is the listener for traffic between brokers.

        ``torn`` returns whether the ends of this broker's logs may be missing.
        """
        self.node_id = broker.node_id
        self._listener = listener
        self._image = image
        self._config = config
        self._coordination = coordination
        self._offline_replicas = offline_replicas
        self._full_replicas = full_replicas
        self._all_directories_online = all_directories_online
        self._changed = asyncio.Event()
        self._apply_changes = on_changes
        self._controller_at: tuple[str, int] | None = None
        self._wants_to_stop = False
        self._may_stop = asyncio.Event()
        # When the controller last answered, in the time of the loop.
        self._answered_s = 0.0
        self.peers = Peers(network, f"broker-{broker.node_id}")
        self.state = ControllerState(coordination)
        self.partitions = PartitionControl(
            self.state, unclean=partial(allows_unclean_election, config)
        )
        self.controller = Controller(self.state, config, new_id=new_id)
        self.housekeeping = ControllerHousekeeping(
            self.state, config, self.controller, self.partitions
        )
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
        self.registration = Registration(
            coordination, broker, self.identity, now_ms=clock.now_ms, torn=torn
        )
        self.follower = MetadataFollower(
            image,
            cluster_id,
            find_controller=self._find_controller,
            request=self._feed_request,
            on_changes=self._on_changes,
            on_response=self._on_feed_response,
        )

    # ---- joining ----

    async def join(self, run: RunInBackground, *, alone: bool, timeout_s: float) -> None:
        """Join the cluster; return when this broker is registered and sees it in its image.

        ``run`` runs the loops that follow.
        """
        if alone:
            await self.registration.register(timeout_s=timeout_s)
        try:
            await self.election.look()
        except (CoordinationError, ApiError) as error:
            log.info("cannot find out which broker is the controller: %s", error)
        run("controller election", self.election.run())
        run("metadata", self.follower.run())
        await self.follower.ready.wait()
        if not alone:
            await self.registration.register(timeout_s=timeout_s)
        run("registration", self.registration.run())
        run("controller", self.housekeeping.run())
        self.follower.request_now()
        await self._wait_for(self._is_known)

    def _is_known(self) -> bool:
        me = self._image.brokers.get(self.node_id)
        return me is not None and me.epoch == self.registration.epoch

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    # ---- following ----

    @property
    def controller_id(self) -> int:
        return self.election.controller_id

    def _leave_former_controller(self, host: str, port: int) -> None:
        """Close the connections to the former controller, which may be frozen or disconnected.

        Its responses are no longer awaited.
        """
        address = host, port
        # At the same address it is another process, which never got the earlier requests.
        keep = address if address != self._controller_at else None
        self._controller_at = address
        self.peers.drop((FEED, TO_CONTROLLER, CREATIONS, FORWARDED), keep=keep)

    @property
    def request_timeout_s(self) -> float:
        return self._config.integer("request.timeout.ms") / 1000

    @property
    def broker_epoch(self) -> int:
        return self.registration.epoch

    async def _on_changes(self, changes: Sequence[Change]) -> None:
        await self._apply_changes(changes)
        self._changed.set()

    async def _find_controller(self) -> FeedSource:
        if self.state.active:
            return self.feed
        return _RemoteFeed(self.peers, *await self.controller_address())

    async def controller_address(self) -> tuple[str, int]:
        """Return the address of the controller; raise ApiError while there is none."""
        try:
            node = await self._coordination.get(znodes.CONTROLLER)
        except CoordinationError as error:
            raise ApiError(ErrorCode.NOT_CONTROLLER, str(error)) from None
        if node is None:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        try:
            return znodes.decode_controller_address(node.data)
        except UNREADABLE as error:
            raise ApiError(
                ErrorCode.NOT_CONTROLLER, str(unreadable(znodes.CONTROLLER, error))
            ) from None

    def endpoint(self, broker: BrokerRegistration) -> BrokerEndpoint:
        """Return the endpoint by which this broker reaches another."""
        return broker.endpoint(self._listener) or broker.endpoints[0]

    def address_of(self, node_id: int) -> BrokerEndpoint | None:
        """Return the endpoint by which this broker reaches a live broker, or None."""
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
        return [
            OfflineReplicas(topic_id=topic_id, partitions=rows)
            for topic_id, rows in indexes.items()
        ]

    def _on_feed_response(self, response: ControllerFeedResponse) -> None:
        self._answered_s = asyncio.get_running_loop().time()
        self.identity.saw(response.controller_epoch)
        if response.may_stop:
            self._may_stop.set()

    # ---- leaving ----

    async def hand_over(self) -> None:
        """Ask the controller to move the leaderships of this broker; wait for a limited time."""
        others = self._image.brokers.keys() - {self.node_id}
        if not others or self.registration.epoch == NOT_REGISTERED:
            return
        self._wants_to_stop = True
        self.follower.request_now()
        try:
            async with asyncio.timeout(_STOP_S):
                await self._wait_for_permission()
        except TimeoutError:
            log.warning("stopping before all leaderships were handed over")

    async def _wait_for_permission(self) -> None:
        """Wait until the controller lets this broker stop, or there clearly is no controller."""
        loop = asyncio.get_running_loop()
        connected_s = loop.time()
        while not self._may_stop.is_set():
            if self._coordination.session is SessionState.CONNECTED:
                connected_s = loop.time()
            if loop.time() - max(connected_s, self._answered_s) > _NO_CONTROLLER_S:
                log.warning(
                    "stopping without handing over: neither ZooKeeper nor the controller has answered for %g s",
                    _NO_CONTROLLER_S,
                )
                return
            try:
                async with asyncio.timeout(_CHECK_S):
                    await self._may_stop.wait()
            except TimeoutError:
                continue

    async def resign(self) -> None:
        """Give up the controllership, after this broker has stopped fetching.

        The next controller does not know that this broker is shutting down, and might add it to an
        ISR again.
        """
        if self._wants_to_stop:
            await self.state.close()
            await self.election.resign()

    async def close(self) -> None:
        await self.state.close()
        self.state.end()
        self.peers.close()


class _RemoteFeed:
    """The feed of a controller in another process."""

    def __init__(self, peers: Peers, host: str, port: int) -> None:
        self._peers = peers
        self._host, self._port = host, port

    async def ask(self, request: ControllerFeedRequest) -> ControllerFeedResponse:
        response: ControllerFeedResponse = await self._peers.ask(
            FEED, self._host, self._port, request, timeout_s=_FEED_TIMEOUT_S
        )
        return response


__all__ = ["NO_CONTROLLER", "ClusterMember"]
