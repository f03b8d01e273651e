"""Requests to other brokers, pipelined on one connection per broker and purpose.

A connection is opened when it is first needed, and again after a failure. It starts with
ApiVersions, as a client's does: brokers of different releases communicate during an upgrade. A
request has the newest version that both sides support. Responses may arrive in any order; the
correlation id matches them with requests. If a connection breaks, or a response does not arrive in
time, all its pending requests fail. It is then unknown whether the other side has acted, and the
caller decides what to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from millstream import __version__
from millstream.core.errors import ApiError, ErrorCode
from millstream.ports.network import Network, Stream
from millstream.wire import link
from millstream.wire.apis import BROKER_SOFTWARE, Api, api_of
from millstream.wire.frames import API_VERSIONS_KEY
from millstream.wire.link import Link
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from millstream.wire.schema import DecodeError, Struct

_CONNECT_TIMEOUT_S = 5.0
# Every release supports this version, and it names the client.
_FIRST_VERSION = 3
# The oldest versions that have the fields that brokers need: topic ids and the replica epoch, and
# the epochs of ISR members.
_OLDEST = {"Fetch": 15, "AlterPartition": 3}
MAX_RESPONSE_BYTES = 1 << 30


def software_version(version: str) -> str:
    """Return a version as KIP-511 allows it: no plus sign, which a build between releases has."""
    return version.replace("+", "-")


class PeerGone(ConnectionError):
    """The connection to a broker is lost, or it did not respond in time."""


class NoCommonVersion(PeerGone):
    """The releases of the two brokers have no version in common."""


class Peer:
    """One connection to one broker. A broken connection stays broken; close it when done."""

    def __init__(self, stream: Stream, client_id: str) -> None:
        self._stream = stream
        self._link: Link[asyncio.Future[Any]] = Link(
            client_id, max_response_bytes=MAX_RESPONSE_BYTES
        )
        self._link.versions[API_VERSIONS_KEY] = _FIRST_VERSION, _FIRST_VERSION
        self._unsent: list[memoryview] = []
        self._broken: Exception | None = None
        stream.watch_readable(self._on_readable)

    @property
    def broken(self) -> bool:
        return self._broken is not None

    async def negotiate_versions(self, timeout_s: float) -> None:
        """Request the versions that the other side supports."""
        request = ApiVersionsRequest(
            client_software_name=BROKER_SOFTWARE,
            client_software_version=software_version(__version__),
        )
        response: ApiVersionsResponse = await self.ask(request, timeout_s=timeout_s)
        if response.error_code:
            code = ErrorCode.of(response.error_code)
            self.close(PeerGone(f"its response to ApiVersions is {code.name}"))
        self._link.learn_versions(response)

    def _version(self, api: Api, version: int | None) -> int:
        """Return the newest version that both sides support, or the requested one if they do."""
        oldest = _OLDEST.get(api.name) if version is None else version
        try:
            return self._link.version(api, oldest=oldest, newest=version)
        except link.NoCommonVersion as error:
            raise NoCommonVersion(f"{error}: upgrade the older broker") from None

    async def ask(self, request: Struct, *, timeout_s: float, version: int | None = None) -> Any:
        """Send a request; return the decoded response, or raise PeerGone.

        Records in the response are views of the receive buffer.
        """
        api = api_of(request)
        future = self._send(request, self._version(api, version))
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            self.close(PeerGone(f"no response to {api.name} in {timeout_s:g} s"))
            raise PeerGone(f"no response to {api.name} in {timeout_s:g} s") from None

    def _send(self, request: Struct, version: int) -> asyncio.Future[Any]:
        if self._broken is not None:
            raise PeerGone(str(self._broken))
        future = asyncio.get_running_loop().create_future()
        idle = not self._unsent
        self._unsent.append(memoryview(self._link.request(request, version, future)))
        if idle:
            self._flush()
        return future

    def _flush(self) -> None:
        try:
            while self._unsent:
                sent = self._stream.send(self._unsent)
                if not sent:
                    self._stream.watch_writable(self._flush)
                    return
                while self._unsent and sent >= len(self._unsent[0]):
                    sent -= len(self._unsent.pop(0))
                if sent:
                    self._unsent[0] = self._unsent[0][sent:]
        except OSError as error:
            self.close(error)
            return
        self._stream.watch_writable(None)

    def _on_readable(self) -> None:
        link, receive = self._link, self._stream.receive_into
        try:
            while (count := receive(link.buffer)) is not None:
                frame = link.received(count)
                if frame is not None:
                    future, response = link.response(frame)
                    if not future.done():
                        future.set_result(response)
        except (OSError, DecodeError) as error:
            self.close(error)

    def close(self, why: Exception | None = None) -> None:
        if self._broken is not None:
            return
        self._broken = why or PeerGone("the connection was closed here")
        self._stream.close()
        for future in self._link.abandon():
            if not future.done():
                future.set_exception(PeerGone(str(self._broken)))
                future.exception()  # retrieved, even if the caller has gone


class Peers:
    """Connections to the other brokers, by purpose: a long poll must not delay other requests."""

    def __init__(self, network: Network, client_id: str) -> None:
        self._network = network
        self._client_id = client_id
        self._open: dict[tuple[str, str, int], Peer] = {}
        self._opening: dict[tuple[str, str, int], asyncio.Lock] = {}

    async def ask(
        self,
        purpose: str,
        host: str,
        port: int,
        request: Struct,
        *,
        timeout_s: float,
        version: int | None = None,
    ) -> Any:
        """Send a request and return the response; raise OSError (PeerGone or others) on failure."""
        peer = await self._peer((purpose, host, port))
        return await peer.ask(request, timeout_s=timeout_s, version=version)

    async def _peer(self, key: tuple[str, str, int]) -> Peer:
        async with self._opening.setdefault(key, asyncio.Lock()):
            peer = self._open.get(key)
            if peer is None or peer.broken:
                stream = await self._network.connect(key[1], key[2], _CONNECT_TIMEOUT_S)
                peer = Peer(stream, self._client_id)
                try:
                    await peer.negotiate_versions(_CONNECT_TIMEOUT_S)
                except BaseException:
                    peer.close()
                    raise
                self._open[key] = peer
            return peer

    def drop(self, purposes: Collection[str], *, keep: tuple[str, int] | None = None) -> None:
        """Close the connections for these purposes, except those to the address ``keep``.

        Requests that wait for a response fail.
        """
        for purpose, host, port in list(self._open):
            if purpose in purposes and (host, port) != keep:
                self._open.pop((purpose, host, port)).close()

    def close(self) -> None:
        for peer in self._open.values():
            peer.close()
        self._open.clear()


def check(error_code: int) -> None:
    """Raise the ApiError of a response."""
    if error_code:
        raise ApiError(ErrorCode.of(error_code))
