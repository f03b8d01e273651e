"""One Fetch request: the partitions read so far, whether they are enough, and the response."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from millstream.broker.fetch import followers
from millstream.broker.fetch.followers import Row, is_behind
from millstream.broker.fetch.partition_reader import PartitionReader
from millstream.broker.net.context import RequestContext
from millstream.broker.net.responses import Encoded, ResponsePart
from millstream.core.errors import ErrorCode
from millstream.log.errors import ColdRead
from millstream.replication.fetch_session import FetchContext, Key, PartitionFetch
from millstream.wire import fetch_response
from millstream.wire.fetch_response import PartitionData
from millstream.wire.messages.fetch import FetchRequest
from millstream.wire.node_endpoints import NodeEndpoint

if TYPE_CHECKING:
    from millstream.broker.services import FetchServices

TopicData = dict[str | bytes, list[PartitionData[ResponsePart]]]


class Fetch:
    """Collects the partitions of a response.

    While a fetch is delayed, the data read is dropped and only the sizes are kept
    (``start_counting``). A change of a partition updates its size (``has_enough``).
    """

    def __init__(
        self,
        services: FetchServices,
        context: RequestContext,
        request: FetchRequest,
        session: FetchContext,
    ) -> None:
        self.services = services
        self.context = context
        self.session = session
        self.reader = PartitionReader(services, context, request)
        self.replica_id = self.reader.replica_id
        self.min_bytes = request.min_bytes
        self.rows: list[Row] = []
        self.size = 0
        self.failed = False
        # Whether a partition sends its reader to another replica or to another offset.
        self.redirects = False
        # Whether a follower has a stale high watermark or log start.
        self.behind = False
        # Sizes by partition, of those that have records, and their sum, while the fetch is delayed.
        self._counted: dict[Key, int] = {}
        self._total = 0
        # Partitions of a follower that stopped being idle after the read.
        self.woken: list[PartitionFetch] = []

    def begin_follower(self, request: FetchRequest) -> int:
        """Add the partitions of the session that are no longer idle; return the broker epoch."""
        epoch = followers.broker_epoch_of(request, self.context.version)
        if self.session.session is not None:
            self.session.session.on_follower_request(epoch)
            self.session.session.on_wake = self.woken.append
            self.session.refresh()
        return epoch

    # ---- reading ----

    @property
    def ready(self) -> bool:
        return self.failed or self.redirects or self.size >= self.min_bytes or self.session.empty

    def read(self) -> None:
        """Read all partitions; raise ColdRead if a read would wait for the disk."""
        read = self.reader.read
        for row in self.session.rows:
            self.add(row, read(row, self.size))

    async def read_in_thread(self) -> None:
        """Read all partitions again in a thread, where waiting for the disk blocks nothing else."""
        self.reset()
        loop = asyncio.get_running_loop()
        for row in self.session.rows:
            self.add(row, await loop.run_in_executor(None, self.reader.read, row, self.size, True))

    def reset(self) -> None:
        """Drop the partitions read."""
        self.rows = []
        self.size = 0
        self.failed = self.redirects = self.behind = False

    def add(self, row: PartitionFetch, data: PartitionData[ResponsePart]) -> None:
        self.failed |= data.error_code != 0
        self.size += data.size
        self.redirects |= _redirects(data)
        self.behind |= is_behind(row, data)
        self.rows.append((row, data))

    # ---- counting while delayed ----

    def start_counting(self) -> None:
        """Keep only the sizes of the partitions read."""
        self._counted = {row.key: data.size for row, data in self.rows if data.size}
        self._total = self.size
        self.reset()

    def has_enough(self, row: PartitionFetch) -> bool:
        """Read a changed partition, and return whether the fetch is ready now.

        Each partition is counted as if it were the first one read. The sum may exceed the room in
        one response a little, but is never below it.
        """
        try:
            data = self.reader.read(row, self.size)
        except ColdRead:
            return True
        self._total += data.size - self._counted.get(row.key, 0)
        self._counted[row.key] = data.size
        self.behind |= is_behind(row, data)
        enough = data.error_code != 0 or self._total >= self.min_bytes or _redirects(data)
        if enough and self.replica_id < 0 and len(self.session.rows) == 1:
            # The only partition of the fetch: the response needs no other read.
            self.add(row, data)
        return enough

    # ---- responding ----

    def respond(self) -> Encoded:
        """Encode the partitions read."""
        if self.session.session is not None:
            self.session.session.on_wake = None
        topics: TopicData = {}
        if self.replica_id >= 0 and self.services.leader_throttle.active:
            followers.count_throttled(self.reader, self.services.leader_throttle, self.rows)
        self.select(self.rows, topics)
        parts = fetch_response.encode(
            self.context.version,
            self.context.correlation_id,
            list(topics.items()),
            session_id=self.session.session_id,
            nodes=self.leader_nodes() if self.failed else (),
        )
        return Encoded(list(parts))

    def select(self, rows: Iterable[Row], topics: TopicData) -> None:
        """Add the partitions that the response must include to their topics."""
        for row, data in rows:
            if self.session.must_include(
                row,
                data.error_code,
                data.size > 0,
                data.high_watermark,
                data.log_start_offset,
                # A follower may have received these offsets and ignored them: while it had records
                # to truncate, or in another epoch.
                redirects=_redirects(data) or (self.replica_id >= 0 and is_behind(row, data)),
            ):
                topics.setdefault(row.topic, []).append(data)
            elif self.replica_id >= 0:
                followers.set_idle(self.reader, self.session.session, row, data)

    def leader_nodes(self) -> Sequence[NodeEndpoint]:
        leaders = {
            data.current_leader[0] for _, data in self.rows if data.current_leader is not None
        }
        return self.services.nodes.leaders(leaders, self.context.connection.listener)


def error_response(context: RequestContext, code: ErrorCode) -> Encoded:
    """Encode a response that has only an error code."""
    topics: list[tuple[str | bytes, list[PartitionData[ResponsePart]]]] = []
    parts = fetch_response.encode(context.version, context.correlation_id, topics, error_code=code)
    return Encoded(list(parts))


def _redirects(data: PartitionData[ResponsePart]) -> bool:
    return data.diverging is not None or data.preferred_read_replica >= 0
