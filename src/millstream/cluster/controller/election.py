"""The election of the controller: the broker that creates the ephemeral node /controller.

The same write increments the controller epoch. Every broker runs this. It looks again after every
change of the node or of the session, and whenever it doubts that it is the controller. It never
relies on an earlier look: a watch may fire late or without a change. The controller also watches
which brokers are registered.
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
    """Runs for controller, and starts and ends the terms of this broker."""

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
        """``on_controller`` is called with the address of each new controller.

        ``incarnation`` identifies the broker's data directories. Another broker with the same id,
        by mistake, has other directories.
        """
        self._incarnation = incarnation
        self._on_controller = on_controller
        self._known: int | None = None
        self._node_id = node_id
        self._address = address
        self._coordination = coordination
        self._state = state
        self._brokers = partitions.brokers
        self._identity = identity
        self._now_ms = now_ms
        self._look_again = asyncio.Event()
        self._own_node: int | None = None
        self._brokers_due = False
        # Unreadable nodes among the registrations that have been logged.
        self._unreadable: set[str] = set()
        self._resigned = False
        self.controller_id = NO_CONTROLLER
        state.on_doubt = self._look_again.set

    async def run(self) -> None:
        cancels = [
            self._coordination.watch(znodes.CONTROLLER, self._look_again.set),
            self._coordination.watch(znodes.BROKERS, self._on_brokers_changed),
            self._coordination.on_session(self._on_session),
        ]
        logged = ""
        try:
            while True:
                self._look_again.clear()
                try:
                    await self.look()
                    logged = ""
                except (CoordinationError, ApiError) as error:
                    if str(error) != logged:  # not five times a second while ZooKeeper is down
                        logged = str(error)
                        level = logging.ERROR if isinstance(error, NotThisCluster) else logging.INFO
                        log.log(level, "cannot find out which broker is the controller: %s", error)
                    await asyncio.sleep(_RETRY_S)
                    self._look_again.set()
                await self._look_again.wait()
        finally:
            for cancel in cancels:
                cancel()

    def _on_session(self, session: SessionState) -> None:
        if session is SessionState.EXPIRED:
            self._end_term()  # another broker may be the controller by now
        self._look_again.set()

    def _on_brokers_changed(self) -> None:
        self._brokers_due = True
        self._look_again.set()

    async def resign(self) -> None:
        """Stop running for controller because this broker is about to stop.

        If it is the controller, another broker can take over at once. It need not wait until all
        logs are closed and the session ends.
        """
        self._resigned = True
        own_node, self._own_node = self._own_node, None
        self._state.end()
        try:
            node = await self._coordination.get(znodes.CONTROLLER)
            if node is not None and node.created == own_node:
                await self._coordination.multi(
                    [Check(znodes.CONTROLLER, node.version), Delete(znodes.CONTROLLER)]
                )
        except CoordinationError as error:
            log.info("the controller node stays until the session ends: %s", error)

    async def look(self) -> None:
        """Read who is the controller, run if there is none, and do pending work."""
        node = await self._coordination.get(znodes.CONTROLLER)
        holder = _read(node) if node is not None else None
        if self._resigned and (holder is None or self._is_own(holder)):
            self.controller_id = NO_CONTROLLER
            return
        if node is None or holder is None:
            self.controller_id = NO_CONTROLLER
            await self._run_for_controller(None)
        elif self._is_own(holder):
            if self._own_node != node.created or not self._state.active:
                # The node is of an earlier session of this broker, or of a term that ended in
                # doubt. Start a new term with a new epoch.
                await self._run_for_controller(node)
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
                self._brokers_due = True  # the caller looks again soon
                raise

    def _is_own(self, holder: _Holder) -> bool:
        """Return whether this broker is the controller, in this process or an earlier one."""
        return holder.node_id == self._node_id and holder.incarnation in ("", self._incarnation)

    async def _run_for_controller(self, stale: Node | None) -> None:
        self._end_term()
        cluster = await self._identity.look()
        epoch = cluster.epoch + 1
        try:
            await self._coordination.multi(
                [cluster.unchanged, *self._candidacy(stale, cluster.epoch_node, epoch)]
            )
        except (NodeExists, BadVersion):
            return  # another broker was faster; the watch fires
        await self._begin_term(epoch)

    def _candidacy(self, stale: Node | None, epoch_node: Node | None, epoch: int) -> list[Write]:
        data = znodes.encode_controller_epoch(epoch)
        writes: list[Write] = []
        if stale is not None:
            writes += [Check(znodes.CONTROLLER, stale.version), Delete(znodes.CONTROLLER)]
        if epoch_node is None:
            writes.append(Create(znodes.CONTROLLER_EPOCH, data))
        else:
            writes += [
                Check(znodes.CONTROLLER_EPOCH, epoch_node.version),
                Put(znodes.CONTROLLER_EPOCH, data),
            ]
        controller = znodes.encode_controller(
            self._node_id, *self._address, self._incarnation, now_ms=self._now_ms()
        )
        writes.append(Create(znodes.CONTROLLER, controller, ephemeral=True))
        return writes

    async def _begin_term(self, epoch: int) -> None:
        own_node = await self._coordination.get(znodes.CONTROLLER)
        epoch_node = await self._coordination.get(znodes.CONTROLLER_EPOCH)
        if (
            own_node is None
            or epoch_node is None
            or epoch_node.data != znodes.encode_controller_epoch(epoch)
        ):
            self._look_again.set()
            return
        self._brokers_due = False  # the tree includes them
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
        self._own_node, self.controller_id = own_node.created, self._node_id
        # A change of an earlier term of this broker has finished or failed before this term starts.
        async with self._state.lock:
            if self._own_node != own_node.created:
                return  # the session has ended in the meantime
            self._state.begin(
                Term(self._node_id, epoch, epoch_node.version, image, now_ms=self._now_ms)
            )
            self._brokers.start_term()
            log.info(
                "this broker is the controller, epoch %d, with %d topics and brokers %s",
                epoch,
                len(image.topics),
                sorted(image.brokers),
            )
            await self._brokers.reconcile()

    def _end_term(self) -> None:
        if self._state.active:
            log.info("this broker is no longer the controller")
        self._state.end()
        self._own_node = None

    async def _read_brokers(self) -> None:
        nodes = await self._coordination.children(znodes.BROKERS)
        await self._brokers.brokers_changed(self._registered(nodes))

    def _registered(self, nodes: Mapping[str, Node]) -> dict[int, BrokerRegistration]:
        """Return the readable registrations.

        Brokers write theirs in one piece, so an unreadable node is an operator's mistake. It must
        not leave the cluster without a controller.
        """
        brokers: dict[int, BrokerRegistration] = {}
        unreadable_names: set[str] = set()
        for name, node in nodes.items():
            try:
                node_id = znodes.broker_id(name)
                brokers[node_id] = znodes.decode_broker(node_id, node.data, node.created)
            except UNREADABLE as error:
                unreadable_names.add(name)
                if name not in self._unreadable:
                    log.error(
                        "the node %s%s in ZooKeeper is not the registration of a broker (%r) "
                        "and is ignored. Delete it: brokers register automatically",
                        _REGISTRATIONS,
                        name,
                        error,
                    )
        self._unreadable = unreadable_names
        return brokers


class _Holder(NamedTuple):
    """The controller, as its node names it."""

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
