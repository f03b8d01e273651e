"""Fetch sessions (KIP-227), decided without a broker: what a request resolves to, and what an answer tells."""

from __future__ import annotations

from itertools import count

import pytest

from millstream.core.errors import ErrorCode
from millstream.replication.fetch_session import FetchContext, FetchSessionCache, SessionError, Wanted

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
        self, session_id: int, epoch: int, *rows: Wanted, forgotten=(), by_id: bool = False
    ) -> FetchContext:
        return self.cache.resolve(session_id, epoch, rows, forgotten, by_id=by_id, now_ms=self.now_ms)

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


def test_no_slots_means_no_sessions() -> None:
    assert Sessions(slots=0).ask(0, 0, wanted(0)).session_id == 0


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


def test_a_partition_that_gave_data_goes_to_the_end_of_the_line() -> None:
    sessions = Sessions()
    context = sessions.ask(0, 0, wanted(0), wanted(1), wanted(2))
    context.must_tell(context.wanted[0], 0, True, 10, 0)
    assert [w.partition for w in sessions.ask(1, 1).wanted] == [1, 2, 0]
