"""What a leader knows of its followers, and what follows from it: the high watermark and the in-sync replicas.

``LeaderReplicas`` belongs to one partition for one leader epoch. Fetches of followers and the controller's word come in with
their times; out come the high watermark and the change of the ISR that the leader should propose. A proposal is in flight until
the controller has answered: until then the high watermark waits for the members of the old ISR and of the proposed one (the
"maximal" ISR, KIP-497), because either may turn out to be in force.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

UNKNOWN_OFFSET = -1
NO_EPOCH = -1
# Times come from a clock that may begin at zero.
LONG_AGO_MS = -(2**62)


class Standing(Protocol):
    """Something that is used whenever the follower asks for anything."""

    last_used_ms: int
    requests: int  # so far

    @property
    def answering(self) -> bool:
        """Whether one of them waits for its answer."""


@dataclass(slots=True)
class FollowerProgress:
    """How far one follower is, as its fetches tell."""

    log_end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    last_fetch_ms: int = LONG_AGO_MS
    last_caught_up_ms: int = LONG_AGO_MS
    leader_end_at_last_fetch: int = 0
    broker_epoch: int = NO_EPOCH
    # A fetch session in which this follower has everything: with each of its requests it says so again.
    standing: Standing | None = field(default=None, repr=False)
    _fetches: int = 0
    _stood_from: int = 0

    def fetched(
        self, offset: int, log_start: int, leader_end: int, *, broker_epoch: int, now_ms: int
    ) -> None:
        """A fetch from ``offset`` says that everything before it is in the follower's log. Having reached what was the
        leader's end at the previous fetch counts as caught up at that time: under steady traffic a healthy follower
        is always a little behind."""
        if self.standing is not None:
            # It has left that session, and this request may be older than a question that counts on the answer in it.
            self.stand_no_longer(self.standing)
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
        return self.standing is not None and now_ms - self.standing.last_used_ms <= max_lag_ms

    @property
    def fetches(self) -> int:
        """How many requests have said that it follows."""
        standing = self.standing
        return self._fetches + (standing.requests - self._stood_from if standing is not None else 0)

    @property
    def confirmed_at(self) -> int:
        """So many there are when one has come that was certainly sent from now on. One that is on its way may have been sent before; the one after it
        is sent when that is answered."""
        return self.fetches + (1 if self.standing is not None and self.standing.answering else 2)

    def stand(self, standing: Standing) -> None:
        """In the session that was used last: a request of the one before may end after a new one has begun."""
        if self.standing is not None:
            if standing.last_used_ms < self.standing.last_used_ms:
                return
            self.stand_no_longer(self.standing)
        self.standing, self._stood_from = standing, standing.requests

    def stand_no_longer(self, standing: Standing) -> None:
        """There is something new: it had everything when its session was last used. The end of an earlier session says nothing of the one that it has now."""
        if self.standing is standing:
            self._fetches = self.fetches
            self.last_fetch_ms = max(self.last_fetch_ms, standing.last_used_ms)
            self.last_caught_up_ms = max(self.last_caught_up_ms, standing.last_used_ms)
            self.standing = None


@dataclass(frozen=True, slots=True)
class IsrMember:
    """A member of a proposed ISR; the epoch lets the controller refuse one that has restarted since (KIP-903)."""

    node_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class IsrProposal:
    """What the leader asks the controller to make the ISR."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...]

    @property
    def members(self) -> frozenset[int]:
        return frozenset(member.node_id for member in self.isr)


class LeaderReplicas:
    """The replicas of one partition, seen by its leader, within one leader epoch."""

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
        """``eligible`` tells whether a broker with this epoch is alive and not about to stop."""
        self._node_id = node_id
        self._eligible = eligible
        self._proposal: IsrProposal | None = None
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.isr = tuple(isr)
        self.epoch_start = log_end
        self.followers: dict[int, FollowerProgress] = {}
        self.assign(replicas, now_ms=now_ms)

    # ---- what comes in --------------------------------------------------------------------------------------

    def assign(self, replicas: Sequence[int], *, now_ms: int) -> None:
        """Replicas came or went (a reassignment). Those in the ISR get a full lag time to show themselves."""
        for node in [node for node in self.followers if node not in replicas]:
            del self.followers[node]
        for node in replicas:
            if node != self._node_id and node not in self.followers:
                since_ms = now_ms if node in self.isr else LONG_AGO_MS
                self.followers[node] = FollowerProgress(last_caught_up_ms=since_ms)

    def on_fetch(
        self, node: int, offset: int, log_start: int, leader_end: int, *, broker_epoch: int, now_ms: int
    ) -> bool:
        """A follower fetched; False for one that is no replica, and for an earlier life of one."""
        follower = self.followers.get(node)
        if follower is None or broker_epoch < follower.broker_epoch:
            return False
        follower.fetched(offset, log_start, leader_end, broker_epoch=broker_epoch, now_ms=now_ms)
        return True

    def log_start_of(self, node: int) -> int:
        """Where the log of a follower begins, as far as it has told."""
        follower = self.followers.get(node)
        return follower.log_start_offset if follower is not None else UNKNOWN_OFFSET

    def low_watermark(self, leader_start: int, live: Collection[int]) -> int:
        """Where the log begins on all replicas that are there or may lead: nothing before it can be read anywhere."""
        waited_for = self.maximal_isr
        starts = [
            one.log_start_offset for node, one in self.followers.items() if node in live or node in waited_for
        ]
        return min((leader_start, *starts))

    def on_isr(self, isr: Sequence[int], partition_epoch: int) -> bool:
        """The controller's word, from its answer or from the feed, whichever came first; an older one changes nothing."""
        if partition_epoch <= self.partition_epoch:
            return False
        self.isr, self.partition_epoch, self._proposal = tuple(isr), partition_epoch, None
        return True

    def on_refused(self) -> None:
        """The controller has not made the proposal the ISR, and will not."""
        self._proposal = None

    # ---- what follows ---------------------------------------------------------------------------------------

    @property
    def proposal(self) -> IsrProposal | None:
        """What is in flight."""
        return self._proposal

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Every replica that may be in the ISR now."""
        members = frozenset(self.isr)
        return members | self._proposal.members if self._proposal is not None else members

    def confirm(self, awaited: dict[int, int]) -> bool:
        """Whether everybody who could lead in this replica's place has followed it since ``awaited`` was empty: then nobody has led meanwhile. Called again
        with the same ``awaited``, until it is so."""
        confirmed = True
        for node in self.maximal_isr:
            follower = self.followers.get(node)
            if follower is not None:
                confirmed &= follower.fetches >= awaited.setdefault(node, follower.confirmed_at)
        return confirmed

    def high_watermark(
        self, current: int, leader_end: int, *, min_isr: int, max_lag_ms: int, now_ms: int
    ) -> int:
        """Where the high watermark may be: what every member of the maximal ISR has. It also waits for followers that are about
        to join, so that they can; and it stands still while there are too few members (strict minimum, KIP-966)."""
        if len(self.isr) < min(min_isr, len(self.followers) + 1):
            return current
        waited_for = self.maximal_isr
        end = leader_end
        for node, follower in self.followers.items():
            if follower.log_end_offset < end and (
                node in waited_for
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
        """With a follower that has everything committed, has reached this leader's epoch, and has deleted what is deleted here: who
        was away when that was acknowledged would bring it back as leader."""
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

    def propose_shrinking(self, leader_end: int, *, max_lag_ms: int, now_ms: int) -> IsrProposal | None:
        """Without those that have not caught up for too long."""
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
        """NO_EPOCH for the leader itself, whose request carries its epoch, and for a member that has not fetched yet."""
        follower = self.followers.get(node)
        return follower.broker_epoch if follower is not None else NO_EPOCH
