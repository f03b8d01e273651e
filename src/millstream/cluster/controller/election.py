"""Which broker is the controller: whoever makes the ephemeral node /controller, in the same write that raises the controller epoch.

Every broker runs this. It looks again whenever the node, the session or the broker's own doubt gives reason to, and never remembers what
it saw before: a watch may come late or for nothing. While this broker is the controller it also watches which brokers are registered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from millstream.cluster.controller.partitions import PartitionControl
from millstream.cluster.controller.term import ControllerState, Term
from millstream.cluster.membership.identity import (
    UNREADABLE,
    ClusterIdentity,
    NotThisCluster,
    unreadable,
)
from millstream.control import znodes
from millstream.control.image import ClusterImage
from millstream.control.znodes import BrokerRegistration
from millstream.core.errors import ApiError
from millstream.ports.coordination import (
    BadVersion,
    Check,
    Coordination,
    CoordinationError,
    Create,
    Delete,
    Node,
    NodeExists,
    Put,
    SessionState,
    Write,
)

log = logging.getLogger("millstream.controller")

_RETRY_S = 0.2
NO_CONTROLLER = -1
_REGISTRATIONS = znodes.BROKERS + "/"


class ControllerElection:
    """Runs for controller, and begins and ends the terms of this broker."""

    def __init__(
        self,
        node_id: int,
        address: tuple[str, int],
        coordination: Coordination,
        state: ControllerState,
        partitions: PartitionControl,
        identity: ClusterIdentity,
        *,
        now_ms: Callable[[], int],
        incarnation: str = "",
        on_controller: Callable[[str, int], None] = lambda host, port: None,
    ) -> None:
        """``on_controller`` is told where the controller is, whenever another one was found than before. ``incarnation`` names the
        broker's data directories: another broker that was given the same id by mistake has others."""
        self._incarnation = incarnation
        self._on_controller = on_controller
        self._known: int | None = None
        self._node_id = node_id
        self._address = address
        self._coordination = coordination
        self._state = state
        self._partitions = partitions
        self._identity = identity
        self._now_ms = now_ms
        self._look_again = asyncio.Event()
        self._mine: int | None = None
        self._brokers_due = False
        self._strange: set[str] = set()  # nodes among the registrations that are none, which have been told
        self._resigned = False
        self.controller_id = NO_CONTROLLER
        state.on_doubt = self._look_again.set

    async def run(self) -> None:
        cancels = [
            self._coordination.watch(znodes.CONTROLLER, self._look_again.set),
            self._coordination.watch(znodes.BROKERS, self._brokers_may_have_changed),
            self._coordination.on_session(self._on_session),
        ]
        told = ""
        try:
            while True:
                self._look_again.clear()
                try:
                    await self.look()
                    told = ""
                except (CoordinationError, ApiError) as error:
                    if str(error) != told:  # not five times a second while ZooKeeper is away
                        told = str(error)
                        level = logging.ERROR if isinstance(error, NotThisCluster) else logging.INFO
                        log.log(level, "who is the controller cannot be told now: %s", error)
                    await asyncio.sleep(_RETRY_S)
                    self._look_again.set()
                await self._look_again.wait()
        finally:
            for cancel in cancels:
                cancel()

    def _on_session(self, session: SessionState) -> None:
        if session is SessionState.EXPIRED:
            self._end_term()  # somebody else may be the controller by now
        self._look_again.set()

    def _brokers_may_have_changed(self) -> None:
        self._brokers_due = True
        self._look_again.set()

    async def resign(self) -> None:
        """This broker is about to stop and no longer runs. Where it was the controller somebody else can be it at once, and need not wait until
        all logs are closed and the session ends."""
        self._resigned = True
        mine, self._mine = self._mine, None
        self._state.end()
        try:
            node = await self._coordination.get(znodes.CONTROLLER)
            if node is not None and node.created == mine:
                await self._coordination.multi(
                    [Check(znodes.CONTROLLER, node.version), Delete(znodes.CONTROLLER)]
                )
        except CoordinationError as error:
            log.info("the end of the session will tell that there is no controller: %s", error)

    async def look(self) -> None:
        """Reads who is the controller, runs when there is none, and follows up what is due."""
        node = await self._coordination.get(znodes.CONTROLLER)
        holder = _read(node) if node is not None else None
        if self._resigned and (holder is None or self._is_own(holder)):
            self.controller_id = NO_CONTROLLER
            return
        if node is None or holder is None:
            self.controller_id = NO_CONTROLLER
            await self._run_for_it(None)
        elif self._is_own(holder):
            if self._mine != node.created or not self._state.active:
                # Of an earlier session of this broker, or of a term that ended in doubt: begin anew, with a new epoch.
                await self._run_for_it(node)
        else:
            self._end_term()
            self.controller_id = holder.node_id
        if node is not None and holder is not None and node.created != self._known:
            self._known = node.created
            self._on_controller(*holder.address)
        if self._state.active and self._brokers_due:
            self._brokers_due = False
            try:
                await self._read_brokers()
            except (CoordinationError, ApiError):
                self._brokers_due = True  # with the next look, which whoever hears of this takes soon
                raise

    def _is_own(self, holder: _Holder) -> bool:
        """This broker, in this life or an earlier one."""
        return holder.node_id == self._node_id and holder.incarnation in ("", self._incarnation)

    async def _run_for_it(self, stale: Node | None) -> None:
        self._end_term()
        found = await self._identity.look()
        epoch = found.epoch + 1
        try:
            await self._coordination.multi([found.same, *self._candidacy(stale, found.epoch_node, epoch)])
        except (NodeExists, BadVersion):
            return  # somebody was quicker; the watch tells
        await self._begin_term(epoch)

    def _candidacy(self, stale: Node | None, epoch_node: Node | None, epoch: int) -> list[Write]:
        data = znodes.encode_controller_epoch(epoch)
        writes: list[Write] = []
        if stale is not None:
            writes += [Check(znodes.CONTROLLER, stale.version), Delete(znodes.CONTROLLER)]
        if epoch_node is None:
            writes.append(Create(znodes.CONTROLLER_EPOCH, data))
        else:
            writes += [Check(znodes.CONTROLLER_EPOCH, epoch_node.version), Put(znodes.CONTROLLER_EPOCH, data)]
        mine = znodes.encode_controller(
            self._node_id, *self._address, self._incarnation, now_ms=self._now_ms()
        )
        writes.append(Create(znodes.CONTROLLER, mine, ephemeral=True))
        return writes

    async def _begin_term(self, epoch: int) -> None:
        mine = await self._coordination.get(znodes.CONTROLLER)
        epoch_node = await self._coordination.get(znodes.CONTROLLER_EPOCH)
        if mine is None or epoch_node is None or epoch_node.data != znodes.encode_controller_epoch(epoch):
            self._look_again.set()
            return
        self._brokers_due = False  # the tree has them
        image = ClusterImage()
        registrations: dict[str, Node] = {}
        path = ""
        try:
            for path, node in sorted((await self._coordination.load()).items()):
                if path.startswith(_REGISTRATIONS):
                    registrations[path.removeprefix(_REGISTRATIONS)] = node
                else:
                    image.apply(path, node.data, node.version)
        except UNREADABLE as error:
            raise unreadable(path, error) from None
        image.brokers = self._registered(registrations)
        self._mine, self.controller_id = mine.created, self._node_id
        # A change that was planned in an earlier term of this broker is over, or has failed, before this one begins.
        async with self._state.lock:
            if self._mine != mine.created:
                return  # the session has ended meanwhile
            self._state.begin(Term(self._node_id, epoch, epoch_node.version, image, now_ms=self._now_ms))
            self._partitions.begin()
            log.info(
                "this broker is the controller, epoch %d, with %d topics and brokers %s",
                epoch,
                len(image.topics),
                sorted(image.brokers),
            )
            await self._partitions.settle()

    def _end_term(self) -> None:
        if self._state.active:
            log.info("this broker is no longer the controller")
        self._state.end()
        self._mine = None

    async def _read_brokers(self) -> None:
        nodes = await self._coordination.children(znodes.BROKERS)
        await self._partitions.brokers_changed(self._registered(nodes))

    def _registered(self, nodes: Mapping[str, Node]) -> dict[int, BrokerRegistration]:
        """Brokers write theirs whole, so a node that cannot be read is somebody's mistake, and not worth a cluster without a controller."""
        found: dict[int, BrokerRegistration] = {}
        strange: set[str] = set()
        for name, node in nodes.items():
            try:
                node_id = znodes.broker_id(name)
                found[node_id] = znodes.decode_broker(node_id, node.data, node.created)
            except UNREADABLE as error:
                strange.add(name)
                if name not in self._strange:
                    log.error(
                        "the node %s%s in ZooKeeper is not the registration of a broker (%r) and counts for none. Delete it: brokers register by themselves",
                        _REGISTRATIONS,
                        name,
                        error,
                    )
        self._strange = strange
        return found


class _Holder(NamedTuple):
    """Who is the controller, by its node."""

    node_id: int
    incarnation: str
    address: tuple[str, int]


def _read(node: Node) -> _Holder:
    try:
        return _Holder(
            znodes.decode_controller(node.data),
            znodes.decode_controller_incarnation(node.data),
            znodes.decode_controller_address(node.data),
        )
    except UNREADABLE as error:
        raise unreadable(znodes.CONTROLLER, error) from None
