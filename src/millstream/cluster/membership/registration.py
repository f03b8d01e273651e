"""A broker's place in the cluster: its ephemeral node, made anew with every session, and whenever somebody has deleted it.

A node of the same id that is there already may be our own, of a session that has not ended yet: then it is replaced. It is ours when it
names the same data directories. Anybody else's is left alone, and waited for as long as its session may last.
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


def _read(node_id: int, there: Node) -> BrokerRegistration | None:
    """None for what cannot be read."""
    try:
        return znodes.decode_broker(node_id, there.data)
    except UNREADABLE:
        return None


async def wait_for_id(coordination: Coordination, node_id: int, *, patience_s: float) -> None:
    """Until nobody has it; raises AlreadyRegistered. For a broker with a new directory, whose own a registration cannot be: the directory
    must not be claimed for an id that is another's, or it would refuse the right one."""
    deadline = asyncio.get_running_loop().time() + patience_s
    while True:
        try:
            there = await coordination.get(znodes.broker_path(node_id))
            other = _read(node_id, there) if there is not None else None
            if other is None:
                return
            if asyncio.get_running_loop().time() > deadline:
                raise _in_use(other)
        except CoordinationError as error:
            log.info("cannot see now whether broker id %d is in use: %s", node_id, error)
        await asyncio.sleep(_RETRY_S)


class Registration:
    """Registers this broker, and again after every lost session. ``epoch`` is that of the present registration."""

    def __init__(
        self,
        coordination: Coordination,
        broker: BrokerRegistration,
        identity: ClusterIdentity,
        *,
        now_ms: Callable[[], int],
        torn: Callable[[], bool] = lambda: False,
    ) -> None:
        """``torn`` tells whether the ends of this broker's logs may be missing."""
        self._coordination = coordination
        self._identity = identity
        self._broker = broker
        self._now_ms = now_ms
        self._look = asyncio.Event()
        self._sessions = 0  # that have ended
        self._cancel: Cancel | None = None
        self._torn = torn
        self.epoch = NOT_REGISTERED

    async def register(self, *, patience_s: float) -> None:
        """Raises AlreadyRegistered when another broker keeps the id for so long."""
        if self._cancel is None:
            self._cancel = self._coordination.on_session(self._on_session)
        deadline = asyncio.get_running_loop().time() + patience_s
        told = ""
        while True:
            try:
                return await self._register()
            except AlreadyRegistered:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            except CoordinationError as error:
                if str(error) != told:
                    told = str(error)
                    log.info("cannot register now: %s", error)
            await asyncio.sleep(_RETRY_S)

    async def _register(self) -> None:
        path, ended = znodes.broker_path(self._broker.node_id), self._sessions
        writes: list[Write] = [(await self._identity.look()).same]
        there = await self._coordination.get(path)
        if there is not None:
            self._check_ours(path, there)
            writes += [Check(path, there.version), Delete(path)]
        data = znodes.encode_broker(replace(self._broker, torn=self._torn()), now_ms=self._now_ms())
        try:
            await self._coordination.multi([*writes, Create(path, data, ephemeral=True)])
        except (NodeExists, BadVersion, NoNode) as error:
            raise CoordinationError(f"{path} has changed meanwhile: {error}") from None
        made = await self._coordination.get(path)
        if made is None:
            raise CoordinationError(f"{path} is gone again")
        if (
            ended != self._sessions
        ):  # it was there when it was read; to count as registered now would be for ever
            raise CoordinationError(f"the session of {path} has ended")
        self.epoch = made.created
        log.info("registered as broker %d, epoch %d", self._broker.node_id, self.epoch)

    def _check_ours(self, path: str, there: Node) -> None:
        """What cannot be read is nobody's, as the controller has it: brokers write theirs whole."""
        other = _read(self._broker.node_id, there)
        if other is None:
            log.warning("the node %s is not the registration of a broker and is replaced", path)
        elif other.incarnation != self._broker.incarnation:
            raise _in_use(other)

    async def run(self) -> None:
        """Again with every new session, and where its node is gone: the others take it for dead, and it would not hear of it."""
        path = znodes.broker_path(self._broker.node_id)
        cancel_watch = self._coordination.watch(path, self._look.set)
        try:
            while True:
                await self._look.wait()
                self._look.clear()
                if self.epoch == NOT_REGISTERED or not await self._is_there(path):
                    await self.register(patience_s=float("inf"))
        finally:
            cancel_watch()
            if self._cancel is not None:
                self._cancel()

    async def _is_there(self, path: str) -> bool:
        try:
            node = await self._coordination.get(path)
        except CoordinationError:
            return True  # if it is not, the next session tells
        return node is not None and node.created == self.epoch

    def _on_session(self, session: SessionState) -> None:
        if session is SessionState.EXPIRED:
            self._sessions += 1
            self.epoch = NOT_REGISTERED
        elif session is SessionState.CONNECTED and self.epoch == NOT_REGISTERED:
            self._look.set()
