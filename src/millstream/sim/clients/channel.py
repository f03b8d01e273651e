"""The protocol of simulated clients: one pipelined connection per broker, metadata, coordinators.

Nothing is retried here; the caller decides. ``NotSent`` means that the request was not sent and so
did not happen. ``Lost`` means that its outcome is unknown.
"""

from __future__ import annotations

import asyncio
from typing import Any

from millstream.core.errors import ErrorCode
from millstream.ports.network import Stream
from millstream.sim.world.machines import Process
from millstream.wire.link import Link
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.schema import Struct

Address = tuple[str, int]

_CONNECT_S = 3.0
_MAX_RESPONSE_BYTES = 1 << 30
GROUP, TRANSACTION = 0, 1


class NotSent(Exception):
    """The request was not sent."""


class Lost(Exception):
    """The request may or may not have been executed."""


class Rejected(Exception):
    """A response with an error that the caller does not handle."""

    def __init__(self, code: int) -> None:
        self.code = ErrorCode.of(code)
        super().__init__(self.code.name)


class Channel:
    """A connection. Responses are matched to requests by their correlation ids."""

    def __init__(self, stream: Stream, client_id: str) -> None:
        self._stream = stream
        self._link: Link[asyncio.Future[Any]] = Link(
            client_id, max_response_bytes=_MAX_RESPONSE_BYTES
        )
        self._out = bytearray()
        self._buffer = memoryview(bytearray(65536))
        self.closed = False
        stream.watch_readable(self._on_readable)

    def send(self, message: Struct, version: int) -> asyncio.Future[Any]:
        """Send a request. The future gets the response, or Lost."""
        response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.closed:
            response.set_exception(NotSent("closed"))
            return response
        self._out += self._link.request(message, version, response)
        self._flush()
        return response

    def _flush(self) -> None:
        try:
            while self._out:
                sent = self._stream.send([bytes(self._out)])
                if not sent:
                    self._stream.watch_writable(self._on_writable)
                    return
                del self._out[:sent]
        except OSError:
            self.close()

    def _on_writable(self) -> None:
        self._stream.watch_writable(None)
        self._flush()

    def _on_readable(self) -> None:
        try:
            count = self._stream.receive_into(self._buffer)
        except OSError:
            count = 0
        if count is None:
            return
        if count == 0:
            self.close()
            return
        for frame in self._link.feed(self._buffer[:count]):
            response, message = self._link.response(frame)
            if not response.done():
                response.set_result(message)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._stream.close()
        for response in self._link.abandon():
            if not response.done():
                response.set_exception(Lost("connection lost"))


class Client:
    """The base of every simulated client."""

    def __init__(self, process: Process, name: str, bootstrap: list[Address]) -> None:
        self.process = process
        self.name = name
        self._bootstrap = bootstrap
        self._channels: dict[Address, Channel] = {}
        self._nodes: dict[int, Address] = {}
        self._leaders: dict[tuple[str, int], int] = {}
        # As librdkafka since 2.1: ignore metadata with an older leader epoch than one already seen.
        self.keeps_epochs = False
        self._newest: dict[tuple[bytes, int], tuple[int, int]] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}
        self._dice = process.entropy.dice

    @property
    def now(self) -> float:
        return self.process.loop.time()

    async def channel(self, address: Address) -> Channel:
        """Return a connection. Raises NotSent if none can be made."""
        channel = self._channels.get(address)
        if channel is not None and not channel.closed:
            return channel
        try:
            stream = await self.process.network.connect(*address, _CONNECT_S)
        except OSError as error:
            raise NotSent(str(error)) from None
        channel = self._channels[address] = Channel(stream, self.name)
        return channel

    async def request(
        self, address: Address, message: Struct, version: int, timeout_s: float = 5.0
    ) -> Any:
        """Return the response. Raises NotSent or Lost.

        A connection without a response in time is closed.
        """
        channel = await self.channel(address)
        try:
            async with asyncio.timeout(timeout_s):
                return await channel.send(message, version)
        except TimeoutError:
            channel.close()
            raise Lost("no response in time") from None

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()

    # -- leaders and coordinators

    async def leader(self, topic: str, partition: int) -> Address:
        """Return the address of the leader.

        Raises NotSent if there is no leader, or no broker responds.
        """
        node = self._leaders.get((topic, partition), -1)
        if node not in self._nodes:
            await self.refresh([topic])
            node = self._leaders.get((topic, partition), -1)
        if node not in self._nodes:
            raise NotSent(f"{topic}-{partition} has no leader")
        return self._nodes[node]

    def address_of(self, node: int) -> Address | None:
        return self._nodes.get(node)

    def forget_leader(self, topic: str, partition: int) -> None:
        self._leaders.pop((topic, partition), None)

    async def refresh(self, topics: list[str]) -> None:
        rows = [MetadataRequestTopic(name=topic) for topic in topics]
        request = MetadataRequest(topics=rows, allow_auto_topic_creation=False)
        response = await self.request_any(request, 12)
        self._nodes = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        for topic in response.topics:
            for row in topic.partitions:
                key, leader = (
                    (bytes(topic.topic_id), row.partition_index),
                    (row.leader_epoch, row.leader_id),
                )
                newest = self._newest.get(key, leader)
                if leader[0] >= newest[0] or not self.keeps_epochs:
                    newest = leader
                self._newest[key] = newest
                self._leaders[topic.name, row.partition_index] = newest[1]

    async def request_any(self, request: Struct, version: int) -> Any:
        addresses = list(dict.fromkeys([*self._nodes.values(), *self._bootstrap]))
        self._dice.shuffle(addresses)
        for address in addresses:
            try:
                return await self.request(address, request, version)
            except (NotSent, Lost):
                continue  # these requests change nothing
        raise NotSent("no broker responds")

    async def coordinator(self, kind: int, key: str) -> Address:
        address = self._coordinators.get((kind, key))
        if address is None:
            response = await self.request_any(FindCoordinatorRequest(key=key, key_type=kind), 3)
            if response.error_code:
                raise Rejected(response.error_code)
            address = self._coordinators[kind, key] = (response.host, response.port)
        return address

    def forget_coordinator(self, kind: int, key: str) -> None:
        self._coordinators.pop((kind, key), None)

    async def back_off(self) -> None:
        await asyncio.sleep(0.05 + 0.2 * self._dice.random())


def split_key(key: str) -> tuple[str, int]:
    """ "events-3" is partition 3 of events."""
    topic, _, partition = key.rpartition("-")
    return topic, int(partition)
