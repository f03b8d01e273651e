"""Offsets expire after the retention time, in small steps."""

from __future__ import annotations

import pytest

from millstream.groups.offsets import expiry
from millstream.groups.settings import GroupSettings
from support.groups.offsets import CHECK_MS, ORDERS_0, offsets_of
from support.groups.world import (
    GROUP,
    TinyHost,
    commit,
    join,
    leave,
    new_shard,
    replay,
    stable_group,
    subscription,
    sync,
    txn_commit,
)

MINUTE = 60_000

RETENTION_MS = GroupSettings().offsets_retention_ms


def test_offsets_of_a_group_expire_after_it_has_been_empty_for_the_retention_time() -> None:
    host = TinyHost()
    (only,) = stable_group(host, 1)
    host.ask("offset_commit", commit({ORDERS_0: 1}, only, 1), 8)
    host.timers = {key: at for key, at in host.timers.items() if key[0] != "session"}  # type: ignore[index]
    host.pass_time(RETENTION_MS + CHECK_MS)
    assert offsets_of(host, ORDERS_0) == [1]
    host.ask("leave", leave((only, None)), 3)
    host.pass_time(RETENTION_MS - CHECK_MS)
    assert offsets_of(host, ORDERS_0) == [1]
    host.pass_time(2 * CHECK_MS)
    assert offsets_of(host, ORDERS_0) == [-1]
    assert host.shard.state.classic == {}
    assert host.shard.durable == ({}, ({}, {}), {})
    host.crash()
    assert host.shard.durable == ({}, ({}, {}), {})


def test_offsets_of_a_simple_group_expire_one_by_one() -> None:
    host = TinyHost()
    host.ask("offset_commit", commit({ORDERS_0: 1}), 8)
    host.pass_time(RETENTION_MS // 2)
    host.ask("offset_commit", commit({("orders", 1): 2}), 8)
    host.pass_time(RETENTION_MS // 2 + CHECK_MS)
    assert offsets_of(host, ORDERS_0, ("orders", 1)) == [-1, 2]
    host.pass_time(RETENTION_MS // 2)
    assert offsets_of(host, ORDERS_0, ("orders", 1)) == [-1, -1]
    assert not host.shard.state.ids()


def test_topics_a_stable_group_does_not_read_any_more_expire() -> None:
    host = TinyHost()
    waiter = host.send(
        "join", join(session_ms=1_800_000, protocols=(("range", subscription("trips")),)), 3
    )
    host.pass_time(3_000)
    only = host.answers[waiter].member_id
    host.ask("sync", sync(only, 1, {}), 3)
    host.ask("offset_commit", commit({ORDERS_0: 1, ("trips", 0): 2}, only, 1), 8)
    host.timers.pop(("session", GROUP, only))
    host.pass_time(RETENTION_MS + CHECK_MS)
    assert offsets_of(host, ORDERS_0, ("trips", 0)) == [-1, 2]


def test_an_offset_with_its_own_retention_expires_by_it() -> None:
    host = TinyHost()
    host.ask("offset_commit", commit({ORDERS_0: 1}, retention_ms=MINUTE), 4)
    host.pass_time(CHECK_MS)
    assert offsets_of(host, ORDERS_0) == [-1]


def test_an_offset_does_not_expire_under_an_open_transaction() -> None:
    host = TinyHost()
    host.ask("offset_commit", commit({ORDERS_0: 1}), 8)
    host.ask("txn_offset_commit", txn_commit({ORDERS_0: 2}), 3)
    host.pass_time(RETENTION_MS + CHECK_MS)
    assert offsets_of(host, ORDERS_0) == [1]
    host.marker(7, commit=False)
    host.pass_time(CHECK_MS)
    assert offsets_of(host, ORDERS_0) == [-1]


def test_an_empty_group_without_offsets_goes_with_the_next_round_unless_somebody_is_about_to_join() -> (
    None
):
    host = TinyHost()
    host.pass_time(CHECK_MS - 1_000)
    pending = host.ask("join", join(), 9).member_id
    host.pass_time(1_000)
    assert host.shard.state.classic[GROUP].pending == {pending}
    host.pass_time(CHECK_MS)
    assert host.shard.state.ids() == []


def test_a_round_over_many_offsets_takes_many_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "_MAX_CHECKED", 10)
    monkeypatch.setattr(expiry, "_MAX_BYTES", 300)
    host = TinyHost()
    for number in range(20):
        offsets = {("orders", partition): 1 for partition in range(4)}
        host.ask("offset_commit", commit(offsets, group=f"group-{number}"), 8)
    written = len(host.log)
    host.pass_time(RETENTION_MS + CHECK_MS)
    assert host.shard.state.ids() == []
    steps = host.log[written:]
    assert sum(len(entry.rows) for entry in steps) == 80
    assert max(len(entry.rows) for entry in steps) <= 5
    assert replay(host.log, new_shard()).durable == host.shard.durable
