"""Leader election: clean and unclean, shutdown, failed and full directories."""

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


def test_state_stays_while_all_brokers_are_live():
    assert choose(LED, live(1, 2, 3)) == LED


def test_next_replica_in_assignment_order_leads():
    assert choose(LED, live(2, 3)) == PartitionState(2, 5, (2, 3))


def test_assignment_order_decides_before_isr_order():
    assert choose(PartitionState(1, 4, (3, 1, 2)), live(2, 3)) == PartitionState(2, 5, (3, 2))


def test_lost_follower_leaves_the_isr_in_the_same_epoch():
    assert choose(LED, live(1, 3)) == PartitionState(1, 4, (1, 3))


def test_replica_out_of_sync_does_not_lead():
    state = PartitionState(1, 4, (1,))
    assert choose(state, live(2, 3)) == PartitionState(-1, 5, (1,))


def test_unclean_election_takes_the_first_live_replica():
    state = PartitionState(1, 4, (1,))
    assert choose(state, live(3, 2), unclean=True) == PartitionState(2, 5, (2,))


def test_isr_stays_when_all_its_members_are_down():
    assert choose(LED, live()) == PartitionState(-1, 5, (1, 2, 3))


def test_first_isr_member_to_return_leads():
    state = PartitionState(-1, 5, (1, 2, 3))
    assert choose(state, live(3)) == PartitionState(3, 6, (3,))


def test_partition_has_no_leader_until_an_isr_member_returns():
    state = PartitionState(-1, 5, (1,))
    assert choose(state, live(2, 3)) == state
    assert choose(state, live(1, 2, 3)) == PartitionState(1, 6, (1,))


def test_stopping_leader_hands_over_and_leaves():
    assert choose(LED, live(1, 2, 3, stopping=(1,))) == PartitionState(2, 5, (2, 3))


def test_stopping_follower_leaves_the_isr():
    assert choose(LED, live(1, 2, 3, stopping=(2,))) == PartitionState(1, 4, (1, 3))


def test_stopping_leader_without_a_successor_keeps_leading():
    state = PartitionState(1, 4, (1,))
    assert choose(state, live(1, 2, 3, stopping=(1,))) == state
    assert choose(state, live(2, 3)) == PartitionState(-1, 5, (1,))


def test_replica_in_a_failed_directory_loses_leadership():
    assert choose(LED, live(1, 2, 3), offline=(1,)) == PartitionState(2, 5, (2, 3))


def test_failed_directory_of_the_last_isr_member_leaves_no_leader():
    state = PartitionState(1, 4, (1,))
    assert choose(state, live(1, 2, 3), offline=(1,)) == PartitionState(-1, 5, (1,))


def test_preferred_leader_leads_if_it_is_in_sync():
    state = PartitionState(2, 5, (2, 3, 1))
    assert elect_preferred(state, REPLICAS, live(1, 2, 3)) == PartitionState(1, 6, (2, 3, 1))
    assert elect_preferred(state, REPLICAS, live(2, 3)) == state
    assert elect_preferred(PartitionState(2, 5, (2, 3)), REPLICAS, live(1, 2, 3)) == PartitionState(
        2, 5, (2, 3)
    )
    assert elect_preferred(LED, REPLICAS, live(1, 2, 3)) == LED


def test_requested_unclean_election_needs_a_partition_without_leader():
    assert elect_unclean(LED, REPLICAS, live(1, 2, 3)) == LED
    assert elect_unclean(PartitionState(-1, 5, (1,)), REPLICAS, live(3)) == PartitionState(
        3, 6, (3,)
    )
    assert elect_unclean(PartitionState(-1, 5, (1,)), REPLICAS, live(1, 3)) == PartitionState(
        1, 6, (1,)
    )


nodes = st.frozensets(st.sampled_from(REPLICAS))


@given(st.lists(st.tuples(nodes, nodes, nodes), max_size=12))
def test_leader_is_in_the_isr_and_the_isr_is_never_empty(history):
    state = LED
    for alive, stopping, failed in history:
        brokers = Brokers(alive, stopping)
        after = choose(state, brokers, offline=failed)
        # Only a proposal of the leader adds members.
        assert after.isr and set(after.isr) <= set(state.isr)
        assert after.leader == -1 or (after.leader in after.isr and after.leader in alive - failed)
        assert (after.leader_epoch > state.leader_epoch) == (after.leader != state.leader)
        assert choose(after, brokers, offline=failed) == after
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
