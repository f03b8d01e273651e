"""Bad input and the exact error code for each, in a table: request, version, code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millstream.core.errors import ErrorCode as E
from millstream.groups.settings import GroupSettings
from millstream.wire.messages.delete_groups import DeleteGroupsRequest
from millstream.wire.messages.offset_delete import OffsetDeleteRequest
from support.groups.world import (
    GROUP,
    SESSION_MS,
    TinyHost,
    commit,
    heartbeat,
    join,
    leave,
    stable_group,
    sync,
    txn_commit,
)

ORDERS_0 = {("orders", 0): 1}


class World:
    """A stable group "readers" of two (limit two), "others" of one member of another protocol type,
    and an empty group.
    """

    def __init__(self) -> None:
        self.host = TinyHost(settings=GroupSettings(group_max_size=2, offset_metadata_max_bytes=8))
        self.leader, self.follower = stable_group(self.host, 2)
        waiter = self.host.send("join", join(group="others", protocol_type="connect"), 3)
        self.host.pass_time(3_000)
        self.other = self.host.answers[waiter].member_id
        self.host.send("sync", sync(self.other, 1, {}, group="others"), 3)
        (gone,) = stable_group(self.host, 1, group="empty")
        self.host.ask("leave", leave((gone, None), group="empty"), 3)

    def rebalancing(self) -> World:
        """The leader has joined again, the follower has not."""
        self.host.send("join", join(self.leader), 3)
        return self

    def completing(self) -> World:
        """Both have joined generation 2, nobody has synced."""
        self.rebalancing()
        self.host.send("join", join(self.follower), 3)
        return self


def code_of(answer: Any) -> int:
    """The one error of an answer, wherever its shape keeps it."""
    for rows in ("topics", "members", "results"):
        for row in getattr(answer, rows, None) or ():
            partitions = getattr(row, "partitions", None)
            return int(partitions[0].error_code if partitions else row.error_code)
    return int(answer.error_code)


Make = Callable[[World], Any]
CASES: dict[str, tuple[str, Make, int, E]] = {
    # ---- JoinGroup
    "join: no group id": ("join", lambda w: join(group=""), 9, E.INVALID_GROUP_ID),
    "join: session too short": (
        "join",
        lambda w: join(session_ms=5_999),
        9,
        E.INVALID_SESSION_TIMEOUT,
    ),
    "join: session too long": (
        "join",
        lambda w: join(session_ms=1_800_001),
        9,
        E.INVALID_SESSION_TIMEOUT,
    ),
    "join: no id yet, v4": ("join", lambda w: join(group="new"), 4, E.MEMBER_ID_REQUIRED),
    "join: unknown member of an unknown group": (
        "join",
        lambda w: join("x", group="new"),
        9,
        E.UNKNOWN_MEMBER_ID,
    ),
    "join: unknown member of an empty group": (
        "join",
        lambda w: join("x", group="empty"),
        9,
        E.UNKNOWN_MEMBER_ID,
    ),
    "join: unknown static member": (
        "join",
        lambda w: join(w.leader, instance="i"),
        9,
        E.UNKNOWN_MEMBER_ID,
    ),
    "join: no protocols": (
        "join",
        lambda w: join(group="new", protocols=()),
        9,
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    "join: no protocol type": (
        "join",
        lambda w: join(group="new", protocol_type=""),
        9,
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    "join: another protocol type": (
        "join",
        lambda w: join(group="others", protocol_type="consumer"),
        9,
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    "join: no protocol in common": (
        "join",
        lambda w: join(w.leader, protocols=(("sticky", b""),)),
        9,
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    "join: the group is full": ("join", lambda w: join(), 9, E.GROUP_MAX_SIZE_REACHED),
    # ---- SyncGroup
    "sync: no group id": ("sync", lambda w: sync("x", 1, group=""), 5, E.INVALID_GROUP_ID),
    "sync: unknown group": ("sync", lambda w: sync("x", 1, group="new"), 5, E.UNKNOWN_MEMBER_ID),
    "sync: empty group": ("sync", lambda w: sync("x", 2, group="empty"), 5, E.UNKNOWN_MEMBER_ID),
    "sync: unknown member": ("sync", lambda w: sync("x", 1), 5, E.UNKNOWN_MEMBER_ID),
    "sync: stale generation": ("sync", lambda w: sync(w.leader, 0), 5, E.ILLEGAL_GENERATION),
    "sync: generation to come": ("sync", lambda w: sync(w.leader, 2), 5, E.ILLEGAL_GENERATION),
    "sync: another protocol type": (
        "sync",
        lambda w: sync(w.leader, 1, protocol_type="connect"),
        5,
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    "sync: another protocol": (
        "sync",
        lambda w: sync(w.leader, 1, protocol_type="consumer", protocol_name="sticky"),
        5,
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    "sync: while others join": (
        "sync",
        lambda w: sync(w.rebalancing().leader, 1),
        5,
        E.REBALANCE_IN_PROGRESS,
    ),
    # ---- Heartbeat
    "heartbeat: no group id": (
        "heartbeat",
        lambda w: heartbeat("x", 1, group=""),
        4,
        E.INVALID_GROUP_ID,
    ),
    "heartbeat: unknown group": (
        "heartbeat",
        lambda w: heartbeat("x", 1, group="new"),
        4,
        E.UNKNOWN_MEMBER_ID,
    ),
    "heartbeat: unknown member": ("heartbeat", lambda w: heartbeat("x", 1), 4, E.UNKNOWN_MEMBER_ID),
    "heartbeat: empty group": (
        "heartbeat",
        lambda w: heartbeat("", 2, group="empty"),
        4,
        E.UNKNOWN_MEMBER_ID,
    ),
    "heartbeat: stale generation": (
        "heartbeat",
        lambda w: heartbeat(w.leader, 0),
        4,
        E.ILLEGAL_GENERATION,
    ),
    "heartbeat: rebalancing": (
        "heartbeat",
        lambda w: heartbeat(w.rebalancing().follower, 1),
        4,
        E.REBALANCE_IN_PROGRESS,
    ),
    "heartbeat: before the sync": (
        "heartbeat",
        lambda w: heartbeat(w.completing().follower, 2),
        4,
        E.NONE,
    ),
    "heartbeat: the generation before": (
        "heartbeat",
        lambda w: heartbeat(w.completing().follower, 1),
        4,
        E.ILLEGAL_GENERATION,
    ),
    "heartbeat: unknown instance": (
        "heartbeat",
        lambda w: heartbeat(w.leader, 1, instance="i"),
        4,
        E.UNKNOWN_MEMBER_ID,
    ),
    # ---- LeaveGroup
    "leave: no group id": ("leave", lambda w: leave(("x", None), group=""), 5, E.INVALID_GROUP_ID),
    "leave: unknown group": (
        "leave",
        lambda w: leave(("x", None), group="new"),
        5,
        E.UNKNOWN_MEMBER_ID,
    ),
    "leave: unknown member": ("leave", lambda w: leave(("x", None)), 5, E.UNKNOWN_MEMBER_ID),
    "leave: unknown instance": ("leave", lambda w: leave(("", "i")), 5, E.UNKNOWN_MEMBER_ID),
    "leave: neither member nor instance": (
        "leave",
        lambda w: leave(("", None)),
        5,
        E.UNKNOWN_MEMBER_ID,
    ),
    # ---- OffsetCommit
    "commit: unknown group, v8": (
        "offset_commit",
        lambda w: commit(ORDERS_0, "x", 1, group="new"),
        8,
        E.ILLEGAL_GENERATION,
    ),
    "commit: unknown group, v9": (
        "offset_commit",
        lambda w: commit(ORDERS_0, "x", 1, group="new"),
        9,
        E.GROUP_ID_NOT_FOUND,
    ),
    "commit: unknown member": (
        "offset_commit",
        lambda w: commit(ORDERS_0, "x", 1),
        8,
        E.UNKNOWN_MEMBER_ID,
    ),
    "commit: no member, group in use": (
        "offset_commit",
        lambda w: commit(ORDERS_0),
        8,
        E.UNKNOWN_MEMBER_ID,
    ),
    "commit: member without generation": (
        "offset_commit",
        lambda w: commit(ORDERS_0, w.leader, -1),
        8,
        E.ILLEGAL_GENERATION,
    ),
    "commit: stale generation": (
        "offset_commit",
        lambda w: commit(ORDERS_0, w.leader, 0),
        8,
        E.ILLEGAL_GENERATION,
    ),
    "commit: member of an empty group": (
        "offset_commit",
        lambda w: commit(ORDERS_0, "x", 2, group="empty"),
        8,
        E.UNKNOWN_MEMBER_ID,
    ),
    "commit: before the sync": (
        "offset_commit",
        lambda w: commit(ORDERS_0, w.completing().leader, 2),
        8,
        E.REBALANCE_IN_PROGRESS,
    ),
    "commit: generation before, before the sync": (
        "offset_commit",
        lambda w: commit(ORDERS_0, w.completing().leader, 1),
        8,
        E.ILLEGAL_GENERATION,
    ),
    "commit: unknown topic": (
        "offset_commit",
        lambda w: commit({("none", 0): 1}, w.leader, 1),
        8,
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    "commit: unknown partition": (
        "offset_commit",
        lambda w: commit({("orders", 4): 1}, w.leader, 1),
        8,
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    "commit: negative partition": (
        "offset_commit",
        lambda w: commit({("orders", -1): 1}, w.leader, 1),
        8,
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    "commit: unknown topic id": (
        "offset_commit",
        lambda w: commit({("none", 0): 1}, w.leader, 1, by_id=True),
        10,
        E.UNKNOWN_TOPIC_ID,
    ),
    "commit: metadata too large": (
        "offset_commit",
        lambda w: commit(ORDERS_0, w.leader, 1, metadata="m" * 9),
        8,
        E.OFFSET_METADATA_TOO_LARGE,
    ),
    "commit: unknown instance": (
        "offset_commit",
        lambda w: commit(ORDERS_0, w.leader, 1, instance="i"),
        8,
        E.UNKNOWN_MEMBER_ID,
    ),
    # ---- TxnOffsetCommit
    "txn: no group id": (
        "txn_offset_commit",
        lambda w: txn_commit(ORDERS_0, group=""),
        3,
        E.INVALID_GROUP_ID,
    ),
    "txn: unknown group, v5": (
        "txn_offset_commit",
        lambda w: txn_commit(ORDERS_0, "x", 1, group="new"),
        5,
        E.ILLEGAL_GENERATION,
    ),
    "txn: unknown member": (
        "txn_offset_commit",
        lambda w: txn_commit(ORDERS_0, "x", 1),
        3,
        E.UNKNOWN_MEMBER_ID,
    ),
    "txn: stale generation": (
        "txn_offset_commit",
        lambda w: txn_commit(ORDERS_0, w.leader, 0),
        3,
        E.ILLEGAL_GENERATION,
    ),
    "txn: no member named, group in use": (
        "txn_offset_commit",
        lambda w: txn_commit(ORDERS_0),
        2,
        E.NONE,
    ),
    "txn: before the sync": (
        "txn_offset_commit",
        lambda w: txn_commit(ORDERS_0, w.completing().leader, 2),
        3,
        E.NONE,
    ),
    "txn: metadata too large": (
        "txn_offset_commit",
        lambda w: txn_commit(ORDERS_0, metadata="m" * 9),
        3,
        E.OFFSET_METADATA_TOO_LARGE,
    ),
    "txn: unknown topic": (
        "txn_offset_commit",
        lambda w: txn_commit({("none", 0): 1}),
        3,
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    # ---- OffsetDelete, DeleteGroups
    "offset delete: no group id": (
        "offset_delete",
        lambda w: OffsetDeleteRequest(),
        0,
        E.INVALID_GROUP_ID,
    ),
    "offset delete: unknown group": (
        "offset_delete",
        lambda w: OffsetDeleteRequest(group_id="new"),
        0,
        E.GROUP_ID_NOT_FOUND,
    ),
    "offset delete: members of another protocol": (
        "offset_delete",
        lambda w: OffsetDeleteRequest(group_id="others"),
        0,
        E.NON_EMPTY_GROUP,
    ),
    "delete: members": (
        "delete",
        lambda w: DeleteGroupsRequest(groups_names=[GROUP]),
        2,
        E.NON_EMPTY_GROUP,
    ),
    "delete: unknown": (
        "delete",
        lambda w: DeleteGroupsRequest(groups_names=["new"]),
        2,
        E.GROUP_ID_NOT_FOUND,
    ),
    "delete: no group id": (
        "delete",
        lambda w: DeleteGroupsRequest(groups_names=[""]),
        2,
        E.GROUP_ID_NOT_FOUND,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_gets_the_exact_code(name: str) -> None:
    decide, make, version, expected = CASES[name]
    world = World()
    request = make(world)
    written = list(world.host.log)
    assert code_of(world.host.ask(decide, request, version)) == expected
    if expected is not E.NONE and expected is not E.MEMBER_ID_REQUIRED:
        assert world.host.log == written


def test_every_request_and_answer_of_the_table_fits_its_version() -> None:
    """What is refused can still be encoded: no null where a version has no room for it."""
    for decide, make, version, _ in CASES.values():
        world = World()
        answer = world.host.ask(decide, make(world), version)
        assert type(answer).decode(bytes(answer.encode(version)), version)


def test_an_offset_below_zero_is_stored_as_it_is() -> None:
    """Kafka checks no offset against the log: a consumer that reads from there learns it then."""
    host = TinyHost()
    answer = host.ask("offset_commit", commit({("orders", 0): -5, ("orders", 1): 2**62}), 8)
    assert [row.error_code for row in answer.topics[0].partitions] == [E.NONE, E.NONE]


def test_a_member_id_is_good_for_a_session_only() -> None:
    host = TinyHost()
    given = host.ask("join", join(), 9).member_id
    host.pass_time(SESSION_MS)
    assert host.ask("join", join(given), 9).error_code == E.UNKNOWN_MEMBER_ID
