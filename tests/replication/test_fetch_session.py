"""Fetch sessions (KIP-227) without a broker: the partitions a request reads and a
response sends.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from millstream.core.errors import ErrorCode
from millstream.replication.fetch_session import (
    FetchContext,
    FetchSession,
    FetchSessionCache,
    PartitionFetch,
    SessionError,
)
from millstream.replication.leader import NO_EPOCH, FollowerProgress

MINUTE_MS = 60_000


def fetch_of(partition: int, offset: int = 0, topic: str | bytes = "t") -> PartitionFetch:
    return PartitionFetch(topic, partition, offset, 1 << 20, -1, -1)


class Sessions:
    """A session cache with a clock and a short way to send requests."""

    def __init__(self, slots: int = 10) -> None:
        ids = count(1)
        self.cache = FetchSessionCache(slots, lambda: next(ids))
        self.now_ms = 1_000

    def request(
        self,
        session_id: int,
        epoch: int,
        *rows: PartitionFetch,
        forgotten=(),
        by_id: bool = False,
        follower: bool = False,
    ) -> FetchContext:
        return self.cache.resolve(
            session_id, epoch, rows, forgotten, by_id=by_id, now_ms=self.now_ms, follower=follower
        )

    def rejected(
        self, session_id: int, epoch: int, *rows: PartitionFetch, by_id: bool = False
    ) -> ErrorCode:
        with pytest.raises(SessionError) as error:
            self.request(session_id, epoch, *rows, by_id=by_id)
        return error.value.code


def test_request_without_session_opens_none() -> None:
    sessions = Sessions()
    context = sessions.request(0, -1, fetch_of(0))
    assert (context.session_id, [row.partition for row in context.rows]) == (0, [0])
    assert len(sessions.cache) == 0


def test_session_applies_changed_and_forgotten_partitions() -> None:
    sessions = Sessions()
    first = sessions.request(0, 0, fetch_of(0), fetch_of(1))
    assert (first.session_id, first.incremental) == (1, False)
    second = sessions.request(1, 1, fetch_of(1, 50), fetch_of(2), forgotten=[("t", 0)])
    assert second.incremental
    assert [(row.partition, row.fetch_offset) for row in second.rows] == [(1, 50), (2, 0)]
    assert [row.partition for row in sessions.request(1, 2).rows] == [1, 2]


def test_session_epochs_are_consecutive_and_wrap_to_one() -> None:
    sessions = Sessions()
    sessions.request(0, 0, fetch_of(0))
    assert sessions.rejected(1, 2) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    sessions.request(1, 1)
    assert sessions.rejected(1, 1) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    sessions.cache._sessions[1].epoch = 2**31 - 1
    sessions.request(1, 2**31 - 1)
    sessions.request(1, 1)


def test_unknown_session_and_change_of_topic_naming_are_rejected() -> None:
    sessions = Sessions()
    assert sessions.rejected(99, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    sessions.request(0, 0, fetch_of(0))
    assert sessions.rejected(1, 1, by_id=True) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_session_ends_on_request_or_without_partitions() -> None:
    sessions = Sessions()
    sessions.request(0, 0, fetch_of(0))
    sessions.request(1, -1, fetch_of(0))
    assert len(sessions.cache) == 0
    sessions.request(0, 0, fetch_of(0))
    assert list(sessions.request(2, 1, forgotten=[("t", 0)]).rows) == []
    assert len(sessions.cache) == 0


def test_full_cache_evicts_only_a_session_unused_for_long() -> None:
    sessions = Sessions(slots=2)
    assert [sessions.request(0, 0, fetch_of(n)).session_id for n in range(2)] == [1, 2]
    sessions.now_ms += MINUTE_MS
    assert sessions.request(0, 0, fetch_of(3)).session_id == 0
    sessions.request(1, 1)  # the first is used, the second is not
    sessions.now_ms += MINUTE_MS + 1
    assert sessions.request(0, 0, fetch_of(4)).session_id == 3
    assert sessions.rejected(2, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.request(1, 2).session_id == 1


def test_follower_evicts_the_least_recently_used_consumer_at_once() -> None:
    sessions = Sessions(slots=3)
    follower = sessions.request(0, 0, fetch_of(0), follower=True).session_id
    quiet, busy = (sessions.request(0, 0, fetch_of(n)).session_id for n in range(2))
    assert sessions.request(0, 0, fetch_of(3), follower=True).session_id
    assert sessions.rejected(quiet, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.request(busy, 1).session_id == busy
    assert sessions.request(follower, 1).session_id == follower


def test_follower_evicts_another_follower_only_if_unused_for_long() -> None:
    sessions = Sessions(slots=2)
    assert [sessions.request(0, 0, fetch_of(n), follower=True).session_id for n in range(2)] == [
        1,
        2,
    ]
    assert sessions.request(0, 0, fetch_of(2), follower=True).session_id == 0
    assert sessions.request(0, 0, fetch_of(2)).session_id == 0
    sessions.now_ms += 2 * MINUTE_MS
    assert sessions.request(0, 0, fetch_of(2), follower=True).session_id == 3


def test_no_slots_means_no_sessions() -> None:
    for follower in (False, True):
        assert Sessions(slots=0).request(0, 0, fetch_of(0), follower=follower).session_id == 0


def test_incremental_response_includes_only_changed_partitions() -> None:
    sessions = Sessions()
    context = sessions.request(0, 0, fetch_of(0))
    (row,) = context.rows
    assert context.must_include(row, 0, False, 10, 0)  # the first response includes every partition
    context = sessions.request(1, 1)
    (row,) = context.rows
    assert not context.must_include(row, 0, False, 10, 0)
    assert context.must_include(row, 0, False, 11, 0)
    assert context.must_include(row, 0, False, 11, 5)
    assert context.must_include(row, 0, True, 11, 5)
    assert not context.must_include(row, 0, False, 11, 5)


def test_error_is_sent_every_time_and_once_more_when_it_ends() -> None:
    sessions = Sessions()
    (row,) = sessions.request(0, 0, fetch_of(0)).rows
    context = sessions.request(1, 1)
    assert context.must_include(row, 3, False, -1, -1)
    assert context.must_include(row, 3, False, -1, -1)
    assert context.must_include(row, 0, False, 10, 0)
    assert not context.must_include(row, 0, False, 10, 0)


def replica_row(offset: int, log_start: int) -> PartitionFetch:
    return PartitionFetch("t", 0, offset, 1 << 20, -1, -1, log_start)


def sends_log_start_again(follower: bool, *changed: PartitionFetch) -> bool:
    """Return whether a request for these rows gets log start 5 again after a
    response that had it.
    """
    sessions = Sessions()
    context = sessions.request(0, 0, replica_row(12, 0), follower=follower)
    assert context.must_include(context.rows[0], 0, False, 7, 5)
    context = sessions.request(1, 1, *changed)
    sent_again = context.must_include(context.rows[0], 0, False, 7, 5)
    context = sessions.request(1, 2)
    assert not context.must_include(context.rows[0], 0, False, 7, 5)
    return sent_again


def test_follower_that_missed_the_log_start_receives_it_again() -> None:
    """It had a tail to truncate, or the leader epoch changed: it fetches again with its old log
    start.
    """
    assert sends_log_start_again(True, replica_row(7, 0))


def test_log_start_that_the_follower_knows_is_not_repeated() -> None:
    assert not sends_log_start_again(True, replica_row(12, 5))
    assert not sends_log_start_again(True, replica_row(12, 6))
    assert not sends_log_start_again(True)  # its checkpoint is not written yet
    assert not sends_log_start_again(False, replica_row(7, 0))


def test_partition_that_returned_data_is_read_last_next_time() -> None:
    sessions = Sessions()
    context = sessions.request(0, 0, fetch_of(0), fetch_of(1), fetch_of(2))
    context.must_include(context.rows[0], 0, True, 10, 0)
    assert [row.partition for row in sessions.request(1, 1).rows] == [1, 2, 0]


# ---- idle partitions of followers ----


class FakePartition:
    """A partition with a list of its watchers."""

    def __init__(self) -> None:
        self.watchers: list[Callable[[PartitionFetch], None]] = []

    def watch(self, watcher: Callable[[PartitionFetch], None]) -> None:
        self.watchers.append(watcher)

    def unwatch(self, watcher: Callable[[PartitionFetch], None]) -> None:
        self.watchers.remove(watcher)


OTHERS = range(3, 9)


class FollowerSession:
    """A session of a follower with three partitions, the second of them idle."""

    def __init__(self) -> None:
        self.sessions = Sessions()
        context = self.sessions.request(0, 0, fetch_of(0), fetch_of(1, 7), fetch_of(2))
        assert context.session is not None
        self.session = context.session
        self.row = context.rows[1]
        self.partition, self.follower = FakePartition(), FollowerProgress(log_end_offset=7)
        self.partition.watch(self.session.wake)
        self.session.set_idle(self.row, self.partition, self.follower)

    def set_others_idle(self) -> None:
        """Make more partitions idle than one request checks again, and all before
        the tested one.
        """
        self.session.wake(self.row)
        self.session.update([fetch_of(partition) for partition in OTHERS], ())
        for partition in OTHERS:
            other = FakePartition()
            other.watch(self.session.wake)
            row = self.session.partitions["t", partition]
            self.session.set_idle(row, other, FollowerProgress(log_end_offset=row.fetch_offset))
        self.partition.watch(self.session.wake)
        self.session.set_idle(self.row, self.partition, self.follower)

    def open_second_session(self) -> FetchSession:
        """Open a second session in which the same partition is idle as well."""
        self.sessions.now_ms += 1000
        context = self.sessions.request(0, 0, fetch_of(1, 7))
        assert context.session is not None
        self.partition.watch(context.session.wake)
        context.session.set_idle(context.rows[0], self.partition, self.follower)
        return context.session

    def next(self, *rows: PartitionFetch, forgotten=()) -> list[int]:
        epoch = self.session.epoch
        context = self.sessions.request(self.session.session_id, epoch, *rows, forgotten=forgotten)
        return [row.partition for row in context.rows]


def test_idle_partition_is_not_read_until_it_changes() -> None:
    world = FollowerSession()
    assert world.next() == [0, 2]
    woken: list[PartitionFetch] = []
    world.session.on_wake = woken.append
    world.session.wake(world.row)
    assert woken == [world.row] and world.partition.watchers == []
    assert world.next() == [0, 2, 1]


def test_idle_partition_in_a_request_is_read_and_keeps_sent_values() -> None:
    world = FollowerSession()
    world.row.sent_high_watermark = 5
    assert world.next(fetch_of(1, 8)) == [0, 2, 1]
    row = world.session.partitions["t", 1]
    assert (row.fetch_offset, row.sent_high_watermark, world.partition.watchers) == (8, 5, [])


def test_session_of_idle_partitions_lives_until_they_are_forgotten() -> None:
    world = FollowerSession()
    assert world.next(forgotten=[("t", 0), ("t", 2)]) == []
    assert len(world.sessions.cache) == 1
    assert world.next(forgotten=[("t", 1)]) == []
    assert (len(world.sessions.cache), world.partition.watchers) == (0, [])


def test_closed_session_stops_watching_partitions() -> None:
    world = FollowerSession()
    world.sessions.request(world.session.session_id, -1)
    assert world.partition.watchers == [] and world.follower.idle_session is None


def test_idle_follower_is_caught_up_while_its_session_is_used() -> None:
    world = FollowerSession()
    lag = {"max_lag_ms": 1000}
    world.sessions.now_ms += 5000
    world.next()
    used_ms = world.sessions.now_ms
    assert world.follower.caught_up(8, now_ms=used_ms + 900, **lag)
    assert not world.follower.caught_up(8, now_ms=used_ms + 1100, **lag)
    world.session.wake(world.row)
    assert world.follower.last_caught_up_ms == used_ms
    assert world.follower.caught_up(8, now_ms=used_ms + 900, **lag)


def test_end_of_an_old_session_does_not_affect_the_new_one() -> None:
    """The connection broke and the follower reconnected; its old session is
    evicted minutes later.
    """
    world = FollowerSession()
    second = world.open_second_session()
    world.sessions.request(world.session.session_id, -1)
    assert world.follower.idle_session is second
    world.sessions.now_ms += MINUTE_MS
    world.sessions.request(second.session_id, second.epoch)
    assert world.follower.caught_up(8, max_lag_ms=1000, now_ms=world.sessions.now_ms)


def test_response_in_an_old_session_does_not_affect_the_new_one() -> None:
    """A delayed fetch on a lost connection may complete after the follower has reconnected."""
    world = FollowerSession()
    world.session.wake(world.row)
    second = world.open_second_session()
    world.session.set_idle(world.row, world.partition, world.follower)
    assert world.follower.idle_session is second


def test_fetches_in_an_old_session_still_count() -> None:
    world = FollowerSession()
    world.set_others_idle()
    world.session.on_follower_request(NO_EPOCH)
    before = world.follower.fetches
    world.open_second_session()
    assert world.follower.fetches == before > 0


def test_new_broker_registration_wakes_all_idle_partitions() -> None:
    world = FollowerSession()
    world.set_others_idle()
    world.session.on_follower_request(3)
    assert sorted(world.next()) == [0, 1, 2, *OTHERS]
    world.set_others_idle()
    world.partition.watch(world.session.wake)
    world.session.set_idle(world.row, world.partition, world.follower)
    world.session.on_follower_request(3)
    assert 1 not in world.next()


def test_longest_idle_partitions_are_checked_again() -> None:
    world = FollowerSession()
    world.session.on_follower_request(NO_EPOCH)
    assert world.next() == [0, 2, 1] and world.partition.watchers == []


def test_request_counts_once_for_idle_and_for_woken_partitions() -> None:
    """The leadership check counts requests: a request already on its way must not count twice."""
    idle, woken = FollowerSession(), FollowerSession()
    idle.set_others_idle()
    for world in (idle, woken):
        before = world.follower.fetches
        world.next()
        world.session.on_follower_request(NO_EPOCH)
        if world is woken:
            world.follower.on_fetch(7, 0, 7, broker_epoch=NO_EPOCH, now_ms=world.sessions.now_ms)
        assert world.follower.fetches == before + 1
