"""A broker's registration: its ephemeral node, recreated in every session and after a deletion.

An existing node of the same id may be this broker's own, of a session that has not ended yet. That
is so if it names the same data directories, and then it is replaced. The node of another broker is
kept, and waited for as long as its session may last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from millstream.cluster.membership.identity import UNREADABLE, ClusterIdentity
from millstream.control import znodes
from millstream.control.znodes import BrokerRegistration
from millstream.ports.coordination import (
    BadVersion,
    Cancel,
    Check,
    Coordination,
    CoordinationError,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    SessionState,
    Write,
)

log = logging.getLogger("millstream.registration")

_RETRY_S = 0.2
NOT_REGISTERED = -1


class AlreadyRegistered(Exception):
    """Another broker has this id; the message says which."""


def _in_use(other: BrokerRegistration) -> AlreadyRegistered:
    return AlreadyRegistered(
        f"broker id {other.node_id} is in use by {other.endpoints[0].host}:{other.endpoints[0].port}; "
        "give this broker another node.id, or wait until that one is gone"
    )


def _read(node_id: int, existing: Node) -> BrokerRegistration | None:
    """Return the registration in a node, or None if it is unreadable."""
    try:
        return znodes.decode_broker(node_id, existing.data)
    except UNREADABLE:
        return None


async def wait_for_id(coordination: Coordination, node_id: int, *, timeout_s: float) -> None:
    """Wait until no broker has an id; raise AlreadyRegistered.

    A broker with a new directory calls this, because no registration can be its own. It must not
    claim the directory for an id that another broker has: the directory would then reject the right
    one.
    """
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        try:
            existing = await coordination.get(znodes.broker_path(node_id))
            other = _read(node_id, existing) if existing is not None else None
            if other is None:
                return
            if asyncio.get_running_loop().time() > deadline:
                raise _in_use(other)
        except CoordinationError as error:
            log.info("cannot check whether broker id %d is in use: %s", node_id, error)
        await asyncio.sleep(_RETRY_S)


class Registration:
    """Registers this broker, again after every lost session.

    ``epoch`` is the broker epoch of the current registration.
    """

    def __init__(
        self,
        coordination: Coordination,
        broker: BrokerRegistration,
        identity: ClusterIdentity,
        *,
        now_ms: Callable[[], int],
        torn: Callable[[], bool] = lambda: False,
    ) -> None:
        """``torn`` returns whether the ends of this broker's logs may be missing."""
        self._coordination = coordination
        self._identity = identity
        self._broker = broker
        self._now_ms = now_ms
        self._look = asyncio.Event()
        self._ended_sessions = 0
        self._cancel: Cancel | None = None
        self._torn = torn
        self.epoch = NOT_REGISTERED

    async def register(self, *, timeout_s: float) -> None:
        """Register; raise AlreadyRegistered if another broker keeps the id for this time."""
        if self._cancel is None:
            self._cancel = self._coordination.on_session(self._on_session)
        deadline = asyncio.get_running_loop().time() + timeout_s
        logged = ""
        while True:
            try:
                return await self._register()
            except AlreadyRegistered:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            except CoordinationError as error:
                if str(error) != logged:
                    logged = str(error)
                    log.info("cannot register yet: %s", error)
            await asyncio.sleep(_RETRY_S)

    async def _register(self) -> None:
        path, ended = znodes.broker_path(self._broker.node_id), self._ended_sessions
        writes: list[Write] = [(await self._identity.look()).unchanged]
        existing = await self._coordination.get(path)
        if existing is not None:
            self._check_ours(path, existing)
            writes += [Check(path, existing.version), Delete(path)]
        data = znodes.encode_broker(replace(self._broker, torn=self._torn()), now_ms=self._now_ms())
        try:
            await self._coordination.multi([*writes, Create(path, data, ephemeral=True)])
        except (NodeExists, BadVersion, NoNode) as error:
            raise CoordinationError(f"{path} was changed by another broker: {error}") from None
        created = await self._coordination.get(path)
        if created is None:
            raise CoordinationError(f"{path} was deleted again")
        # The node was read before its session ended. To count it as registered would last forever.
        if ended != self._ended_sessions:
            raise CoordinationError(f"the session of {path} has ended")
        self.epoch = created.created
        log.info("registered as broker %d, epoch %d", self._broker.node_id, self.epoch)

    def _check_ours(self, path: str, existing: Node) -> None:
        """Raise AlreadyRegistered if the node is another broker's.

        An unreadable node is no broker's, as for the controller: brokers write theirs in one piece.
        """
        other = _read(self._broker.node_id, existing)
        if other is None:
            log.warning("the node %s is not the registration of a broker and is replaced", path)
        elif other.incarnation != self._broker.incarnation:
            raise _in_use(other)

    async def run(self) -> None:
        """Register again in every new session, and after the node was deleted.

        After a deletion the cluster considers this broker dead, but sends it no notice.
        """
        path = znodes.broker_path(self._broker.node_id)
        cancel_watch = self._coordination.watch(path, self._look.set)
        try:
            while True:
                await self._look.wait()
                self._look.clear()
                if self.epoch == NOT_REGISTERED or not await self._exists(path):
                    await self.register(timeout_s=float("inf"))
        finally:
            cancel_watch()
            if self._cancel is not None:
                self._cancel()

    async def _exists(self, path: str) -> bool:
        try:
            node = await self._coordination.get(path)
        except CoordinationError:
            return True  # if it is gone, the next session registers again
        return node is not None and node.created == self.epoch

    def _on_session(self, session: SessionState) -> None:
        if session is SessionState.EXPIRED:
            self._ended_sessions += 1
            self.epoch = NOT_REGISTERED
        elif session is SessionState.CONNECTED and self.epoch == NOT_REGISTERED:
            self._look.set()
