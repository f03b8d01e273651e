"""How simulated clients talk: one pipelined connection per broker, metadata, coordinators. No retries here: who asks decides.

``NotSent`` says that a request never left, so it did not happen; ``Lost`` that nobody knows.
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
    """The request never left this client."""


class Lost(Exception):
    """The request may or may not have been carried out."""


class Refused(Exception):
    """An answer with an error that the caller has no other use for."""

    def __init__(self, code: int) -> None:
        self.code = ErrorCode.of(code)
        super().__init__(self.code.name)


class Channel:
    """A connection; answers are matched to requests by their correlation ids."""

    def __init__(self, stream: Stream, client_id: str) -> None:
        self._stream = stream
        self._link: Link[asyncio.Future[Any]] = Link(client_id, max_response_bytes=_MAX_RESPONSE_BYTES)
        self._out = bytearray()
        self._buffer = memoryview(bytearray(65536))
        self.closed = False
        stream.watch_readable(self._on_readable)

    def send(self, message: Struct, version: int) -> asyncio.Future[Any]:
        """Sends a request; the future gets the answer, or Lost."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.closed:
            answer.set_exception(NotSent("closed"))
            return answer
        self._out += self._link.request(message, version, answer)
        self._flush()
        return answer

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
            answer, message = self._link.response(frame)
            if not answer.done():
                answer.set_result(message)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._stream.close()
        for answer in self._link.abandon():
            if not answer.done():
                answer.set_exception(Lost("connection lost"))


class Client:
    """What every simulated client is made of."""

    def __init__(self, process: Process, name: str, bootstrap: list[Address]) -> None:
        self.process = process
        self.name = name
        self._bootstrap = bootstrap
        self._channels: dict[Address, Channel] = {}
        self._nodes: dict[int, Address] = {}
        self._leaders: dict[tuple[str, int], int] = {}
        # As librdkafka since 2.1: an answer with an older leader epoch than one that was seen does not count.
        self.keeps_epochs = False
        self._newest: dict[tuple[bytes, int], tuple[int, int]] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}
        self._dice = process.entropy.dice

    @property
    def now(self) -> float:
        return self.process.loop.time()

    async def channel(self, address: Address) -> Channel:
        """Raises NotSent where there is none to be had."""
        found = self._channels.get(address)
        if found is not None and not found.closed:
            return found
        try:
            stream = await self.process.network.connect(*address, _CONNECT_S)
        except OSError as error:
            raise NotSent(str(error)) from None
        made = self._channels[address] = Channel(stream, self.name)
        return made

    async def ask(self, address: Address, message: Struct, version: int, timeout_s: float = 5.0) -> Any:
        """The answer; raises NotSent or Lost. A connection that does not answer in time is given up."""
        channel = await self.channel(address)
        try:
            async with asyncio.timeout(timeout_s):
                return await channel.send(message, version)
        except TimeoutError:
            channel.close()
            raise Lost("no answer in time") from None

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()

    # ---- where to ask ---------------------------------------------------------------------------------------

    async def leader(self, topic: str, partition: int) -> Address:
        """Raises NotSent while nobody leads, or nobody can be asked."""
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
        answer = await self._ask_any(request, 12)
        self._nodes = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        for topic in answer.topics:
            for row in topic.partitions:
                key, told = (bytes(topic.topic_id), row.partition_index), (row.leader_epoch, row.leader_id)
                newest = self._newest.get(key, told)
                if told[0] >= newest[0] or not self.keeps_epochs:
                    newest = told
                self._newest[key] = newest
                self._leaders[topic.name, row.partition_index] = newest[1]

    async def _ask_any(self, request: Struct, version: int) -> Any:
        addresses = list(dict.fromkeys([*self._nodes.values(), *self._bootstrap]))
        self._dice.shuffle(addresses)
        for address in addresses:
            try:
                return await self.ask(address, request, version)
            except (NotSent, Lost):
                continue  # these requests change nothing
        raise NotSent("no broker answers")

    async def coordinator(self, kind: int, key: str) -> Address:
        found = self._coordinators.get((kind, key))
        if found is None:
            answer = await self._ask_any(FindCoordinatorRequest(key=key, key_type=kind), 3)
            if answer.error_code:
                raise Refused(answer.error_code)
            found = self._coordinators[kind, key] = (answer.host, answer.port)
        return found

    def forget_coordinator(self, kind: int, key: str) -> None:
        self._coordinators.pop((kind, key), None)

    async def back_off(self) -> None:
        await asyncio.sleep(0.05 + 0.2 * self._dice.random())


def split_key(key: str) -> tuple[str, int]:
    """ "events-3" is partition 3 of events."""
    topic, _, partition = key.rpartition("-")
    return topic, int(partition)
