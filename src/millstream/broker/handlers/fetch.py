"""Fetch: read from partitions, or wait until there is enough to read.

v0-v3 get magic 0 or 1, converted; from v4 batches leave as they are stored, straight from the file to the socket. v7 adds
sessions, v9 leader epochs, v11 reads from the replica that is near (KIP-392), v12 the detection of truncation, v13 topics by id, v16 the leader
for a consumer that comes to the wrong broker or with an old epoch (KIP-951), v18 the high watermark that a follower knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from millstream.broker.fetch.down_conversion import convert_for_old_client, magic_of_version
from millstream.broker.net.context import RequestContext
from millstream.broker.net.responses import DeferredResponse, Encoded, Hold, ResponsePart
from millstream.cluster.replicas.partition import Partition, Watcher
from millstream.core.errors import ApiError, ErrorCode
from millstream.log.errors import ColdRead
from millstream.log.partition_log import PartitionLog
from millstream.ports.clock import steady_ms
from millstream.ports.files import FileSlice
from millstream.ports.turns import has_time
from millstream.replication.fetch_session import FetchContext, Key, PartitionFetch, SessionError
from millstream.replication.read_replica import preferred_replica
from millstream.wire import fetch_response
from millstream.wire.fetch_response import BY_ID, WITH_NODES, PartitionData
from millstream.wire.messages.fetch import FetchRequest
from millstream.wire.node_endpoints import NodeEndpoint

if TYPE_CHECKING:
    from millstream.broker.services import FetchServices

READ_COMMITTED = 1
ANY_REPLICA = 11
# So long a follower that only has to hear of the high watermark waits for records that can go with it: under traffic they are there sooner, and
# each answer less is a fetch less.
SOON_S = 0.005
# The most that is converted for one answer to a client of before v2 batches; it fetches the rest with its next requests.
_CONVERTED_BYTES = 1024 * 1024
# What a consumer is told the leader with.
_LED_ELSEWHERE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
_NOTHING: tuple[int, int, int] = (-1, -1, -1)
# Partitions of a session that are read in one turn of the loop; larger ones are served in slices.
_MANY = 1000


def handle(
    services: FetchServices, context: RequestContext, request: FetchRequest
) -> Encoded | DeferredResponse | Awaitable[Encoded] | Hold:
    by_id = context.version >= BY_ID
    try:
        wanted, forgotten = wanted_rows(request, by_id)
        session = services.fetch_sessions.resolve(
            request.session_id if context.version >= 7 else 0,
            request.session_epoch if context.version >= 7 else -1,
            wanted,
            forgotten,
            by_id=by_id,
            now_ms=steady_ms(services.clock),
            follower=replica_id_of(context, request) >= 0,
        )
    except SessionError as error:
        return only_error(context, error.code)
    if request.isolation_level not in (0, READ_COMMITTED):
        return only_error(context, ErrorCode.INVALID_REQUEST)
    fetch = Fetch(services, context, request, session)
    if session.session is not None and session.session.size > _MANY:
        return Hold(_serve_many(fetch, request))
    if fetch.replica_id >= 0:
        epoch = fetch.begin_follower(request)
        fetch.note_rows(session.rows, epoch)
    if context.version < 4:
        # What is converted stays in memory until it is sent: one answer of a connection at a time.
        return Hold(fetch.serve_old_client(max(request.max_wait_ms, 0) / 1000))
    try:
        fetch.read()
    except ColdRead:
        # Not decided before it is read: later requests may delete what is there now.
        return Hold(fetch.read_cold())
    if fetch.ready or request.max_wait_ms <= 0:
        return fetch.answer()
    return fetch.wait(request.max_wait_ms / 1000)


def handle_large(services: FetchServices, context: RequestContext, request: FetchRequest) -> Hold:
    """A request that names very many partitions: served in slices of turns."""
    from millstream.broker.fetch import large_fetch

    return Hold(large_fetch.handle(services, context, request))


async def _serve_many(fetch: Fetch, request: FetchRequest) -> Encoded | Awaitable[Encoded]:
    from millstream.broker.fetch.large_fetch import LargeFetch

    return await LargeFetch(fetch).serve(request)


def replica_id_of(context: RequestContext, request: FetchRequest) -> int:
    """Of a follower; -1 of a consumer."""
    return request.replica_id if context.version < 15 else request.replica_state.replica_id


def wanted_rows(request: FetchRequest, by_id: bool) -> tuple[list[PartitionFetch], list[Key]]:
    wanted = {}
    for topic in request.topics:
        name = topic.topic_id if by_id else topic.topic
        for one in topic.partitions:
            row = PartitionFetch(
                name,
                one.partition,
                one.fetch_offset,
                one.partition_max_bytes,
                one.current_leader_epoch,
                one.last_fetched_epoch,
                one.log_start_offset,
                one.high_watermark,
            )
            wanted[row.key] = row
    forgotten: list[Key] = [
        (topic.topic_id if by_id else topic.topic, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]
    return list(wanted.values()), forgotten


def only_error(context: RequestContext, code: ErrorCode) -> Encoded:
    topics: list[tuple[str | bytes, list[PartitionData[ResponsePart]]]] = []
    parts = fetch_response.encode(context.version, context.correlation_id, topics, error_code=code)
    return Encoded(list(parts))


class Fetch:
    """One request on its way: read, perhaps wait, read again, answer."""

    def __init__(
        self, services: FetchServices, context: RequestContext, request: FetchRequest, session: FetchContext
    ) -> None:
        self.services = services
        self.context = context
        self.session = session
        self.read_committed = request.isolation_level == READ_COMMITTED
        self.min_bytes = request.min_bytes
        self.max_bytes = min(request.max_bytes, services.fetch_max_bytes)
        if context.version < 4:
            self.max_bytes = min(self.max_bytes, _CONVERTED_BYTES)
        self.replica_id = replica_id_of(context, request)
        # KIP-392: from v11 on consumers may read from any replica, and may be told which one is near them.
        self.any_replica = self.replica_id < 0 and context.version >= ANY_REPLICA
        self.rack = request.rack_id if services.rack_aware and self.any_replica else ""
        self.racks = services.nodes.racks() if self.rack else {}
        self.rows: list[tuple[PartitionFetch, PartitionData[ResponsePart]]] = []
        self.size = 0
        self.failed = False
        self.directs = False  # some reader should go elsewhere: to another replica, or another offset
        self.behind = False  # a follower does not know how far the high watermark is
        self.counted: dict[Key, int] = {}  # what there is to read while this waits, where there is anything
        self.total = 0
        self.ends: dict[Key, int] = {}  # where each read ended, for old clients only
        self.news: list[PartitionFetch] = []  # partitions of a follower that were idle when this was read

    @property
    def ready(self) -> bool:
        return self.failed or self.directs or self.size >= self.min_bytes or self.session.empty

    # ---- reading --------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Raises ColdRead where a read would wait for the disk."""
        self.reset()
        for wanted in self.session.rows:
            self.add(wanted, self.try_one(wanted))

    async def read_cold(self) -> Encoded:
        """The same in a thread, where waiting for the disk hurts nobody; there is something to read, so no waiting
        for more."""
        await self.read_rows_cold()
        return await self.answer_later()

    async def read_rows_cold(self) -> None:
        self.reset()
        loop = asyncio.get_running_loop()
        for wanted in self.session.rows:
            self.add(wanted, await loop.run_in_executor(None, self.try_one, wanted, True))

    def reset(self) -> None:
        self.rows = []
        self.size = 0
        self.failed = self.directs = self.behind = False

    def add(self, wanted: PartitionFetch, data: PartitionData[ResponsePart]) -> None:
        self.failed |= data.error_code != 0
        self.size += data.size
        self.directs |= _directs(data)
        self.behind |= _is_behind(wanted, data)
        self.rows.append((wanted, data))

    def try_one(self, wanted: PartitionFetch, may_block: bool = False) -> PartitionData[ResponsePart]:
        try:
            return self._read_one(wanted, may_block)
        except ApiError as error:
            return self._failure(wanted, error)

    def _failure(self, wanted: PartitionFetch, error: ApiError) -> PartitionData[ResponsePart]:
        leader = None
        if self.context.version >= WITH_NODES and error.code in _LED_ELSEWHERE:
            replicas, topic = self.services.replicas, wanted.topic
            name = replicas.name_of(topic) if isinstance(topic, bytes) else topic
            leader = replicas.current_leader(name, wanted.partition)
        return PartitionData(wanted.partition, error.code, *_NOTHING, None, 0, current_leader=leader)

    def _read_one(self, wanted: PartitionFetch, may_block: bool) -> PartitionData[ResponsePart]:
        partition = self.find(wanted)
        partition.check_epoch(wanted.current_leader_epoch)
        log = partition.online_log
        if self.replica_id >= 0:
            return self._read_for_follower(partition, log, wanted, may_block)
        if self.rack:
            near = self._preferred(partition, wanted)
            if near is not None:
                state = (log.high_watermark, log.last_stable_offset, log.log_start_offset)
                return PartitionData(wanted.partition, 0, *state, None, 0, preferred_read_replica=near)
        diverging = self._diverging(log, wanted)
        upto = log.last_stable_offset if self.read_committed else log.high_watermark
        state = (log.high_watermark, log.last_stable_offset, log.log_start_offset)
        if diverging is not None or wanted.fetch_offset == upto:
            aborted: Sequence[tuple[int, int]] | None = [] if self.read_committed else None
            return PartitionData(wanted.partition, 0, *state, None, 0, aborted, diverging)
        self._check_codec(log)
        result = log.read(
            wanted.fetch_offset,
            max(min(wanted.max_bytes, self.max_bytes - self.size), 0),
            upto=upto,
            # KIP-74: the first batch comes whole, so that one larger than the limit does not block its reader. To
            # clients of before that (v0-v2) Kafka sends a torn message, which most of them never get past.
            at_least_one=self.size == 0,
            may_block=may_block,
        )
        if self.context.version < 4:
            self.ends[wanted.key] = result.end_offset
        aborted = None
        if self.read_committed:
            aborted = log.aborted_transactions(wanted.fetch_offset, result.end_offset) if result.size else []
        return PartitionData(wanted.partition, 0, *state, result.slice, result.size, aborted)

    def _preferred(self, partition: Partition, wanted: PartitionFetch) -> int | None:
        if partition.followers is None:
            return None
        here = self.services.node_id
        return preferred_replica(partition.followers, here, self.rack, self.racks, wanted.fetch_offset)

    def begin_follower(self, request: FetchRequest) -> int:
        """Add the partitions of its session that are no longer idle; return its broker epoch."""
        epoch = request.replica_state.replica_epoch if self.context.version >= 15 else -1
        if self.session.session is not None:
            self.session.session.on_follower_request(epoch)
            self.session.session.on_wake = self.news.append
            self.session.refresh()
        return epoch

    def note_rows(self, rows: Iterable[PartitionFetch], broker_epoch: int) -> None:
        """A follower has everything before the offsets it asks for. Told once per request, however often it is read."""
        for wanted in rows:
            try:
                partition = self.find(wanted)
                partition.check_epoch(wanted.current_leader_epoch)
                if self._diverging(partition.online_log, wanted) is not None:
                    continue  # what it has is not what this log has
                proposal = partition.on_follower_fetch(
                    self.replica_id,
                    wanted.fetch_offset,
                    wanted.log_start_offset,
                    broker_epoch=broker_epoch,
                )
            except ApiError:
                continue  # told by the read
            if proposal is not None:
                self.services.isr.propose(partition, proposal)

    def _read_for_follower(
        self, partition: Partition, log: PartitionLog, wanted: PartitionFetch, may_block: bool
    ) -> PartitionData[ResponsePart]:
        """To the end of the log, and with the bounds of this one also where the follower is outside of them."""
        if partition.followers is None or self.replica_id not in partition.followers.followers:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        state = (log.high_watermark, log.last_stable_offset, log.log_start_offset)
        try:
            # First of all: with the high watermark alone, which a throttle lets through, it would take a tail of its own for committed.
            diverging = self._diverging(log, wanted)
            if diverging is not None:
                return PartitionData(wanted.partition, 0, *state, None, 0, None, diverging)
            if self._is_throttled(partition) and self.services.leader_throttle.exceeded:
                return PartitionData(wanted.partition, 0, *state, None, 0, None)
            room = max(min(wanted.max_bytes, self.max_bytes - self.size), 0)
            first = self.size == 0
            result = log.read(
                wanted.fetch_offset, room, upto=log.log_end_offset, at_least_one=first, may_block=may_block
            )
        except ApiError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            return PartitionData(wanted.partition, error.code, *state, None, 0)
        return PartitionData(wanted.partition, 0, *state, result.slice, result.size, None)

    def _is_throttled(self, partition: Partition) -> bool:
        """Reassignment traffic only: what is in sync is never held back."""
        throttle = self.services.leader_throttle
        return throttle.active and self.replica_id not in partition.isr and throttle.concerns(partition.tp)

    def find(self, wanted: PartitionFetch) -> Partition:
        replicas, topic = self.services.replicas, wanted.topic
        name = replicas.name_of(topic) if isinstance(topic, bytes) else topic
        find = replicas.replica if self.any_replica else replicas.leader
        return find(name, wanted.partition)

    def _diverging(self, log: PartitionLog, wanted: PartitionFetch) -> tuple[int, int] | None:
        """KIP-595: where the reader's last epoch ended here, if that is before its position."""
        if wanted.last_fetched_epoch < 0:
            return None
        epoch, end_offset = log.epochs.end_offset(wanted.last_fetched_epoch, log.log_end_offset)
        if epoch < 0:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
            return epoch, end_offset
        return None

    def _check_codec(self, log: PartitionLog) -> None:
        if self.context.version < 10 and log.config.compression_type == "zstd":
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)

    # ---- waiting --------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> DeferredResponse:
        """Until there is enough, something fails, or the time is over."""
        waiting = _Waiting(self, seconds, lambda: self._answer_waiting(later))
        later = DeferredResponse(waiting.abandon)
        return later

    def _answer_waiting(self, later: DeferredResponse) -> None:
        try:
            if not self.rows:
                self.session.refresh()
                self.read()
            answer = self.answer()
        except Exception:  # what failed fails again where somebody sees to it, or waits for the disk
            later.become(self._read_and_answer())
        else:
            later.deliver(answer)

    async def _read_and_answer(self) -> Encoded:
        self.session.refresh()
        try:
            self.read()
        except ColdRead:
            return await self.read_cold()
        return await self.answer_later()

    async def serve_old_client(self, seconds: float) -> Encoded:
        try:
            self.read()
        except ColdRead:
            return await self.read_cold()
        if self.ready or not seconds:
            return await self.answer_later()
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(self, seconds, lambda: _finish(woken))
        try:
            await woken
        finally:
            waiting.abandon()
        return await self._read_and_answer()

    def watch(self, changed: Watcher) -> list[Partition]:
        """From here on only sizes are kept, and changes counted one partition at a time."""
        rows = self.rows
        self.counted = {wanted.key: data.size for wanted, data in rows if data.size}
        self.total = self.size
        self.reset()
        watched = []
        for wanted, _ in rows:
            partition = self.find(wanted)
            partition.watch(changed, wanted)
            watched.append(partition)
        if self.replica_id >= 0:
            self._watch_idle(changed, watched)
        return watched

    def _watch_idle(self, changed: Watcher, watched: list[Partition]) -> None:
        """Count partitions that stop being idle, since the read and from now on, as changed."""

        def news(wanted: PartitionFetch) -> None:
            try:
                partition = self.find(wanted)
            except ApiError:
                pass  # told by the read
            else:
                partition.watch(changed, wanted)
                watched.append(partition)
            changed(wanted)

        if self.session.session is not None:
            self.session.session.on_wake = news
        for wanted in self.news:
            news(wanted)

    def stop_listening(self) -> None:
        if self.session.session is not None:
            self.session.session.on_wake = None

    def enough(self, wanted: PartitionFetch) -> bool:
        """After a change of one partition. Each is counted as if it were read first, so the sum may be a little above
        what one answer has room for, never below."""
        try:
            data = self.try_one(wanted)
        except ColdRead:
            return True
        self.total += data.size - self.counted.get(wanted.key, 0)
        self.counted[wanted.key] = data.size
        self.behind |= _is_behind(wanted, data)
        is_enough = data.error_code != 0 or self.total >= self.min_bytes or _directs(data)
        if is_enough and self.replica_id < 0 and len(self.session.rows) == 1:
            self.add(wanted, data)  # this is all there is to read
        return is_enough

    def forget(self) -> None:
        """What was read is to be read again: the answer comes later."""
        self.reset()

    # ---- answering ------------------------------------------------------------------------------------------

    async def answer_later(self) -> Encoded:
        if self.context.version < 4 and self.size:
            self.rows = [(wanted, await self.converted(wanted, data)) for wanted, data in self.rows]
        return self.answer()

    async def converted(
        self, wanted: PartitionFetch, data: PartitionData[ResponsePart]
    ) -> PartitionData[ResponsePart]:
        """For clients of before v2 batches. Nothing is left of control batches, which such a client could never step
        over: go on behind them."""
        while isinstance(data.records, FileSlice):
            behind = self.ends[wanted.key]
            data = await convert_for_old_client(
                self.services.convert_worker,
                data,
                data.records,
                first_offset=wanted.fetch_offset,
                magic=magic_of_version(self.context.version),
                max_decompressed_bytes=self.services.max_decompressed_bytes,
            )
            if data.size == 0 and not data.error_code and behind > wanted.fetch_offset:
                wanted = replace(wanted, fetch_offset=behind)
                data = await asyncio.get_running_loop().run_in_executor(None, self.try_one, wanted, True)
        return data

    def answer(self) -> Encoded:
        if self.session.session is not None:
            self.session.session.on_wake = None
        topics: dict[str | bytes, list[PartitionData[ResponsePart]]] = {}
        if self.replica_id >= 0 and self.services.leader_throttle.active:
            self.count_throttled()
        self.choose(self.rows, topics)
        parts = fetch_response.encode(
            self.context.version,
            self.context.correlation_id,
            list(topics.items()),
            session_id=self.session.session_id,
            nodes=self.leader_nodes() if self.failed else (),
        )
        return Encoded(list(parts))

    def choose(
        self,
        rows: Iterable[tuple[PartitionFetch, PartitionData[ResponsePart]]],
        topics: dict[str | bytes, list[PartitionData[ResponsePart]]],
    ) -> None:
        """Adds those that the answer tells of to their topics."""
        for wanted, data in rows:
            if self.session.must_include(
                wanted,
                data.error_code,
                data.size > 0,
                data.high_watermark,
                data.log_start_offset,
                # A follower that was told while it had something to cut, or in another epoch, did not take it in.
                redirects=_directs(data) or (self.replica_id >= 0 and _is_behind(wanted, data)),
            ):
                topics.setdefault(wanted.topic, []).append(data)
            elif self.replica_id >= 0:
                self._set_idle(wanted, data)

    def leader_nodes(self) -> Sequence[NodeEndpoint]:
        leaders = {data.current_leader[0] for _, data in self.rows if data.current_leader is not None}
        return self.services.nodes.leaders(leaders, self.context.connection.listener)

    def _set_idle(self, wanted: PartitionFetch, data: PartitionData[ResponsePart]) -> None:
        """A follower in the ISR that has everything, and knows it, is asked about again when there is news: with thousands of partitions
        most are silent most of the time."""
        if data.size or data.error_code or self.session.session is None or _is_behind(wanted, data):
            return
        try:
            partition = self.find(wanted)
        except ApiError:
            return
        log, followers = partition.log, partition.followers
        if log is None or followers is None or followers.proposal is not None:
            return
        follower = followers.followers.get(self.replica_id)
        has_all = log.log_end_offset == wanted.fetch_offset
        knows = (log.high_watermark, log.log_start_offset) == (data.high_watermark, data.log_start_offset)
        if follower is not None and self.replica_id in partition.isr and has_all and knows:
            partition.watch(self.session.session.wake, wanted)
            self.session.session.set_idle(wanted, partition, follower)

    def count_throttled(self) -> None:
        for wanted, data in self.rows:
            if data.size:
                try:
                    if self._is_throttled(self.find(wanted)):
                        self.services.leader_throttle.record(data.size)
                except ApiError:
                    pass  # gone meanwhile


class _Waiting:
    """A fetch that waits: told of changes, and by the clock. ``ready`` is called once, in a turn that has time for it."""

    __slots__ = ("_beginning", "_fetch", "_loop", "_over", "_ready", "_timer", "_watched")

    def __init__(self, fetch: Fetch, seconds: float, ready: Callable[[], None]) -> None:
        self._fetch = fetch
        self._ready: Callable[[], None] | None = ready
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(min(seconds, SOON_S) if fetch.behind else seconds, self._end)
        self._over, self._beginning = False, True
        self._watched = fetch.watch(self._changed)
        self._beginning = False

    def _changed(self, wanted: PartitionFetch) -> None:
        if self._over:
            return
        if self._beginning:
            self._loop.call_soon(self._changed, wanted)
            return
        behind = self._fetch.behind
        if self._fetch.enough(wanted):
            self._end()
        elif self._fetch.behind and not behind:
            self._timer.cancel()
            self._timer = self._loop.call_later(SOON_S, self._end)

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._timer.cancel()
            self._answer()

    def _answer(self) -> None:
        ready = self._ready
        if ready is None:
            return
        if has_time():
            self._ready = None
            self._unwatch()
            ready()
        else:
            self._fetch.forget()
            self._loop.call_soon(self._answer)

    def _unwatch(self) -> None:
        """Not before there is time for it: one append may end hundreds of waits for thousands of partitions each."""
        for partition in self._watched:
            partition.unwatch(self._changed)
        self._watched = []
        self._fetch.stop_listening()

    def abandon(self) -> None:
        """Nobody waits for it any more."""
        if self._ready is not None:
            self._ready = None
            self._over = True
            self._timer.cancel()
            self._unwatch()


def _directs(data: PartitionData[ResponsePart]) -> bool:
    return data.diverging is not None or data.preferred_read_replica >= 0


def _is_behind(wanted: PartitionFetch, data: PartitionData[ResponsePart]) -> bool:
    """KIP-1166: whether a follower would get on by hearing of the high watermark alone; or of where the log begins, which somebody may
    wait for who has deleted records."""
    if min(data.high_watermark, wanted.fetch_offset) > wanted.known_high_watermark:
        return True
    sent = wanted.sent_log_start_offset == data.log_start_offset
    return not sent and data.log_start_offset > wanted.log_start_offset >= 0


def _finish(woken: asyncio.Future[None]) -> None:
    if not woken.done():  # its connection may have been closed
        woken.set_result(None)
