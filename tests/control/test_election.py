"""Who leads: first live member of the ISR, unclean only by setting, and an ISR that is never empty."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.control.election import Brokers, elect, elect_preferred, elect_unclean
from millstream.control.znodes import PartitionState

REPLICAS = (1, 2, 3)
LED = PartitionState(leader=1, leader_epoch=4, isr=(1, 2, 3))


def live(*nodes: int, stopping: tuple[int, ...] = ()) -> Brokers:
    return Brokers(frozenset(nodes), frozenset(stopping))


def choose(
    state: PartitionState, brokers: Brokers, *, unclean: bool = False, offline=(), full=()
) -> PartitionState:
    return elect(state, REPLICAS, brokers, unclean=unclean, offline=offline, full=full)


def test_nothing_changes_while_everybody_is_there():
    assert choose(LED, live(1, 2, 3)) == LED


def test_the_next_in_assignment_order_leads():
    assert choose(LED, live(2, 3)) == PartitionState(2, 5, (2, 3))


def test_assignment_order_decides_not_the_order_of_the_isr():
    assert choose(PartitionState(1, 4, (3, 1, 2)), live(2, 3)) == PartitionState(2, 5, (3, 2))


def test_a_lost_follower_leaves_the_isr_within_the_same_epoch():
    assert choose(LED, live(1, 3)) == PartitionState(1, 4, (1, 3))


def test_nobody_out_of_sync_leads():
    state = PartitionState(1, 4, (1,))
    assert choose(state, live(2, 3)) == PartitionState(-1, 5, (1,))


def test_unclean_by_setting_the_first_live_replica_leads_alone():
    state = PartitionState(1, 4, (1,))
    assert choose(state, live(3, 2), unclean=True) == PartitionState(2, 5, (2,))


def test_when_all_are_gone_all_who_had_everything_stay_in_the_isr():
    assert choose(LED, live()) == PartitionState(-1, 5, (1, 2, 3))


def test_the_first_of_them_to_return_leads():
    state = PartitionState(-1, 5, (1, 2, 3))
    assert choose(state, live(3)) == PartitionState(3, 6, (3,))


def test_without_a_leader_nothing_changes_until_one_of_the_isr_returns():
    state = PartitionState(-1, 5, (1,))
    assert choose(state, live(2, 3)) == state
    assert choose(state, live(1, 2, 3)) == PartitionState(1, 6, (1,))


def test_a_stopping_leader_hands_over_and_leaves():
    assert choose(LED, live(1, 2, 3, stopping=(1,))) == PartitionState(2, 5, (2, 3))


def test_a_stopping_follower_leaves_the_isr():
    assert choose(LED, live(1, 2, 3, stopping=(2,))) == PartitionState(1, 4, (1, 3))


def test_a_stopping_leader_without_a_successor_leads_to_the_last_moment():
    state = PartitionState(1, 4, (1,))
    assert choose(state, live(1, 2, 3, stopping=(1,))) == state
    assert choose(state, live(2, 3)) == PartitionState(-1, 5, (1,))


def test_a_failed_directory_takes_the_leadership_though_the_broker_lives():
    assert choose(LED, live(1, 2, 3), offline=(1,)) == PartitionState(2, 5, (2, 3))


def test_the_last_replica_in_sync_with_a_failed_directory_leaves_nobody():
    state = PartitionState(1, 4, (1,))
    assert choose(state, live(1, 2, 3), offline=(1,)) == PartitionState(-1, 5, (1,))


def test_the_preferred_leader_leads_when_it_is_in_sync():
    state = PartitionState(2, 5, (2, 3, 1))
    assert elect_preferred(state, REPLICAS, live(1, 2, 3)) == PartitionState(1, 6, (2, 3, 1))
    assert elect_preferred(state, REPLICAS, live(2, 3)) == state
    assert elect_preferred(PartitionState(2, 5, (2, 3)), REPLICAS, live(1, 2, 3)) == PartitionState(
        2, 5, (2, 3)
    )
    assert elect_preferred(LED, REPLICAS, live(1, 2, 3)) == LED


def test_an_operators_unclean_election_leaves_a_led_partition_alone():
    assert elect_unclean(LED, REPLICAS, live(1, 2, 3)) == LED
    assert elect_unclean(PartitionState(-1, 5, (1,)), REPLICAS, live(3)) == PartitionState(3, 6, (3,))
    assert elect_unclean(PartitionState(-1, 5, (1,)), REPLICAS, live(1, 3)) == PartitionState(1, 6, (1,))


nodes = st.frozensets(st.sampled_from(REPLICAS))


@given(st.lists(st.tuples(nodes, nodes, nodes), max_size=12))
def test_through_any_history_only_the_isr_leads_and_never_is_empty(history):
    state = LED
    for alive, stopping, failed in history:
        brokers = Brokers(alive, stopping)
        after = choose(state, brokers, offline=failed)
        assert after.isr and set(after.isr) <= set(state.isr)  # only a leader's proposal lets somebody in
        assert after.leader == -1 or (after.leader in after.isr and after.leader in alive - failed)
        assert (after.leader_epoch > state.leader_epoch) == (after.leader != state.leader)
        assert choose(after, brokers, offline=failed) == after  # settled
        state = after


def test_leader_without_room_hands_over_and_leaves_the_isr():
    assert choose(LED, live(1, 2, 3), full={1}) == PartitionState(2, 5, (2, 3))
    assert choose(LED, live(1, 2, 3), full={1, 2}) == PartitionState(3, 5, (3,))


def test_follower_without_room_leaves_the_isr():
    assert choose(LED, live(1, 2, 3), full={2}) == PartitionState(1, 4, (1, 3))


def test_nothing_changes_while_no_member_has_room():
    assert choose(LED, live(1, 2, 3), full={1, 2, 3}) == LED
    alone = PartitionState(1, 4, (1,))
    assert choose(alone, live(1, 2, 3), full={1}) == alone, "others have room but are not in sync"


def test_replica_without_room_leads_when_no_other_member_is_left():
    assert choose(LED, live(2, 3), full={2, 3}) == PartitionState(2, 5, (2, 3))
    assert choose(LED, live(2), full={2}) == PartitionState(2, 5, (2,))


@given(
    st.sets(st.sampled_from(REPLICAS), min_size=1),
    st.sets(st.sampled_from(REPLICAS)),
    st.sets(st.sampled_from(REPLICAS)),
    st.sets(st.sampled_from(REPLICAS)),
)
def test_leader_has_room_whenever_a_live_member_has(isr, alive, offline, full):
    state = PartitionState(min(isr), 4, tuple(sorted(isr)))
    after = choose(state, live(*alive), offline=offline, full=full)
    able = (isr & alive) - offline
    assert after.isr and set(after.isr) <= isr
    assert after.leader in (able - full or able or {-1})
    if able - full:
        assert set(after.isr) == able - full
