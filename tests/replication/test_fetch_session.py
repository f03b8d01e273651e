"""Fetch sessions (KIP-227), decided without a broker: what a request resolves to, and what an answer tells."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from millstream.core.errors import ErrorCode
from millstream.replication.fetch_session import (
    FetchContext,
    FetchSession,
    FetchSessionCache,
    SessionError,
    Wanted,
)
from millstream.replication.leader import NO_EPOCH, FollowerProgress

MINUTE_MS = 60_000


def wanted(partition: int, offset: int = 0, topic: str | bytes = "t") -> Wanted:
    return Wanted(topic, partition, offset, 1 << 20, -1, -1)


class Sessions:
    """A cache, a clock, and a short way to ask."""

    def __init__(self, slots: int = 10) -> None:
        ids = count(1)
        self.cache = FetchSessionCache(slots, lambda: next(ids))
        self.now_ms = 1_000

    def ask(
        self,
        session_id: int,
        epoch: int,
        *rows: Wanted,
        forgotten=(),
        by_id: bool = False,
        follower: bool = False,
    ) -> FetchContext:
        return self.cache.resolve(
            session_id, epoch, rows, forgotten, by_id=by_id, now_ms=self.now_ms, follower=follower
        )

    def refused(self, session_id: int, epoch: int, *rows: Wanted, by_id: bool = False) -> ErrorCode:
        with pytest.raises(SessionError) as error:
            self.ask(session_id, epoch, *rows, by_id=by_id)
        return error.value.code


def test_a_request_that_wants_no_session_gets_none() -> None:
    sessions = Sessions()
    context = sessions.ask(0, -1, wanted(0))
    assert (context.session_id, [w.partition for w in context.wanted]) == (0, [0])
    assert len(sessions.cache) == 0


def test_a_session_remembers_changes_and_forgets_what_it_is_told_to() -> None:
    sessions = Sessions()
    first = sessions.ask(0, 0, wanted(0), wanted(1))
    assert (first.session_id, first.incremental) == (1, False)
    second = sessions.ask(1, 1, wanted(1, 50), wanted(2), forgotten=[("t", 0)])
    assert second.incremental
    assert [(w.partition, w.fetch_offset) for w in second.wanted] == [(1, 50), (2, 0)]
    assert [w.partition for w in sessions.ask(1, 2).wanted] == [1, 2]


def test_epochs_must_follow_each_other_and_wrap_to_one() -> None:
    sessions = Sessions()
    sessions.ask(0, 0, wanted(0))
    assert sessions.refused(1, 2) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    sessions.ask(1, 1)
    assert sessions.refused(1, 1) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    sessions.cache._sessions[1].epoch = 2**31 - 1
    sessions.ask(1, 2**31 - 1)
    sessions.ask(1, 1)


def test_an_unknown_session_and_a_change_of_naming_are_refused() -> None:
    sessions = Sessions()
    assert sessions.refused(99, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    sessions.ask(0, 0, wanted(0))
    assert sessions.refused(1, 1, by_id=True) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_session_ends_by_request_or_when_nothing_is_left_of_it() -> None:
    sessions = Sessions()
    sessions.ask(0, 0, wanted(0))
    sessions.ask(1, -1, wanted(0))
    assert len(sessions.cache) == 0
    sessions.ask(0, 0, wanted(0))
    assert list(sessions.ask(2, 1, forgotten=[("t", 0)]).wanted) == []
    assert len(sessions.cache) == 0


def test_a_full_cache_gives_a_slot_only_from_a_session_long_silent() -> None:
    sessions = Sessions(slots=2)
    assert [sessions.ask(0, 0, wanted(n)).session_id for n in range(2)] == [1, 2]
    sessions.now_ms += MINUTE_MS
    assert sessions.ask(0, 0, wanted(3)).session_id == 0
    sessions.ask(1, 1)  # the first one is alive, the second is silent
    sessions.now_ms += MINUTE_MS + 1
    assert sessions.ask(0, 0, wanted(4)).session_id == 3
    assert sessions.refused(2, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.ask(1, 2).session_id == 1


def test_the_quietest_consumer_makes_room_for_a_follower_at_once() -> None:
    sessions = Sessions(slots=3)
    follower = sessions.ask(0, 0, wanted(0), follower=True).session_id
    quiet, busy = (sessions.ask(0, 0, wanted(n)).session_id for n in range(2))
    assert sessions.ask(0, 0, wanted(3), follower=True).session_id
    assert sessions.refused(quiet, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.ask(busy, 1).session_id == busy
    assert sessions.ask(follower, 1).session_id == follower


def test_followers_do_not_take_sessions_from_each_other_until_one_is_long_silent() -> None:
    sessions = Sessions(slots=2)
    assert [sessions.ask(0, 0, wanted(n), follower=True).session_id for n in range(2)] == [1, 2]
    assert sessions.ask(0, 0, wanted(2), follower=True).session_id == 0
    assert sessions.ask(0, 0, wanted(2)).session_id == 0
    sessions.now_ms += 2 * MINUTE_MS
    assert sessions.ask(0, 0, wanted(2), follower=True).session_id == 3


def test_no_slots_means_no_sessions() -> None:
    for follower in (False, True):
        assert Sessions(slots=0).ask(0, 0, wanted(0), follower=follower).session_id == 0


def test_an_incremental_answer_tells_only_what_is_new() -> None:
    sessions = Sessions()
    context = sessions.ask(0, 0, wanted(0))
    (row,) = context.wanted
    assert context.must_tell(row, 0, False, 10, 0)  # the first answer tells everything
    context = sessions.ask(1, 1)
    (row,) = context.wanted
    assert not context.must_tell(row, 0, False, 10, 0)
    assert context.must_tell(row, 0, False, 11, 0)
    assert context.must_tell(row, 0, False, 11, 5)
    assert context.must_tell(row, 0, True, 11, 5)
    assert not context.must_tell(row, 0, False, 11, 5)


def test_an_error_is_told_every_time_and_so_is_its_end() -> None:
    sessions = Sessions()
    (row,) = sessions.ask(0, 0, wanted(0)).wanted
    context = sessions.ask(1, 1)
    assert context.must_tell(row, 3, False, -1, -1)
    assert context.must_tell(row, 3, False, -1, -1)
    assert context.must_tell(row, 0, False, 10, 0)
    assert not context.must_tell(row, 0, False, 10, 0)


def replica_row(offset: int, log_start: int) -> Wanted:
    return Wanted("t", 0, offset, 1 << 20, -1, -1, log_start)


def tells_log_start_again(follower: bool, *changed: Wanted) -> bool:
    """Whether log start 5 is in the answer to a request for these rows, after an answer that had it."""
    sessions = Sessions()
    context = sessions.ask(0, 0, replica_row(12, 0), follower=follower)
    assert context.must_tell(context.wanted[0], 0, False, 7, 5)
    context = sessions.ask(1, 1, *changed)
    is_told = context.must_tell(context.wanted[0], 0, False, 7, 5)
    context = sessions.ask(1, 2)
    assert not context.must_tell(context.wanted[0], 0, False, 7, 5)
    return is_told


def test_follower_that_missed_the_log_start_receives_it_again() -> None:
    """It had a tail to truncate, or the leader epoch changed: it asks again, with its old log start."""
    assert tells_log_start_again(True, replica_row(7, 0))


def test_log_start_that_the_follower_knows_is_not_repeated() -> None:
    assert not tells_log_start_again(True, replica_row(12, 5))
    assert not tells_log_start_again(True, replica_row(12, 6))
    assert not tells_log_start_again(True)  # its checkpoint is not written yet
    assert not tells_log_start_again(False, replica_row(7, 0))


def test_a_partition_that_gave_data_goes_to_the_end_of_the_line() -> None:
    sessions = Sessions()
    context = sessions.ask(0, 0, wanted(0), wanted(1), wanted(2))
    context.must_tell(context.wanted[0], 0, True, 10, 0)
    assert [w.partition for w in sessions.ask(1, 1).wanted] == [1, 2, 0]


# ---- followers that have all there is -------------------------------------------------------------------------


class Watched:
    """A partition that knows who watches it."""

    def __init__(self) -> None:
        self.watchers: list[Callable[[Wanted], None]] = []

    def watch(self, watcher: Callable[[Wanted], None]) -> None:
        self.watchers.append(watcher)

    def unwatch(self, watcher: Callable[[Wanted], None]) -> None:
        self.watchers.remove(watcher)


OTHERS = range(3, 9)


class Following:
    """A session of a follower with three partitions, of which the second is parked."""

    def __init__(self) -> None:
        self.sessions = Sessions()
        context = self.sessions.ask(0, 0, wanted(0), wanted(1, 7), wanted(2))
        assert context.session is not None
        self.session = context.session
        self.row = context.wanted[1]
        self.partition, self.follower = Watched(), FollowerProgress(log_end_offset=7)
        self.partition.watch(self.session.unpark)
        self.session.park(self.row, self.partition, self.follower)

    def park_others(self) -> None:
        """More than are looked at with a request, and before the one that is told of here."""
        self.session.unpark(self.row)
        self.session.update([wanted(partition) for partition in OTHERS], ())
        for partition in OTHERS:
            watched = Watched()
            watched.watch(self.session.unpark)
            row = self.session.partitions["t", partition]
            self.session.park(row, watched, FollowerProgress(log_end_offset=row.fetch_offset))
        self.partition.watch(self.session.unpark)
        self.session.park(self.row, self.partition, self.follower)

    def begin_anew(self) -> FetchSession:
        """A second session, in which the same partition is parked as well."""
        self.sessions.now_ms += 1000
        context = self.sessions.ask(0, 0, wanted(1, 7))
        assert context.session is not None
        self.partition.watch(context.session.unpark)
        context.session.park(context.wanted[0], self.partition, self.follower)
        return context.session

    def next(self, *rows: Wanted, forgotten=()) -> list[int]:
        epoch = self.session.epoch
        context = self.sessions.ask(self.session.session_id, epoch, *rows, forgotten=forgotten)
        return [row.partition for row in context.wanted]


def test_a_parked_row_is_not_looked_at_until_its_partition_changes() -> None:
    world = Following()
    assert world.next() == [0, 2]
    heard: list[Wanted] = []
    world.session.on_news = heard.append
    world.session.unpark(world.row)
    assert heard == [world.row] and world.partition.watchers == []
    assert world.next() == [0, 2, 1]


def test_a_parked_row_that_is_asked_for_anew_is_looked_at_and_keeps_what_was_told() -> None:
    world = Following()
    world.row.told_high_watermark = 5
    assert world.next(wanted(1, 8)) == [0, 2, 1]
    row = world.session.partitions["t", 1]
    assert (row.fetch_offset, row.told_high_watermark, world.partition.watchers) == (8, 5, [])


def test_a_parked_row_can_be_forgotten_and_a_session_of_parked_rows_goes_on() -> None:
    world = Following()
    assert world.next(forgotten=[("t", 0), ("t", 2)]) == []
    assert len(world.sessions.cache) == 1
    assert world.next(forgotten=[("t", 1)]) == []
    assert (len(world.sessions.cache), world.partition.watchers) == (0, [])


def test_the_end_of_a_session_ends_its_watching() -> None:
    world = Following()
    world.sessions.ask(world.session.session_id, -1)
    assert world.partition.watchers == [] and world.follower.standing is None


def test_a_parked_follower_is_there_as_long_as_it_asks_for_anything() -> None:
    world = Following()
    lag = {"max_lag_ms": 1000}
    world.sessions.now_ms += 5000
    world.next()
    asked_ms = world.sessions.now_ms
    assert world.follower.caught_up(8, now_ms=asked_ms + 900, **lag)
    assert not world.follower.caught_up(8, now_ms=asked_ms + 1100, **lag)
    world.session.unpark(world.row)
    assert world.follower.last_caught_up_ms == asked_ms
    assert world.follower.caught_up(8, now_ms=asked_ms + 900, **lag)


def test_the_end_of_an_earlier_session_takes_nothing_from_the_one_after_it() -> None:
    """The connection broke, and the follower began anew; its old session makes room minutes later."""
    world = Following()
    again = world.begin_anew()
    world.sessions.ask(world.session.session_id, -1)
    assert world.follower.standing is again
    world.sessions.now_ms += MINUTE_MS
    world.sessions.ask(again.session_id, again.epoch)
    assert world.follower.caught_up(8, max_lag_ms=1000, now_ms=world.sessions.now_ms)


def test_an_answer_in_an_earlier_session_takes_nothing_from_the_one_after_it() -> None:
    """A leader may notice late that a connection is gone: what waits there for news is answered after the follower is back."""
    world = Following()
    world.session.unpark(world.row)
    again = world.begin_anew()
    world.session.park(world.row, world.partition, world.follower)
    assert world.follower.standing is again


def test_what_a_follower_said_in_an_earlier_session_still_counts() -> None:
    world = Following()
    world.park_others()
    world.session.used_by(NO_EPOCH)
    said = world.follower.fetches
    world.begin_anew()
    assert world.follower.fetches == said > 0


def test_a_follower_that_registered_anew_shows_itself_everywhere() -> None:
    world = Following()
    world.park_others()
    world.session.used_by(3)
    assert sorted(world.next()) == [0, 1, 2, *OTHERS]
    world.park_others()
    world.partition.watch(world.session.unpark)
    world.session.park(world.row, world.partition, world.follower)
    world.session.used_by(3)
    assert 1 not in world.next()


def test_what_is_parked_for_longest_is_looked_at_now_and_then() -> None:
    world = Following()
    world.session.used_by(NO_EPOCH)
    assert world.next() == [0, 2, 1] and world.partition.watchers == []


def test_a_request_counts_once_whether_its_row_is_parked_or_looked_at_again() -> None:
    """Who asks whether this is still the leader counts them: one that was on its way already must not pass for two."""
    parked, looked_at = Following(), Following()
    parked.park_others()
    for world in (parked, looked_at):
        before = world.follower.fetches
        world.next()
        world.session.used_by(NO_EPOCH)
        if world is looked_at:
            world.follower.fetched(7, 0, 7, broker_epoch=NO_EPOCH, now_ms=world.sessions.now_ms)
        assert world.follower.fetches == before + 1
