"""The high watermark and the ISR that a leader derives from the fetches of its followers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.replication.leader import IsrMember, IsrProposal, LeaderReplicas

LAG_MS = 30_000


def leader(isr=(0, 1, 2), log_end=100, **more) -> LeaderReplicas:
    return LeaderReplicas(
        0,
        leader_epoch=5,
        partition_epoch=7,
        replicas=(0, 1, 2),
        isr=isr,
        log_end=log_end,
        now_ms=0,
        **more,
    )


def fetch(
    replicas: LeaderReplicas, node: int, offset: int, *, end: int = 100, now_ms: int = 0
) -> None:
    assert replicas.on_fetch(node, offset, 0, end, broker_epoch=node * 10, now_ms=now_ms)


def watermark(replicas: LeaderReplicas, *, current=0, end=100, min_isr=1, now_ms=0) -> int:
    return replicas.high_watermark(current, end, min_isr=min_isr, max_lag_ms=LAG_MS, now_ms=now_ms)


def test_high_watermark_is_the_smallest_log_end_of_the_isr():
    replicas = leader()
    fetch(replicas, 1, 90)
    fetch(replicas, 2, 70)
    assert watermark(replicas) == 70


def test_isr_member_without_fetch_holds_the_high_watermark():
    replicas = leader()
    fetch(replicas, 1, 100)
    assert watermark(replicas, current=40) == 40


def test_the_high_watermark_never_goes_back():
    replicas = leader()
    fetch(replicas, 1, 90)
    fetch(replicas, 2, 70)
    assert watermark(replicas, current=80) == 80


def test_fetch_with_an_old_broker_epoch_does_not_count():
    """The log may have lost its tail since: a power failure, or a new disk."""
    replicas = leader(isr=(0, 1))
    assert replicas.on_fetch(1, 80, 0, 100, broker_epoch=10, now_ms=0)
    assert replicas.on_fetch(1, 60, 0, 100, broker_epoch=11, now_ms=0)
    assert not replicas.on_fetch(1, 100, 0, 100, broker_epoch=10, now_ms=0)
    assert watermark(replicas, current=40) == 60


def test_high_watermark_does_not_advance_below_min_isr():
    replicas = leader(isr=(0,))
    assert watermark(replicas, current=40, min_isr=2, now_ms=LAG_MS * 3) == 40


def test_min_isr_above_replica_count_does_not_hold_the_high_watermark():
    replicas = LeaderReplicas(
        0, leader_epoch=0, partition_epoch=0, replicas=(0,), isr=(0,), log_end=0, now_ms=0
    )
    assert watermark(replicas, min_isr=2) == 100


def test_the_high_watermark_waits_for_a_follower_about_to_join():
    replicas = leader(isr=(0, 1))
    fetch(replicas, 1, 100)
    fetch(replicas, 2, 100, end=100, now_ms=LAG_MS)
    assert watermark(replicas, end=120, now_ms=LAG_MS) == 100
    later_ms = LAG_MS * 2 + 1
    fetch(replicas, 1, 120, end=120, now_ms=later_ms)
    assert watermark(replicas, end=120, now_ms=later_ms) == 120  # it has fallen behind


def test_high_watermark_does_not_wait_for_an_ineligible_follower():
    replicas = leader(isr=(0, 1), eligible=lambda node, epoch: node != 2)
    fetch(replicas, 1, 100)
    fetch(replicas, 2, 60)
    assert watermark(replicas) == 100


def test_follower_with_deleted_records_does_not_join_the_isr():
    replicas = leader(isr=(0, 1), log_end=50)
    replicas.on_fetch(2, 100, 10, 100, broker_epoch=1, now_ms=0)
    assert replicas.propose_expansion(2, 60, 20) is None
    replicas.on_fetch(2, 100, 20, 100, broker_epoch=1, now_ms=0)
    assert replicas.propose_expansion(2, 60, 20) is not None


def test_low_watermark_waits_for_live_replicas_and_the_isr():
    replicas = leader(isr=(0, 1))
    replicas.on_fetch(1, 100, 20, 100, broker_epoch=1, now_ms=0)
    replicas.on_fetch(2, 100, 10, 100, broker_epoch=1, now_ms=0)
    assert replicas.low_watermark(30, live=(0, 1, 2)) == 10
    assert replicas.low_watermark(30, live=(0, 1)) == 20
    assert replicas.low_watermark(30, live=(0,)) == 20  # its session is over, and it is in the ISR
    replicas.on_isr((0,), 8)
    assert replicas.low_watermark(30, live=(0,)) == 30


def test_proposed_member_holds_the_high_watermark():
    replicas = leader(isr=(0, 1), log_end=50)
    fetch(replicas, 1, 100)
    fetch(replicas, 2, 60)
    assert replicas.propose_expansion(2, high_watermark=60) is not None
    assert replicas.maximal_isr == {0, 1, 2}
    assert watermark(replicas, now_ms=LAG_MS * 5) == 60


def test_member_with_proposed_removal_holds_the_high_watermark():
    replicas = leader()
    fetch(replicas, 1, 100, now_ms=LAG_MS + 1)
    proposal = replicas.propose_shrinking(100, max_lag_ms=LAG_MS, now_ms=LAG_MS + 1)
    assert proposal == IsrProposal(5, 7, (IsrMember(0, -1), IsrMember(1, 10)))
    assert watermark(replicas, current=30, now_ms=LAG_MS + 1) == 30
    assert replicas.on_isr((0, 1), 8)
    assert watermark(replicas, current=30, now_ms=LAG_MS + 1) == 100


def test_only_one_proposal_is_in_flight():
    replicas = leader(isr=(0,), log_end=50)
    fetch(replicas, 1, 80)
    fetch(replicas, 2, 80)
    assert replicas.propose_expansion(1, high_watermark=60) is not None
    assert replicas.propose_expansion(2, high_watermark=60) is None
    replicas.on_rejected()
    assert replicas.propose_expansion(2, high_watermark=60) == IsrProposal(
        5, 7, (IsrMember(0, -1), IsrMember(2, 20))
    )


@pytest.mark.parametrize(("offset", "joins"), [(59, False), (60, True), (100, True)])
def test_follower_with_all_committed_records_may_join(offset: int, joins: bool):
    replicas = leader(isr=(0, 1), log_end=50)
    fetch(replicas, 2, offset)
    assert (replicas.propose_expansion(2, high_watermark=60) is not None) is joins


def test_follower_before_the_epoch_start_may_not_join():
    replicas = leader(isr=(0, 1), log_end=90)
    fetch(replicas, 2, 70)
    assert replicas.propose_expansion(2, high_watermark=60) is None


def test_broker_in_shutdown_may_not_join():
    replicas = leader(isr=(0, 1), log_end=50, eligible=lambda node, epoch: epoch != 20)
    fetch(replicas, 2, 100)
    assert replicas.propose_expansion(2, high_watermark=60) is None


def test_follower_slightly_behind_under_load_stays_in_the_isr():
    """It never reaches the current log end, but always the log end of its previous fetch."""
    replicas = leader(isr=(0, 1))
    end = 100
    for now_ms in range(0, LAG_MS * 4, 500):
        fetch(replicas, 1, end, end=end + 10, now_ms=now_ms)
        end += 10
    assert replicas.propose_shrinking(end, max_lag_ms=LAG_MS, now_ms=LAG_MS * 4) is None


def test_follower_that_falls_further_behind_leaves_the_isr():
    replicas = leader(isr=(0, 1))
    fetch(replicas, 1, 100)
    for step in range(1, 100):
        fetch(replicas, 1, 100 + step, end=100 + 10 * step, now_ms=500 * step)
    proposal = replicas.propose_shrinking(2000, max_lag_ms=LAG_MS, now_ms=50_000)
    assert proposal is not None and proposal.members == {0}


def test_caught_up_follower_stays_in_the_isr_without_fetches():
    replicas = leader()
    fetch(replicas, 1, 100)
    fetch(replicas, 2, 100)
    assert replicas.propose_shrinking(100, max_lag_ms=LAG_MS, now_ms=LAG_MS * 100) is None


def test_new_leader_grants_its_isr_the_full_lag_time():
    replicas = leader()
    assert replicas.propose_shrinking(100, max_lag_ms=LAG_MS, now_ms=LAG_MS) is None
    assert replicas.propose_shrinking(100, max_lag_ms=LAG_MS, now_ms=LAG_MS + 1) is not None


def test_older_isr_from_the_controller_is_ignored():
    replicas = leader()
    assert replicas.on_isr((0, 1), 8)
    assert not replicas.on_isr((0, 1, 2), 8)
    assert not replicas.on_isr((0, 1, 2), 7)
    assert replicas.isr == (0, 1)


def test_removed_replica_no_longer_counts():
    replicas = leader()
    fetch(replicas, 1, 100)
    replicas.on_isr((0, 1), 8)
    replicas.assign((0, 1), now_ms=0)
    assert watermark(replicas) == 100
    assert not replicas.on_fetch(2, 50, 0, 100, broker_epoch=0, now_ms=0)


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2]), st.integers(0, 200), st.integers(0, 100_000)),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 3),
)
def test_every_member_of_the_maximal_isr_has_all_committed_records(fetches, min_isr):
    """All members of the maximal ISR have the records below the high watermark."""
    replicas = leader(log_end=0)
    committed, end = 0, 0
    for node, offset, now_ms in sorted(fetches, key=lambda fetch: fetch[2]):
        end = max(end, offset)
        replicas.on_fetch(node, offset, 0, end, broker_epoch=0, now_ms=now_ms)
        before = committed
        committed = replicas.high_watermark(
            committed, end, min_isr=min_isr, max_lag_ms=LAG_MS, now_ms=now_ms
        )
        if committed > before:
            ends = [
                replicas.followers[member].log_end_offset for member in replicas.maximal_isr - {0}
            ]
            assert committed <= min([end, *ends])
            assert len(replicas.isr) >= min_isr
        proposal = replicas.propose_shrinking(
            end, max_lag_ms=LAG_MS, now_ms=now_ms
        ) or replicas.propose_expansion(node, committed)
        if proposal is not None:
            replicas.on_isr(
                tuple(member.node_id for member in proposal.isr), replicas.partition_epoch + 1
            )
