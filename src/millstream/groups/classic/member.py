"""A member of a classic group."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from millstream.core.decisions import TimerKey, Waiter
from millstream.wire.messages.join_group import JoinGroupRequestProtocol, JoinGroupResponse
from millstream.wire.messages.sync_group import SyncGroupResponse

Protocols = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Member:
    """An immutable member.

    ``join`` and ``sync`` are the waiters of its delayed requests, or None.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    # It has not received the response to its first join, so it does not know its id and cannot send
    # heartbeats.
    is_new: bool = False
    join: Waiter[JoinGroupResponse] | None = None
    sync: Waiter[SyncGroupResponse] | None = None

    @property
    def waits(self) -> bool:
        """Whether a delayed join or sync keeps the member alive.

        It does not for a new member, whose wait only its join timeout limits.
        """
        return not self.is_new and (self.join is not None or self.sync is not None)

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: Collection[str]) -> str:
        """Return its most preferred protocol among those that all members support."""
        return next(name for name, _ in self.protocols if name in candidates)


def protocols_of(requested: Iterable[JoinGroupRequestProtocol]) -> Protocols:
    """Return the protocols in the member's order of preference; the first of duplicates wins."""
    unique: dict[str, bytes] = {}
    for protocol in requested:
        unique.setdefault(protocol.name, protocol.metadata)
    return tuple(unique.items())


def session_timer(group_id: str, member_id: str) -> TimerKey:
    return ("session", group_id, member_id)
