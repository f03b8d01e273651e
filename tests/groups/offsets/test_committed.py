"""Offsets in transactions: pending until the transaction ends, then committed or forgotten."""

from __future__ import annotations

from millstream.core.decisions import Decision, Reply, TransactionalAppend
from millstream.core.errors import ErrorCode
from millstream.wire.messages.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from support.groups.offsets import NOW, ORDERS_0, delete_offsets, offset_record, offsets_of
from support.groups.world import (
    GROUP,
    ORDERS_ID,
    TinyHost,
    commit,
    context,
    new_shard,
    replay,
    txn_commit,
)


def test_offsets_of_a_transaction_are_appended_as_part_of_it() -> None:
    decision = new_shard().decide_txn_offset_commit(
        txn_commit({ORDERS_0: 9}, producer_id=7, producer_epoch=3), context(3), "w", now_ms=NOW
    )
    told = TxnOffsetCommitResponseTopic(
        name="orders",
        topic_id=ORDERS_ID,
        partitions=[TxnOffsetCommitResponsePartition(partition_index=0)],
    )
    assert decision == Decision(
        (offset_record(0, 9),),
        (Reply("w", TxnOffsetCommitResponse(topics=[told])),),
        transactional=TransactionalAppend(7, 3),
    )


def test_they_count_when_the_transaction_commits_and_not_before() -> None:
    host = TinyHost()
    host.ask("offset_commit", commit({ORDERS_0: 1}), 8)
    host.ask("txn_offset_commit", txn_commit({ORDERS_0: 9}), 3)
    assert offsets_of(host, ORDERS_0) == [1]
    assert offsets_of(host, ORDERS_0, stable=True) == [-ErrorCode.UNSTABLE_OFFSET_COMMIT]
    host.marker(7, commit=True)
    assert offsets_of(host, ORDERS_0, stable=True) == [9]
    assert replay(host.log, new_shard()).durable == host.shard.durable


def test_they_are_forgotten_when_it_aborts() -> None:
    host = TinyHost()
    host.ask("txn_offset_commit", txn_commit({ORDERS_0: 9}), 3)
    assert offsets_of(host, ORDERS_0, stable=True) == [-ErrorCode.UNSTABLE_OFFSET_COMMIT]
    host.marker(7, commit=False)
    assert offsets_of(host, ORDERS_0, stable=True) == [-1]
    assert not host.shard.state.offsets.has(GROUP)


def test_of_a_plain_and_a_transactional_commit_the_later_record_wins() -> None:
    host = TinyHost()
    host.ask("txn_offset_commit", txn_commit({ORDERS_0: 9}), 3)
    host.ask("offset_commit", commit({ORDERS_0: 12}), 8)
    host.marker(7, commit=True)
    assert offsets_of(host, ORDERS_0) == [12]


def test_a_pending_offset_is_unstable_until_every_transaction_on_it_has_ended() -> None:
    host = TinyHost()
    for producer_id in (7, 8):
        host.ask(
            "txn_offset_commit", txn_commit({ORDERS_0: producer_id}, producer_id=producer_id), 3
        )
    host.marker(8, commit=True)
    assert offsets_of(host, ORDERS_0, stable=True) == [-ErrorCode.UNSTABLE_OFFSET_COMMIT]
    host.marker(7, commit=True)
    assert offsets_of(host, ORDERS_0, stable=True) == [8]
    host.crash()
    assert offsets_of(host, ORDERS_0, stable=True) == [8]


def test_a_pending_offset_survives_a_new_coordinator() -> None:
    host = TinyHost()
    host.ask("txn_offset_commit", txn_commit({ORDERS_0: 9}), 3)
    host.crash()
    assert offsets_of(host, ORDERS_0, stable=True) == [-ErrorCode.UNSTABLE_OFFSET_COMMIT]
    host.marker(7, commit=True)
    assert offsets_of(host, ORDERS_0) == [9]


def test_a_tombstone_takes_pending_offsets_with_it() -> None:
    host = TinyHost()
    host.ask("txn_offset_commit", txn_commit({ORDERS_0: 9}), 3)
    assert delete_offsets(host, ("orders", 0)) == [ErrorCode.NONE]
    host.marker(7, commit=True)
    assert offsets_of(host, ORDERS_0) == [-1]
    assert host.shard.durable == ({}, ({}, {}), {})
