"""Fetch sessions (KIP-227): the broker remembers the partitions that a client fetches.

Requests and responses then carry only changes. A request names a session id and an epoch: (0, 0)
opens a session, (id, n) continues it, (id, -1) closes it, and (0, -1) asks for no session.

The cache is bounded. When it is full, a new session replaces the least recently used one if that
was unused for long enough. Followers need not wait: a follower's session replaces a consumer's at
once, because a follower without a session names all its partitions in every request.

Partitions whose follower has caught up are idle. An idle partition costs nothing until it changes
or until the follower requests something else for it.
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
# Number of idle partitions that each request of a follower checks again.
_RECHECKED = 3

# A partition inside a session: by topic name up to v12, by topic id from v13.
Key = tuple[str | bytes, int]


@dataclass(slots=True)
class PartitionFetch:
    """The fetch of one partition, and the values that the last response sent for it."""

    topic: str | bytes
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
    # Only a follower sends its log start.
    log_start_offset: int = -1
    # Only a follower sends this: it asks for a response when its high watermark is stale (v18).
    known_high_watermark: int = 2**63 - 1
    # Values in the last response; -1 makes the next response include the partition.
    sent_high_watermark: int = -1
    sent_log_start_offset: int = -1

    @property
    def key(self) -> Key:
        return self.topic, self.partition


class WatchedPartition(Protocol):
    """A partition that reports its changes to watchers."""

    def unwatch(self, watcher: Callable[[PartitionFetch], None], /) -> None: ...


class _IdleFetch(NamedTuple):
    row: PartitionFetch
    partition: WatchedPartition
    follower: FollowerProgress


class SessionError(Exception):
    """A request that does not match its session; the response has only this error code."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.message)
        self.code = code


class FetchSession:
    """The partitions of one session, in the order in which they are read."""

    __slots__ = (
        "broker_epoch",
        "by_id",
        "epoch",
        "follower",
        "idle",
        "last_used_ms",
        "on_wake",
        "partitions",
        "requests",
        "session_id",
        "size",
    )

    def __init__(
        self, session_id: int, by_id: bool, now_ms: int, *, follower: bool = False
    ) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.follower = follower
        self.epoch = 1
        self.last_used_ms = now_ms
        self.requests = 1
        self.partitions: dict[Key, PartitionFetch] = {}
        # Length of ``partitions``. Requests that only check whether the session is large read this.
        self.size = 0
        self.idle: dict[Key, _IdleFetch] = {}
        # Only a follower's session has a broker epoch.
        self.broker_epoch = NO_EPOCH
        # Called for each partition that is no longer idle, while a request is in flight.
        self.on_wake: Callable[[PartitionFetch], None] | None = None

    @property
    def request_pending(self) -> bool:
        """Whether a request of the follower waits for its response."""
        return self.on_wake is not None

    def update(self, changed: Iterable[PartitionFetch], forgotten: Iterable[Key]) -> None:
        for row in changed:
            known = self.partitions.get(row.key)
            if known is None:
                self.size += 1
                known = self._remove_idle(row.key)
            if known is not None:
                row.sent_high_watermark = known.sent_high_watermark
                if not self._missed_log_start(row, known):
                    row.sent_log_start_offset = known.sent_log_start_offset
            self.partitions[row.key] = row
        for key in forgotten:
            self._remove_idle(key)
            if self.partitions.pop(key, None) is not None:
                self.size -= 1

    def _missed_log_start(self, row: PartitionFetch, known: PartitionFetch) -> bool:
        """Return whether a follower may not have applied the log start of an earlier response.

        A follower ignores the log start while it truncates a diverging tail, and drops responses of
        an earlier leader epoch. Its row then changes, but still has the old log start. A follower
        whose disk is slow to persist the log start sends the same row, which is not in the request.
        """
        return self.follower and 0 <= row.log_start_offset < known.sent_log_start_offset

    def set_idle(
        self, row: PartitionFetch, partition: WatchedPartition, follower: FollowerProgress
    ) -> None:
        """Stop reading a partition whose follower has caught up.

        The partition calls ``wake`` at its next change. Until then every request of the session
        shows that the follower is alive and caught up.
        """
        if self.partitions.get(row.key) is row:
            del self.partitions[row.key]
            self.size -= 1
            self.idle[row.key] = _IdleFetch(row, partition, follower)
            follower.enter_idle(self)

    def wake(self, row: PartitionFetch) -> None:
        """Read an idle partition again."""
        if self._remove_idle(row.key) is not None:
            self.partitions[row.key] = row
            self.size += 1
            if self.on_wake is not None:
                self.on_wake(row)

    def on_follower_request(self, broker_epoch: int) -> None:
        """Count a request of a follower, and wake the partitions that were idle for longest.

        Retention advances the start of a log without waking its watchers, so each request checks a
        few idle partitions again. All of them wake if the broker has registered again, because it
        then has to rejoin every ISR.

        The request counts as a fetch of the partitions that are still idle. The others report their
        fetch when they are read.
        """
        registered_again = broker_epoch != self.broker_epoch
        self.broker_epoch = broker_epoch
        for idle in list(islice(self.idle.values(), None if registered_again else _RECHECKED)):
            self.wake(idle.row)
        self.requests += 1

    def _remove_idle(self, key: Key) -> PartitionFetch | None:
        idle = self.idle.pop(key, None)
        if idle is None:
            return None
        idle.partition.unwatch(self.wake)
        idle.follower.leave_idle(self)
        return idle.row

    def close(self) -> None:
        for key in list(self.idle):
            self._remove_idle(key)

    def move_to_end(self, key: Key) -> None:
        """Read a partition that returned data after all others next time, so that none starves."""
        row = self.partitions.pop(key, None)
        if row is not None:
            self.partitions[key] = row


@dataclass(slots=True)
class FetchContext:
    """The partitions that one request reads, and the session of its response, if any."""

    rows: Sequence[PartitionFetch]
    session: FetchSession | None = None
    incremental: bool = False

    @property
    def session_id(self) -> int:
        return self.session.session_id if self.session is not None else 0

    @property
    def empty(self) -> bool:
        """Whether the request has no partitions to read, now or later."""
        return not self.rows and (self.session is None or not self.session.idle)

    def refresh(self) -> None:
        """Add the partitions that are no longer idle."""
        if self.session is not None:
            self.rows = list(self.session.partitions.values())

    def must_include(
        self,
        row: PartitionFetch,
        error: int,
        has_data: bool,
        high_watermark: int,
        log_start_offset: int,
        *,
        redirects: bool = False,
    ) -> bool:
        """Return whether the response includes this partition, and record the values it sends.

        ``redirects``: the response sends the reader to another replica or another offset.
        """
        if self.session is None:
            return True
        changed = (
            has_data
            or redirects
            or error != 0
            or row.sent_high_watermark != high_watermark
            or row.sent_log_start_offset != log_start_offset
        )
        # An error is sent in every response; the first response after it has the true values.
        row.sent_high_watermark = high_watermark if error == 0 else -1
        row.sent_log_start_offset = log_start_offset if error == 0 else -1
        if has_data:
            self.session.move_to_end(row.key)
        return changed or not self.incremental


class FetchSessionCache:
    """The fetch sessions of a broker."""

    def __init__(self, slots: int, new_id: Callable[[], int]) -> None:
        self._slots = slots
        self._new_id = new_id
        # Least recently used first.
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(
        self,
        session_id: int,
        epoch: int,
        rows: Sequence[PartitionFetch],
        forgotten: Sequence[Key],
        *,
        by_id: bool,
        now_ms: int,
        follower: bool = False,
    ) -> FetchContext:
        """Return the context of a request; raise SessionError if it does not match its session."""
        if epoch == FINAL_EPOCH:
            self._end(session_id)
            return FetchContext(rows)
        if epoch == INITIAL_EPOCH:
            self._end(session_id)
            return self._open(rows, by_id, now_ms, follower)
        return self._continue(session_id, epoch, rows, forgotten, by_id, now_ms)

    def _open(
        self, rows: Sequence[PartitionFetch], by_id: bool, now_ms: int, follower: bool
    ) -> FetchContext:
        if not rows or not self._make_room(now_ms, follower):
            return FetchContext(rows)
        session = FetchSession(self._unused_id(), by_id, now_ms, follower=follower)
        session.update(rows, ())
        self._sessions[session.session_id] = session
        return FetchContext(list(session.partitions.values()), session)

    def _continue(
        self,
        session_id: int,
        epoch: int,
        rows: Sequence[PartitionFetch],
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
        session.update(rows, forgotten)
        if not session.partitions and not session.idle:
            self._end(session_id)
            return FetchContext(())
        session.epoch = 1 if epoch == 2**31 - 1 else epoch + 1
        session.last_used_ms = now_ms
        self._sessions[session_id] = self._sessions.pop(session_id)
        return FetchContext(list(session.partitions.values()), session, incremental=True)

    def _make_room(self, now_ms: int, follower: bool) -> bool:
        if len(self._sessions) < self._slots:
            return True
        evicted = next(iter(self._sessions.values()), None)
        if evicted is None or now_ms - evicted.last_used_ms < _EVICTION_MS:
            consumers = (session for session in self._sessions.values() if not session.follower)
            evicted = next(consumers, None) if follower else None
        if evicted is None:
            return False
        self._end(evicted.session_id)
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
