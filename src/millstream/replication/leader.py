"""The leader's view of its followers, from which follow the high watermark and the ISR.

``LeaderReplicas`` belongs to one partition for one leader epoch. Its input are the fetches of the
followers and the decisions of the controller, with their times. Its output is the high watermark,
and the change of the ISR that the leader should propose.

A proposal is in flight until the controller has responded. Until then the high watermark waits for
the members of both the old and the proposed ISR (the "maximal" ISR, KIP-497), because either may be
in force.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

UNKNOWN_OFFSET = -1
NO_EPOCH = -1
# Earlier than any time of a clock that may start at zero.
LONG_AGO_MS = -(2**62)


class SessionLiveness(Protocol):
    """A fetch session, which every request of the follower uses."""

    last_used_ms: int
    # Number of requests so far.
    requests: int

    @property
    def request_pending(self) -> bool:
        """Whether a request waits for its response."""


@dataclass(slots=True)
class FollowerProgress:
    """The progress of one follower, as its fetches show it."""

    log_end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    last_fetch_ms: int = LONG_AGO_MS
    last_caught_up_ms: int = LONG_AGO_MS
    leader_end_at_last_fetch: int = 0
    broker_epoch: int = NO_EPOCH
    # The session in which this partition is idle. Each request of the session confirms that the
    # follower has caught up.
    idle_session: SessionLiveness | None = field(default=None, repr=False)
    _fetches: int = 0
    _requests_before_idle: int = 0

    def on_fetch(
        self, offset: int, log_start: int, leader_end: int, *, broker_epoch: int, now_ms: int
    ) -> None:
        """Record a fetch from ``offset``: the follower's log has everything before it.

        A follower that has reached the log end offset of its previous fetch counts as caught up at
        the time of that fetch. Under steady traffic a healthy follower is always a little behind.
        """
        if self.idle_session is not None:
            # The follower has left that session. Do not count this request: it may have been sent
            # before a leadership check that waits for the next request of the session.
            self.leave_idle(self.idle_session)
        else:
            self._fetches += 1
        if offset >= leader_end:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif offset >= self.leader_end_at_last_fetch:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = offset
        self.log_start_offset = log_start
        self.leader_end_at_last_fetch = leader_end
        self.last_fetch_ms = now_ms
        self.broker_epoch = broker_epoch

    def caught_up(self, leader_end: int, *, max_lag_ms: int, now_ms: int) -> bool:
        if self.log_end_offset == leader_end or now_ms - self.last_caught_up_ms <= max_lag_ms:
            return True
        return (
            self.idle_session is not None and now_ms - self.idle_session.last_used_ms <= max_lag_ms
        )

    @property
    def fetches(self) -> int:
        """Number of requests that showed that this follower follows the leader."""
        session = self.idle_session
        if session is None:
            return self._fetches
        return self._fetches + session.requests - self._requests_before_idle

    @property
    def confirming_fetch_count(self) -> int:
        """The value of ``fetches`` that proves that a request was sent after now.

        The next request may be on its way already, and sent before now. The request after it is
        sent when that one is answered. A pending request of an idle session is counted already.
        """
        pending = self.idle_session is not None and self.idle_session.request_pending
        return self.fetches + (1 if pending else 2)

    def enter_idle(self, session: SessionLiveness) -> None:
        """Let the requests of a session count as fetches of this partition.

        Ignore a session that was used before the current one: a request in an old session may end
        after a new session was opened.
        """
        if self.idle_session is not None:
            if session.last_used_ms < self.idle_session.last_used_ms:
                return
            self.leave_idle(self.idle_session)
        self.idle_session, self._requests_before_idle = session, session.requests

    def leave_idle(self, session: SessionLiveness) -> None:
        """Record that the follower was caught up when the session was last used.

        Ignore the end of an earlier session, which does not concern the current one.
        """
        if self.idle_session is session:
            self._fetches = self.fetches
            self.last_fetch_ms = max(self.last_fetch_ms, session.last_used_ms)
            self.last_caught_up_ms = max(self.last_caught_up_ms, session.last_used_ms)
            self.idle_session = None


@dataclass(frozen=True, slots=True)
class IsrMember:
    """A member of a proposed ISR.

    With the epoch the controller can reject a broker that has restarted since (KIP-903).
    """

    node_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class IsrProposal:
    """The ISR that the leader requests from the controller."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...]

    @property
    def members(self) -> frozenset[int]:
        return frozenset(member.node_id for member in self.isr)


class LeaderReplicas:
    """The replicas of one partition as its leader sees them, within one leader epoch."""

    __slots__ = (
        "_eligible",
        "_node_id",
        "_proposal",
        "epoch_start",
        "followers",
        "isr",
        "leader_epoch",
        "partition_epoch",
    )

    def __init__(
        self,
        node_id: int,
        *,
        leader_epoch: int,
        partition_epoch: int,
        replicas: Sequence[int],
        isr: Sequence[int],
        log_end: int,
        now_ms: int,
        eligible: Callable[[int, int], bool] = lambda node_id, broker_epoch: True,
    ) -> None:
        """``eligible`` returns whether a broker with this epoch is up and not shutting down."""
        self._node_id = node_id
        self._eligible = eligible
        self._proposal: IsrProposal | None = None
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.isr = tuple(isr)
        self.epoch_start = log_end
        self.followers: dict[int, FollowerProgress] = {}
        self.assign(replicas, now_ms=now_ms)

    # ---- input ----

    def assign(self, replicas: Sequence[int], *, now_ms: int) -> None:
        """Set the replicas, which a reassignment changes.

        New replicas in the ISR get the full replica lag time for their first fetch.
        """
        for node in [node for node in self.followers if node not in replicas]:
            del self.followers[node]
        for node in replicas:
            if node != self._node_id and node not in self.followers:
                since_ms = now_ms if node in self.isr else LONG_AGO_MS
                self.followers[node] = FollowerProgress(last_caught_up_ms=since_ms)

    def on_fetch(
        self,
        node: int,
        offset: int,
        log_start: int,
        leader_end: int,
        *,
        broker_epoch: int,
        now_ms: int,
    ) -> bool:
        """Record a fetch of a follower.

        Return False if the broker is not a replica, or if its epoch is older than the known one.
        """
        follower = self.followers.get(node)
        if follower is None or broker_epoch < follower.broker_epoch:
            return False
        follower.on_fetch(offset, log_start, leader_end, broker_epoch=broker_epoch, now_ms=now_ms)
        return True

    def log_start_of(self, node: int) -> int:
        """Return the log start offset of a follower's last fetch, or UNKNOWN_OFFSET."""
        follower = self.followers.get(node)
        return follower.log_start_offset if follower is not None else UNKNOWN_OFFSET

    def low_watermark(self, leader_start: int, live: Collection[int]) -> int:
        """Return the smallest log start of all replicas that are live or may lead.

        No replica serves records before it.
        """
        maximal_isr = self.maximal_isr
        starts = [
            follower.log_start_offset
            for node, follower in self.followers.items()
            if node in live or node in maximal_isr
        ]
        return min((leader_start, *starts))

    def on_isr(self, isr: Sequence[int], partition_epoch: int) -> bool:
        """Apply an ISR from the controller, unless it is not newer than the current one.

        It arrives in the controller's response and in the metadata feed, in either order.
        """
        if partition_epoch <= self.partition_epoch:
            return False
        self.isr, self.partition_epoch, self._proposal = tuple(isr), partition_epoch, None
        return True

    def on_rejected(self) -> None:
        """Drop the proposal, which the controller has rejected."""
        self._proposal = None

    # ---- output ----

    @property
    def proposal(self) -> IsrProposal | None:
        """The proposal in flight."""
        return self._proposal

    @property
    def maximal_isr(self) -> frozenset[int]:
        """All replicas that may be in the ISR now."""
        members = frozenset(self.isr)
        return members | self._proposal.members if self._proposal is not None else members

    def confirm(self, awaited: dict[int, int]) -> bool:
        """Return whether all possible leaders have fetched from this one since the first call.

        If they have, no other replica was the leader at the time of that call. The caller passes an
        empty ``awaited`` first, and then the same dictionary until this returns True.
        """
        confirmed = True
        for node in self.maximal_isr:
            follower = self.followers.get(node)
            if follower is not None:
                confirmed &= follower.fetches >= awaited.setdefault(
                    node, follower.confirming_fetch_count
                )
        return confirmed

    def high_watermark(
        self, current: int, leader_end: int, *, min_isr: int, max_lag_ms: int, now_ms: int
    ) -> int:
        """Return the offset up to which every member of the maximal ISR has all records.

        It also waits for followers that are about to join the ISR, so that they can catch up. It
        does not advance while the ISR is smaller than min.insync.replicas (KIP-966).
        """
        if len(self.isr) < min(min_isr, len(self.followers) + 1):
            return current
        maximal_isr = self.maximal_isr
        end = leader_end
        for node, follower in self.followers.items():
            if follower.log_end_offset < end and (
                node in maximal_isr
                or (
                    follower.caught_up(leader_end, max_lag_ms=max_lag_ms, now_ms=now_ms)
                    and self._eligible(node, follower.broker_epoch)
                )
            ):
                end = follower.log_end_offset
        return max(current, end)

    def propose_expansion(
        self, node: int, high_watermark: int, log_start: int = UNKNOWN_OFFSET
    ) -> IsrProposal | None:
        """Propose the ISR with a follower that has all committed records of this leader's epoch.

        It must also have deleted the records that were deleted here. A follower that was down when
        the deletion was acknowledged would restore them if it became the leader.
        """
        follower = self.followers.get(node)
        if self._proposal is not None or follower is None or node in self.isr:
            return None
        if follower.log_end_offset < max(high_watermark, self.epoch_start):
            return None
        if follower.log_start_offset < log_start:
            return None
        if not self._eligible(node, follower.broker_epoch):
            return None
        return self._propose((*self.isr, node))

    def propose_shrinking(
        self, leader_end: int, *, max_lag_ms: int, now_ms: int
    ) -> IsrProposal | None:
        """Propose the ISR without the followers that have not caught up for ``max_lag_ms``."""
        if self._proposal is not None:
            return None
        late = {
            node
            for node in self.isr
            if node in self.followers
            and not self.followers[node].caught_up(leader_end, max_lag_ms=max_lag_ms, now_ms=now_ms)
        }
        return self._propose([node for node in self.isr if node not in late]) if late else None

    def _propose(self, nodes: Sequence[int]) -> IsrProposal:
        members = tuple(IsrMember(node, self._broker_epoch(node)) for node in nodes)
        self._proposal = IsrProposal(self.leader_epoch, self.partition_epoch, members)
        return self._proposal

    def _broker_epoch(self, node: int) -> int:
        """Return the epoch of a member, or NO_EPOCH for the leader and before the first fetch.

        The leader's request to the controller has its epoch already.
        """
        follower = self.followers.get(node)
        return follower.broker_epoch if follower is not None else NO_EPOCH
