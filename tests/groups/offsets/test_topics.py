"""Offsets of topics that are deleted or created again."""

from __future__ import annotations

import pytest

from millstream.core.decisions import Arm, Decision
from millstream.groups.effects import SetTopics, Sweep
from millstream.groups.offsets import expiry
from millstream.groups.records import offset_tombstone
from millstream.groups.topics_view import TopicInfo, TopicsView
from support.groups.offsets import CHECK_MS, NOW, ORDERS_0, offsets_of
from support.groups.world import (
    GROUP,
    ORDERS_ID,
    TOPICS,
    TRIPS_ID,
    TinyHost,
    commit,
    context,
    new_shard,
    replay,
    txn_commit,
)

WITHOUT_ORDERS = TopicsView(
    {"trips": TopicInfo(TRIPS_ID, 2)}, version=2, deleted=frozenset({ORDERS_ID})
)


def test_offsets_of_a_deleted_topic_go_with_it() -> None:
    shard = new_shard()
    for record in shard.decide_offset_commit(
        commit({ORDERS_0: 1, ("orders", 1): 2, ("trips", 0): 3}), context(8), "w", now_ms=NOW
    ).records:
        shard.apply(record)
    sweep = Sweep(deleted=((GROUP, "orders", ORDERS_ID),))
    decision = shard.on_topics_changed(WITHOUT_ORDERS, now_ms=NOW)
    assert decision == Decision(
        effects=(SetTopics(WITHOUT_ORDERS), sweep, Arm(expiry.SWEEP_TIMER, NOW))
    )
    shard.perform(sweep)
    assert shard.decide_timeout(expiry.SWEEP_TIMER, now_ms=NOW) == Decision(
        (offset_tombstone(GROUP, "orders", 0), offset_tombstone(GROUP, "orders", 1)), (Sweep(),)
    )


def test_the_offsets_of_a_topic_that_nobody_has_deleted_stay() -> None:
    """It is missing in the metadata without a note, as its logs are left alone
    for: it may be back.
    """
    host = TinyHost()
    host.ask("offset_commit", commit({ORDERS_0: 5}), 8)
    host.change_topics(TopicsView({"trips": TopicInfo(TRIPS_ID, 2)}, version=2))
    host.pass_time(CHECK_MS)
    host.change_topics(TopicsView(TOPICS.topics, version=3))
    assert offsets_of(host, ORDERS_0) == [5]


def test_offsets_of_an_earlier_topic_are_not_handed_out_by_who_never_saw_it() -> None:
    """The coordinator has changed since, and nobody has cleaned up."""
    host = TinyHost()
    host.ask("offset_commit", commit({ORDERS_0: 5}), 8)
    host.topics = TopicsView({"orders": TopicInfo(b"n" * 16, 4)}, version=1)
    host.crash()
    assert offsets_of(host, ORDERS_0) == [-1]


def test_offsets_of_a_topic_created_anew_are_not_those_of_the_old_one() -> None:
    host = TinyHost()
    host.ask("offset_commit", commit({ORDERS_0: 5}), 8)
    renewed = TopicsView({**TOPICS.topics, "orders": TopicInfo(b"n" * 16, 4)}, version=2)
    host.change_topics(renewed)
    host.pass_time(0)
    assert offsets_of(host, ORDERS_0) == [-1]
    assert host.shard.durable == ({}, ({}, {}), {})
    host.ask("offset_commit", commit({ORDERS_0: 1}), 8)
    host.change_topics(TopicsView({**renewed.topics, "more": TopicInfo(b"m" * 16, 1)}, version=3))
    assert offsets_of(host, ORDERS_0) == [1]
    assert replay(host.log, new_shard()).durable == host.shard.durable


def test_pending_offsets_of_a_deleted_topic_go_too() -> None:
    host = TinyHost()
    host.ask("txn_offset_commit", txn_commit({ORDERS_0: 9}), 3)
    host.change_topics(WITHOUT_ORDERS)
    host.pass_time(0)
    host.marker(7, commit=True)
    assert host.shard.durable == ({}, ({}, {}), {})


def test_a_deleted_topic_of_many_groups_takes_many_small_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expiry, "_MAX_BYTES", 300)
    host = TinyHost()
    for number in range(20):
        offsets = {("orders", partition): 1 for partition in range(4)}
        host.ask("offset_commit", commit(offsets, group=f"group-{number}"), 8)
    written = len(host.log)
    host.change_topics(WITHOUT_ORDERS)
    host.pass_time(0)
    assert host.shard.state.ids() == []
    assert max(len(entry.rows) for entry in host.log[written:]) <= 5
