"""The next step of a member towards its target assignment.

First the member revokes partitions that are not in its target, and stays in its epoch until it
confirms that. Then it advances to the target epoch, with all partitions of its target that no other
member holds. So a partition never has two readers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from millstream.groups.consumer.member import Current, MemberState, Owned, Partitions

# (topic id, partition) -> whether another member still holds it
IsUnreleased = Callable[[bytes, int], bool]
# Partitions that the member reports to own; None if the request does not list them.
Claimed = Mapping[bytes, Collection[int]] | None


class Fenced(Exception):
    """The member must give up all partitions and join again."""


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
    """Return the next assignment of a member, or the same value if no step is possible now.

    ``subscribed`` are the ids of its topics. It keeps no partitions of other topics, whatever its
    target is.
    """
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
    """Return whether the member may still read one of the partitions.

    It may if its request does not list the partitions it owns.
    """
    if claimed is None:
        return True
    return any(
        index in partitions.get(topic_id, ())
        for topic_id, rows in claimed.items()
        for index in rows
    )


class _Step:
    """The inputs of a step."""

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
        """Revoke partitions of topics that the member no longer subscribes to."""
        current = self.current
        assigned = {
            topic: rows for topic, rows in current.assigned.items() if topic in self.subscribed
        }
        if len(assigned) == len(current.assigned):
            return current
        revoking = {topic: dict(rows) for topic, rows in current.revoking.items()}
        for topic, rows in current.assigned.items():
            if topic not in assigned:
                revoking.setdefault(topic, {}).update(rows)
        if owns_any(self.claimed, revoking):
            return current.advanced(
                current.epoch, MemberState.UNREVOKED_PARTITIONS, assigned, revoking
            )
        return replace(current, previous_epoch=current.epoch, assigned=assigned)

    def advance(self, epoch: int) -> Current:
        kept: dict[bytes, dict[int, int]] = {}
        dropped: dict[bytes, dict[int, int]] = {}
        for topic, rows in self.current.assigned.items():
            target = self.target.get(topic, frozenset())
            for partition, since in rows.items():
                part = kept if partition in target else dropped
                part.setdefault(topic, {})[partition] = since
        if dropped and owns_any(self.claimed, dropped):
            return self.current.advanced(epoch, MemberState.UNREVOKED_PARTITIONS, kept, dropped)
        is_missing = self._take_free(kept)
        state = MemberState.UNRELEASED_PARTITIONS if is_missing else MemberState.STABLE
        return self.current.advanced(self.target_epoch, state, kept)

    def _take_free(self, kept: dict[bytes, dict[int, int]]) -> bool:
        """Add the partitions that no other member holds; return whether some are missing."""
        is_missing = False
        for topic, target in self.target.items():
            for partition in sorted(target):
                if partition in kept.get(topic, ()):
                    continue
                if self.is_unreleased(topic, partition):
                    is_missing = True
                else:
                    kept.setdefault(topic, {})[partition] = self.target_epoch
        return is_missing
