"""Fetch sessions (KIP-227): the broker remembers what a client fetches, so that requests and answers carry only changes.

A request names a session and an epoch: (0, 0) opens one, (id, n) goes on with it, (id, -1) closes it, (0, -1) wants none. The cache
is bounded; the session that has been silent longest makes room when it has been silent long enough. Followers need not wait for that: a consumer's session
makes room for one at once, because a follower without a session names all its partitions with every request.

Rows of followers that have all there is are parked: they cost nothing until their partition changes or the follower asks for something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

from millstream.core.errors import ErrorCode
from millstream.replication.leader import NO_EPOCH, FollowerProgress

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_EVICTION_MS = 120_000
# So many parked rows are looked at again with each request.
_LOOKED_AT = 3

# A partition inside a session: by topic name up to v12, by topic id from v13.
Key = tuple[str | bytes, int]


@dataclass(slots=True)
class Wanted:
    """What a client wants from one partition, and what it was last told about it."""

    topic: str | bytes
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int = -1  # of a follower
    known_high_watermark: int = 2**63 - 1  # of a follower that wants to hear when it is behind (v18)
    # What the client knows from the last answer; -1 makes the next one tell it.
    told_high_watermark: int = -1
    told_log_start_offset: int = -1

    @property
    def key(self) -> Key:
        return self.topic, self.partition


class Watched(Protocol):
    """A partition: tells of its changes until it is told not to."""

    def unwatch(self, watcher: Callable[[Wanted], None], /) -> None: ...


class _Parked(NamedTuple):
    wanted: Wanted
    watched: Watched
    follower: FollowerProgress


class SessionError(Exception):
    """The request does not fit the session; the whole answer carries the code."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.message)
        self.code = code


class FetchSession:
    """The partitions of one session, in the order in which they are served."""

    __slots__ = (
        "broker_epoch",
        "by_id",
        "epoch",
        "follower",
        "last_used_ms",
        "on_news",
        "parked",
        "partitions",
        "requests",
        "session_id",
        "size",
    )

    def __init__(self, session_id: int, by_id: bool, now_ms: int, *, follower: bool = False) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.follower = follower
        self.epoch = 1
        self.last_used_ms = now_ms
        self.requests = 1
        self.partitions: dict[Key, Wanted] = {}
        self.size = (
            0  # of ``partitions``, kept here for the requests that only need to know whether it is large
        )
        self.parked: dict[Key, _Parked] = {}
        self.broker_epoch = NO_EPOCH  # of a follower
        # Told of every row that is no longer parked, while a request is on its way.
        self.on_news: Callable[[Wanted], None] | None = None

    @property
    def answering(self) -> bool:
        """Of a follower: whether a request of it waits for its answer."""
        return self.on_news is not None

    def update(self, changed: Iterable[Wanted], forgotten: Iterable[Key]) -> None:
        for wanted in changed:
            known = self.partitions.get(wanted.key)
            if known is None:
                self.size += 1
                known = self._unpark(wanted.key)
            if known is not None:
                wanted.told_high_watermark = known.told_high_watermark
                if not self._missed_log_start(wanted, known):
                    wanted.told_log_start_offset = known.told_log_start_offset
            self.partitions[wanted.key] = wanted
        for key in forgotten:
            self._unpark(key)
            if self.partitions.pop(key, None) is not None:
                self.size -= 1

    def _missed_log_start(self, wanted: Wanted, known: Wanted) -> bool:
        """Return whether a follower may not have applied the log start of an earlier answer.

        A follower ignores the log start while it truncates a diverging tail, and drops answers of a
        leader epoch that is over. Its row then changes, but still has the old log start. A follower
        whose disk is slow to persist the log start sends the same row, which is not in the request.
        """
        return self.follower and 0 <= wanted.log_start_offset < known.told_log_start_offset

    def park(self, wanted: Wanted, watched: Watched, follower: FollowerProgress) -> None:
        """It has all there is. ``watched`` calls ``unpark`` at its next change; while that does not happen, every request of the session says
        that the follower is still there."""
        if self.partitions.get(wanted.key) is wanted:
            del self.partitions[wanted.key]
            self.size -= 1
            self.parked[wanted.key] = _Parked(wanted, watched, follower)
            follower.stand(self)

    def unpark(self, wanted: Wanted) -> None:
        if self._unpark(wanted.key) is not None:
            self.partitions[wanted.key] = wanted
            self.size += 1
            if self.on_news is not None:
                self.on_news(wanted)

    def used_by(self, broker_epoch: int) -> None:
        """A request of a follower. One that has registered anew is a newcomer to the ISR everywhere. Some rows that have been parked for longest are looked at
        again: retention moves the begin of a log without telling. Those that are still parked then have been told by this request; the others tell themselves."""
        newcomer = broker_epoch != self.broker_epoch
        self.broker_epoch = broker_epoch
        for parked in list(islice(self.parked.values(), None if newcomer else _LOOKED_AT)):
            self.unpark(parked.wanted)
        self.requests += 1

    def _unpark(self, key: Key) -> Wanted | None:
        parked = self.parked.pop(key, None)
        if parked is None:
            return None
        parked.watched.unwatch(self.unpark)
        parked.follower.stand_no_longer(self)
        return parked.wanted

    def close(self) -> None:
        for key in list(self.parked):
            self._unpark(key)

    def served(self, key: Key) -> None:
        """A partition that gave data goes to the end of the line, so that none starves."""
        wanted = self.partitions.pop(key, None)
        if wanted is not None:
            self.partitions[key] = wanted


@dataclass(slots=True)
class FetchContext:
    """One request: what to read, and which session (0: none) the answer belongs to."""

    wanted: Sequence[Wanted]
    session: FetchSession | None = None
    incremental: bool = False

    @property
    def session_id(self) -> int:
        return self.session.session_id if self.session is not None else 0

    @property
    def empty(self) -> bool:
        """Nothing is wanted, now or later."""
        return not self.wanted and (self.session is None or not self.session.parked)

    def refresh(self) -> None:
        """Takes in rows that are no longer parked."""
        if self.session is not None:
            self.wanted = list(self.session.partitions.values())

    def must_tell(
        self,
        wanted: Wanted,
        error: int,
        has_data: bool,
        high_watermark: int,
        log_start_offset: int,
        *,
        directs: bool = False,
    ) -> bool:
        """Whether the answer includes this partition; remembers what it tells. ``directs``: it sends the reader elsewhere, to
        another replica or another offset."""
        if self.session is None:
            return True
        news = (
            has_data
            or directs
            or error != 0
            or wanted.told_high_watermark != high_watermark
            or wanted.told_log_start_offset != log_start_offset
        )
        # An error is told again every time, and the true values after it.
        wanted.told_high_watermark = high_watermark if error == 0 else -1
        wanted.told_log_start_offset = log_start_offset if error == 0 else -1
        if has_data:
            self.session.served(wanted.key)
        return news or not self.incremental


class FetchSessionCache:
    """All sessions of a broker."""

    def __init__(self, slots: int, new_id: Callable[[], int]) -> None:
        self._slots = slots
        self._new_id = new_id
        self._sessions: dict[int, FetchSession] = {}  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(
        self,
        session_id: int,
        epoch: int,
        wanted: Sequence[Wanted],
        forgotten: Sequence[Key],
        *,
        by_id: bool,
        now_ms: int,
        follower: bool = False,
    ) -> FetchContext:
        """The context of a request; raises SessionError where it does not fit."""
        if epoch == FINAL_EPOCH:
            self._end(session_id)
            return FetchContext(wanted)
        if epoch == INITIAL_EPOCH:
            self._end(session_id)
            return self._open(wanted, by_id, now_ms, follower)
        return self._continue(session_id, epoch, wanted, forgotten, by_id, now_ms)

    def _open(self, wanted: Sequence[Wanted], by_id: bool, now_ms: int, follower: bool) -> FetchContext:
        if not wanted or not self._make_room(now_ms, follower):
            return FetchContext(wanted)
        session = FetchSession(self._unused_id(), by_id, now_ms, follower=follower)
        session.update(wanted, ())
        self._sessions[session.session_id] = session
        return FetchContext(list(session.partitions.values()), session)

    def _continue(
        self,
        session_id: int,
        epoch: int,
        wanted: Sequence[Wanted],
        forgotten: Sequence[Key],
        by_id: bool,
        now_ms: int,
    ) -> FetchContext:
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise SessionError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            raise SessionError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.update(wanted, forgotten)
        if not session.partitions and not session.parked:
            self._end(session_id)
            return FetchContext(())
        session.epoch = 1 if epoch == 2**31 - 1 else epoch + 1
        session.last_used_ms = now_ms
        self._sessions[session_id] = self._sessions.pop(session_id)
        return FetchContext(list(session.partitions.values()), session, incremental=True)

    def _make_room(self, now_ms: int, follower: bool) -> bool:
        if len(self._sessions) < self._slots:
            return True
        leaves = next(iter(self._sessions.values()), None)
        if leaves is None or now_ms - leaves.last_used_ms < _EVICTION_MS:
            consumers = (one for one in self._sessions.values() if not one.follower)
            leaves = next(consumers, None) if follower else None
        if leaves is None:
            return False
        self._end(leaves.session_id)
        return True

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()

    def _unused_id(self) -> int:
        while True:
            session_id = self._new_id()
            if session_id not in self._sessions:
                return session_id
