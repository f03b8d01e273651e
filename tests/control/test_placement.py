"""Where replicas go: document 001's rule, and racks."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.control.placement import place
from millstream.core.errors import ApiError, ErrorCode


def test_partition_i_is_on_broker_i_mod_n_and_replica_j_on_the_next_but_j():
    assert place([0, 1, 2], 0, 4, 2) == {0: (0, 1), 1: (1, 2), 2: (2, 0), 3: (0, 1)}


def test_partitions_added_later_go_on_where_the_first_ones_ended():
    assert place([0, 1, 2], 4, 2, 2) == {4: (1, 2), 5: (2, 0)}


def test_replicas_are_on_different_racks():
    racks = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}
    for replicas in place(range(6), 0, 12, 3, racks).values():
        assert {racks[node] for node in replicas} == {"a", "b", "c"}


def test_with_fewer_racks_than_replicas_each_rack_has_its_share():
    racks = {0: "a", 1: "a", 2: "b", 3: "b"}
    for replicas in place(range(4), 0, 8, 3, racks).values():
        assert Counter(racks[node] for node in replicas).most_common()[-1][1] == 1
        assert len(set(replicas)) == 3


@given(
    st.dictionaries(st.integers(0, 9), st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=10),
    st.integers(1, 4),
)
def test_every_partition_has_different_brokers_on_as_many_racks_as_there_are(racks, factor):
    factor = min(factor, len(racks))
    for replicas in place(list(racks), 0, 20, factor, racks).values():
        assert len(set(replicas)) == factor
        assert len({racks[node] for node in replicas}) == min(factor, len(set(racks.values())))


@given(st.integers(1, 9), st.integers(1, 3))
def test_without_racks_leaders_are_spread_evenly(brokers, factor):
    placed = place(range(brokers), 0, brokers * 4, min(factor, brokers))
    assert set(Counter(replicas[0] for replicas in placed.values()).values()) == {4}


def test_brokers_that_are_away_come_last_and_never_lead():
    assert place([0, 1, 2], 0, 3, 3, away={1}) == {0: (0, 2, 1), 1: (2, 0, 1), 2: (0, 2, 1)}
    assert place([0, 1, 2], 0, 2, 2, away={1}) == {0: (0, 2), 1: (2, 0)}, "not used while live ones suffice"


def test_rack_that_is_away_still_gets_its_replica():
    racks = {0: "a", 1: "a", 2: "b", 3: "b"}
    for replicas in place(range(4), 0, 8, 2, racks, away={2, 3}).values():
        assert [racks[node] for node in replicas] == ["a", "b"]


def test_no_live_broker_is_refused():
    with pytest.raises(ApiError, match="All brokers are currently fenced") as refused:
        place([0, 1], 0, 1, 1, away={0, 1})
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


@given(
    st.dictionaries(st.integers(0, 9), st.sampled_from(["a", "b", None]), min_size=1, max_size=10),
    st.sets(st.integers(0, 9)),
    st.integers(1, 4),
)
def test_every_partition_has_a_live_leader_and_different_brokers(racks, away, factor):
    live = racks.keys() - away
    factor = min(factor, len(racks))
    if live:
        for replicas in place(list(racks), 0, 20, factor, racks, away).values():
            assert len(set(replicas)) == factor and replicas[0] in live
            assert len({racks[node] for node in replicas}) == min(factor, len(set(racks.values())))
