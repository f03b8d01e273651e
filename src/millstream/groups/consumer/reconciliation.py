"""One member's next step towards its target assignment.

First it gives back what is no longer meant for it, and stays in its epoch until it says that it has. Then it moves to the epoch of the
target, with everything of it that nobody else holds any more. Thus a partition never has two readers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from millstream.groups.consumer.member import Current, MemberState, Owned, Partitions

# (topic id, partition) -> is it still with somebody else?
IsUnreleased = Callable[[bytes, int], bool]
# What the member says it owns; None where it did not say.
Claimed = Mapping[bytes, Collection[int]] | None


class Fenced(Exception):
    """The member must give up everything and join again."""


def reconcile(
    current: Current,
    target_epoch: int,
    target: Partitions,
    subscribed: Collection[bytes],
    is_unreleased: IsUnreleased,
    claimed: Claimed,
    *,
    subscription_changed: bool,
) -> Current:
    """The same value where nothing can be done now. ``subscribed`` are the ids of the topics that the member wants: of others it
    keeps nothing, whatever the target says."""
    step = _Step(current, target_epoch, target, subscribed, is_unreleased, claimed)
    if current.state is MemberState.UNKNOWN:
        if claimed is None or any(claimed.values()):
            raise Fenced
        return step.advance(target_epoch)
    if current.state is MemberState.UNREVOKED_PARTITIONS and owns_any(claimed, current.revoking):
        return step.unsubscribe() if subscription_changed else current
    if current.state is MemberState.STABLE and current.epoch == target_epoch:
        return step.unsubscribe() if subscription_changed else current
    return step.advance(current.epoch)


def owns_any(claimed: Claimed, partitions: Owned) -> bool:
    """Whether the member may still read one of them. A member that does not say may."""
    if claimed is None:
        return True
    return any(index in partitions.get(topic_id, ()) for topic_id, rows in claimed.items() for index in rows)


class _Step:
    def __init__(
        self,
        current: Current,
        target_epoch: int,
        target: Partitions,
        subscribed: Collection[bytes],
        is_unreleased: IsUnreleased,
        claimed: Claimed,
    ) -> None:
        self.current = current
        self.target_epoch = target_epoch
        self.target = {topic: rows for topic, rows in target.items() if topic in subscribed}
        self.subscribed = subscribed
        self.is_unreleased = is_unreleased
        self.claimed = claimed

    def unsubscribe(self) -> Current:
        """Without a new target: give back what it does not want any more."""
        current = self.current
        assigned = {topic: rows for topic, rows in current.assigned.items() if topic in self.subscribed}
        if len(assigned) == len(current.assigned):
            return current
        revoking = {topic: dict(rows) for topic, rows in current.revoking.items()}
        for topic, rows in current.assigned.items():
            if topic not in assigned:
                revoking.setdefault(topic, {}).update(rows)
        if owns_any(self.claimed, revoking):
            return current.move(current.epoch, MemberState.UNREVOKED_PARTITIONS, assigned, revoking)
        return replace(current, previous_epoch=current.epoch, assigned=assigned)

    def advance(self, epoch: int) -> Current:
        kept: dict[bytes, dict[int, int]] = {}
        dropped: dict[bytes, dict[int, int]] = {}
        for topic, rows in self.current.assigned.items():
            wanted = self.target.get(topic, frozenset())
            for partition, since in rows.items():
                part = kept if partition in wanted else dropped
                part.setdefault(topic, {})[partition] = since
        if dropped and owns_any(self.claimed, dropped):
            return self.current.move(epoch, MemberState.UNREVOKED_PARTITIONS, kept, dropped)
        waits = self._take_free(kept)
        state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
        return self.current.move(self.target_epoch, state, kept)

    def _take_free(self, kept: dict[bytes, dict[int, int]]) -> bool:
        """Adds what nobody else holds; tells whether something is missing."""
        waits = False
        for topic, wanted in self.target.items():
            for partition in sorted(wanted):
                if partition in kept.get(topic, ()):
                    continue
                if self.is_unreleased(topic, partition):
                    waits = True
                else:
                    kept.setdefault(topic, {})[partition] = self.target_epoch
        return waits
