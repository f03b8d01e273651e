"""Truncation of a follower's log: the cases of KIP-101 and KIP-279, and generated histories."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.log.leader_epochs import LeaderEpochs
from millstream.replication.follower import truncation_point

History = list[int]  # the epoch of each record, by offset


def epochs_of(history: History) -> LeaderEpochs:
    epochs = LeaderEpochs()
    for offset, epoch in enumerate(history):
        epochs.assign(epoch, offset)
    return epochs


def follow(leader: History, follower: History, *, high_watermark: int = 0) -> History:
    """Return the follower's log after truncation and replication of the rest."""
    follower = list(follower)
    for _round in range(100):
        last = follower[-1] if follower else -1
        epoch, end = epochs_of(leader).end_offset(last, len(leader)) if follower else (-1, 0)
        if not follower or (epoch == last and end >= len(follower)):
            return follower + leader[len(follower) :]
        offset = truncation_point(
            epoch,
            end,
            ends=lambda epoch, log=tuple(follower): epochs_of(list(log)).end_offset(
                epoch, len(log)
            ),
            log_end=len(follower),
            high_watermark=high_watermark,
        )
        assert offset < len(follower)
        del follower[offset:]
    raise AssertionError("the logs still diverge after 100 rounds")


def test_kip_101_restarted_follower_keeps_records_of_the_leader():
    """Truncated to its old high watermark, it would lose record 1 if it became the leader."""
    assert follow([0, 0], [0, 0], high_watermark=1) == [0, 0]


def test_kip_101_diverging_records_are_replaced():
    assert follow([0, 1, 1], [0, 0]) == [0, 1, 1]


def test_kip_279_follower_goes_back_over_several_unclean_leaders():
    assert follow([0, 0, 1, 4, 4], [0, 0, 2, 3, 3]) == [0, 0, 1, 4, 4]


def test_longer_tail_of_the_same_epoch_is_truncated():
    assert follow([0, 0, 2], [0, 0, 0, 0]) == [0, 0, 2]


@pytest.mark.parametrize("high_watermark", [0, 2])
def test_without_known_epochs_only_committed_records_stay(high_watermark: int):
    assert (
        truncation_point(
            -1, -1, ends=lambda epoch: (-1, -1), log_end=4, high_watermark=high_watermark
        )
        == high_watermark
    )


@st.composite
def histories(draw: st.DrawFn) -> tuple[History, History]:
    """Two logs with a common start, and then records of different leader epochs."""
    common = sorted(draw(st.lists(st.integers(0, 3), max_size=6)))
    owners = draw(st.lists(st.booleans(), min_size=8, max_size=8))
    tails: tuple[History, History] = ([], [])
    for epoch, owner in enumerate(owners, start=4):
        tails[owner].extend([epoch] * draw(st.integers(0, 3)))
    return common + tails[0], common + tails[1]


@given(histories())
def test_follower_log_becomes_the_leader_log(logs: tuple[History, History]):
    leader, follower = logs
    assert follow(leader, follower) == leader
