"""Replica placement with and without racks, and with brokers that are down."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.control.placement import place
from millstream.core.errors import ApiError, ErrorCode


def test_replica_j_of_partition_i_is_on_broker_i_plus_j():
    assert place([0, 1, 2], 0, 4, 2) == {0: (0, 1), 1: (1, 2), 2: (2, 0), 3: (0, 1)}


def test_added_partitions_continue_the_rotation():
    assert place([0, 1, 2], 4, 2, 2) == {4: (1, 2), 5: (2, 0)}


def test_replicas_are_on_different_racks():
    racks = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}
    for replicas in place(range(6), 0, 12, 3, racks).values():
        assert {racks[node] for node in replicas} == {"a", "b", "c"}


def test_each_rack_has_a_replica_if_racks_are_fewer_than_replicas():
    racks = {0: "a", 1: "a", 2: "b", 3: "b"}
    for replicas in place(range(4), 0, 8, 3, racks).values():
        assert Counter(racks[node] for node in replicas).most_common()[-1][1] == 1
        assert len(set(replicas)) == 3


@given(
    st.dictionaries(
        st.integers(0, 9), st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=10
    ),
    st.integers(1, 4),
)
def test_replicas_are_on_different_brokers_and_as_many_racks_as_possible(racks, factor):
    factor = min(factor, len(racks))
    for replicas in place(list(racks), 0, 20, factor, racks).values():
        assert len(set(replicas)) == factor
        assert len({racks[node] for node in replicas}) == min(factor, len(set(racks.values())))


@given(st.integers(1, 9), st.integers(1, 3))
def test_without_racks_leaders_are_spread_evenly(brokers, factor):
    placed = place(range(brokers), 0, brokers * 4, min(factor, brokers))
    assert set(Counter(replicas[0] for replicas in placed.values()).values()) == {4}


def test_brokers_that_are_down_come_last_and_never_lead():
    assert place([0, 1, 2], 0, 3, 3, down={1}) == {0: (0, 2, 1), 1: (2, 0, 1), 2: (0, 2, 1)}
    assert place([0, 1, 2], 0, 2, 2, down={1}) == {0: (0, 2), 1: (2, 0)}, (
        "not used while live ones suffice"
    )


def test_rack_that_is_down_still_gets_its_replica():
    racks = {0: "a", 1: "a", 2: "b", 3: "b"}
    for replicas in place(range(4), 0, 8, 2, racks, down={2, 3}).values():
        assert [racks[node] for node in replicas] == ["a", "b"]


def test_placement_without_live_broker_is_rejected():
    with pytest.raises(ApiError, match="All brokers are currently fenced") as error:
        place([0, 1], 0, 1, 1, down={0, 1})
    assert error.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


@given(
    st.dictionaries(st.integers(0, 9), st.sampled_from(["a", "b", None]), min_size=1, max_size=10),
    st.sets(st.integers(0, 9)),
    st.integers(1, 4),
)
def test_every_partition_has_a_live_leader_and_different_brokers(racks, down, factor):
    live = racks.keys() - down
    factor = min(factor, len(racks))
    if live:
        for replicas in place(list(racks), 0, 20, factor, racks, down).values():
            assert len(set(replicas)) == factor and replicas[0] in live
            assert len({racks[node] for node in replicas}) == min(factor, len(set(racks.values())))
