"""Where a follower cuts its log: KIP-101's and KIP-279's histories, and every pair of histories after a few leaders."""

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
    """The follower's log after it has agreed with the leader's and taken over the rest."""
    follower = list(follower)
    for _round in range(100):
        last = follower[-1] if follower else -1
        epoch, end = epochs_of(leader).end_offset(last, len(leader)) if follower else (-1, 0)
        if not follower or (epoch == last and end >= len(follower)):
            return follower + leader[len(follower) :]
        cut = truncation_point(
            epoch,
            end,
            ends=lambda asked, log=tuple(follower): epochs_of(list(log)).end_offset(asked, len(log)),
            log_end=len(follower),
            high_watermark=high_watermark,
        )
        assert cut < len(follower)
        del follower[cut:]
    raise AssertionError("they never agreed")


def test_kip_101_a_follower_that_restarts_keeps_what_the_leader_has():
    """Cut to its old high watermark of 1, it would lose record 1 for ever if it led next."""
    assert follow([0, 0], [0, 0], high_watermark=1) == [0, 0]


def test_kip_101_two_histories_at_one_offset_become_one():
    assert follow([0, 1, 1], [0, 0]) == [0, 1, 1]


def test_kip_279_a_chain_of_unclean_leaders_is_followed_back_epoch_by_epoch():
    assert follow([0, 0, 1, 4, 4], [0, 0, 2, 3, 3]) == [0, 0, 1, 4, 4]


def test_a_shorter_end_of_the_same_epoch():
    assert follow([0, 0, 2], [0, 0, 0, 0]) == [0, 0, 2]


@pytest.mark.parametrize("high_watermark", [0, 2])
def test_where_no_epoch_is_known_only_what_is_committed_stays(high_watermark: int):
    assert (
        truncation_point(-1, -1, ends=lambda epoch: (-1, -1), log_end=4, high_watermark=high_watermark)
        == high_watermark
    )


@st.composite
def histories(draw: st.DrawFn) -> tuple[History, History]:
    """Two logs that began alike and then had leaders of different epochs, no epoch leading both after they parted."""
    common = sorted(draw(st.lists(st.integers(0, 3), max_size=6)))
    owners = draw(st.lists(st.booleans(), min_size=8, max_size=8))
    tails: tuple[History, History] = ([], [])
    for epoch, owner in enumerate(owners, start=4):
        tails[owner].extend([epoch] * draw(st.integers(0, 3)))
    return common + tails[0], common + tails[1]


@given(histories())
def test_a_follower_ends_with_the_leaders_log_and_keeps_all_that_they_share(logs: tuple[History, History]):
    leader, follower = logs
    assert follow(leader, follower) == leader
