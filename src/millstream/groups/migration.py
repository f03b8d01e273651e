"""Groups that change from the classic to the consumer protocol, and back, while their members are live (KIP-848)."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.groups import consumer_checks as checks
from millstream.groups.classic_group import ClassicGroup
from millstream.groups.consumer_draft import Draft, Surroundings
from millstream.groups.consumer_leave import fence
from millstream.groups.consumer_member import ConsumerMember


def upgrade(around: Surroundings, classic: ClassicGroup, now_ms: int) -> Draft:
    raise checks.group_not_found(classic.group_id)


def fence_or_downgrade(draft: Draft, members: Sequence[ConsumerMember]) -> None:
    fence(draft, members)
