"""A decision about a classic group in progress: a copy of the group, with its records and effects.

This module has the steps of a rebalance. A rebalance starts (``prepare_rebalance``) when a member
joins, leaves or changes. It waits until all members have joined or the rebalance timeout has
passed. Then the next generation starts (``complete_join``) and waits for the leader's assignment.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from millstream.core.decisions import (
    Arm,
    CoordinatorRecord,
    Decision,
    Disarm,
    Reply,
    Response,
    TimerKey,
    Waiter,
)
from millstream.core.errors import ErrorCode
from millstream.groups.classic import answers
from millstream.groups.classic.group import ClassicGroup, InitialDelay
from millstream.groups.classic.member import Member, session_timer
from millstream.groups.classic.states import State
from millstream.groups.effects import SetClassicGroup
from millstream.groups.settings import GroupSettings
from millstream.wire.messages.join_group import JoinGroupResponse

# A new member does not know its id, so it cannot send heartbeats while its join is delayed. If its
# client has given up, only this timeout removes the member. A client that still waits gets an error
# and joins again.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000


def join_timer(group_id: str) -> TimerKey:
    """The timer for the end of the initial delay or of the rebalance timeout."""
    return ("join", group_id)


def sync_timer(group_id: str) -> TimerKey:
    """The timer for the end of the time to sync."""
    return ("sync", group_id)


class Draft:
    """A copy of a classic group that a decision changes."""

    def __init__(self, group: ClassicGroup, settings: GroupSettings, now_ms: int) -> None:
        self.group = group.copy()
        self.settings = settings
        self.now_ms = now_ms
        self.records: list[CoordinatorRecord] = []
        self.effects: list[Any] = []

    def decision(self) -> Decision:
        group = self.group
        return Decision(
            tuple(self.records), (SetClassicGroup(group.group_id, group), *self.effects)
        )

    # ---- replies and timers ----

    def reply(self, waiter: Waiter[Response] | None, response: Response) -> None:
        if waiter is not None:
            self.effects.append(Reply(waiter, response))

    def arm_session(self, member: Member, timeout_ms: int | None = None) -> None:
        timeout = member.session_timeout_ms if timeout_ms is None else timeout_ms
        self.effects.append(
            Arm(session_timer(self.group.group_id, member.member_id), self.now_ms + timeout)
        )

    def disarm_session(self, member_id: str) -> None:
        self.effects.append(Disarm(session_timer(self.group.group_id, member_id)))

    def _arm_join(self, delay_ms: int) -> None:
        self.effects.append(Arm(join_timer(self.group.group_id), self.now_ms + delay_ms))

    # ---- members ----

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a new member whose join is delayed."""
        group = self.group
        if not group.members:
            group.protocol_type = protocol_type
        if group.state is State.PREPARING_REBALANCE and group.previous is State.EMPTY:
            group.has_new_members = True
        group.pending -= {member.member_id}
        group.put(member)
        self.arm_session(member, NEW_MEMBER_JOIN_TIMEOUT_MS)

    def delay_join(self, member: Member, waiter: Waiter[JoinGroupResponse]) -> None:
        """Keep the join until the rebalance completes.

        Only the last join of a member gets the result. An earlier one that is still delayed is
        answered with an error.
        """
        self.reply(
            member.join, answers.join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
        )
        self.group.put(replace(member, join=waiter))

    def drop(self, member_id: str) -> None:
        """Remove the member. If it waits for a response, it gets an error and joins again."""
        member = self.group.members.get(member_id)
        if member is not None:
            self.reply(member.join, answers.join_error(ErrorCode.UNKNOWN_MEMBER_ID))
            self.reply(member.sync, answers.sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
        self.disarm_session(member_id)
        self.group.remove(member_id)

    # ---- rebalance ----

    def rebalance(self) -> None:
        """Start a rebalance because the members have changed, or continue the current one."""
        if self.group.can_become(State.PREPARING_REBALANCE):
            self.prepare_rebalance()
        else:
            self.maybe_complete_join()

    def prepare_rebalance(self) -> None:
        group = self.group
        if group.state is State.COMPLETING_REBALANCE:
            self._cancel_syncs()
        self._stop_waiting_for_syncs()
        first = group.is_empty
        group.transition_to(State.PREPARING_REBALANCE, self.now_ms)
        if first:
            self._start_initial_delay()
        elif group.all_joined:
            self.complete_join()
        else:
            self._arm_join(group.rebalance_timeout_ms)

    def _cancel_syncs(self) -> None:
        """Answer the delayed syncs: no assignment will come, so their members must join again."""
        for member in list(self.group.members.values()):
            self.group.put(replace(member, assignment=b"", sync=None))
            if member.sync is not None:
                self.reply(member.sync, answers.sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
                self.arm_session(member)

    def _stop_waiting_for_syncs(self) -> None:
        if self.group.unsynced:
            self.group.unsynced = frozenset()
            self.effects.append(Disarm(sync_timer(self.group.group_id)))

    def _start_initial_delay(self) -> None:
        """Delay the first rebalance, because more members are likely to join.

        A rebalance for each of them would be wasted work.
        """
        delay_ms = self.settings.group_initial_rebalance_delay_ms
        self.group.has_new_members = False
        self.group.initial = InitialDelay(
            delay_ms, max(self.group.rebalance_timeout_ms - delay_ms, 0)
        )
        self._arm_join(delay_ms)

    def end_initial_delay(self, initial: InitialDelay) -> None:
        """Extend the initial delay if members joined during it, up to the rebalance timeout."""
        group = self.group
        if not group.has_new_members or not initial.remaining_ms:
            self.complete_join()
            return
        group.has_new_members = False
        delay_ms = min(self.settings.group_initial_rebalance_delay_ms, initial.remaining_ms)
        group.initial = InitialDelay(delay_ms, max(initial.remaining_ms - initial.delay_ms, 0))
        self._arm_join(delay_ms)

    def maybe_complete_join(self) -> None:
        group = self.group
        waiting = group.state is State.PREPARING_REBALANCE and group.previous is not State.EMPTY
        if waiting and group.all_joined:
            self.complete_join()

    def complete_join(self) -> None:
        """Complete the join phase of a rebalance.

        Members that have not joined are removed, except static members: they stay until their
        session expires.
        """
        group = self.group
        for member in list(group.members.values()):
            if member.join is None and member.instance_id is None:
                self.drop(member.member_id)
        if group.members and not self._elect_leader():
            self._arm_join(group.rebalance_timeout_ms)
            return
        self.effects.append(Disarm(join_timer(group.group_id)))
        group.initial = None
        group.generation += 1
        if group.members:
            self._start_generation()
        else:
            self._become_empty()

    def _elect_leader(self) -> bool:
        """Elect the first member that has joined, unless the leader itself has joined.

        Return False if no member has joined.
        """
        group = self.group
        leader = group.members.get(group.leader or "")
        if leader is not None and leader.join is not None:
            return True
        joined = next(
            (member for member in group.members.values() if member.join is not None), None
        )
        if joined is None:
            return False
        group.leader = joined.member_id
        return True

    def _start_generation(self) -> None:
        group = self.group
        group.protocol_name = group.select_protocol()
        group.subscribed = group.compute_subscribed()
        group.transition_to(State.COMPLETING_REBALANCE, self.now_ms)
        group.unsynced = frozenset(group.members)
        for member in list(group.members.values()):
            is_leader = member.member_id == group.leader
            self.reply(
                member.join, answers.joined(group, member.member_id, include_members=is_leader)
            )
            self.arm_session(member)
            group.put(replace(member, join=None, is_new=False))
        self.effects.append(
            Arm(sync_timer(group.group_id), self.now_ms + group.rebalance_timeout_ms)
        )

    def _become_empty(self) -> None:
        group = self.group
        group.protocol_name = None
        group.leader = None
        group.subscribed = group.compute_subscribed()
        group.transition_to(State.EMPTY, self.now_ms)
        self.records.append(group.record())

    # ---- sync ----

    def received_sync(self, member_id: str) -> None:
        group = self.group
        if member_id not in group.unsynced:
            return
        group.unsynced -= {member_id}
        if not group.unsynced:
            self.effects.append(Disarm(sync_timer(group.group_id)))

    def assign(self, assignments: dict[str, bytes]) -> None:
        """Store the leader's assignment. The responses are sent once its record is durable."""
        group = self.group
        group.transition_to(State.STABLE, self.now_ms)
        for member in list(group.members.values()):
            updated = replace(member, assignment=assignments.get(member.member_id, b""), sync=None)
            group.put(updated)
            if member.sync is not None:
                self.reply(member.sync, answers.synced(group, updated))
                self.arm_session(member)
        self.records.append(group.record())

    def reject_syncs(self, error: ErrorCode) -> None:
        """Answer the delayed syncs with an error and start over.

        Called if the assignment cannot be written.
        """
        for member in list(self.group.members.values()):
            if member.sync is not None:
                self.reply(member.sync, answers.sync_error(error))
                self.arm_session(member)
                self.group.put(replace(member, sync=None))
        self.prepare_rebalance()
