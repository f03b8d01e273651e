"""Faults of a broker in this process: lost, delayed and refused requests and responses.

    with kafka.faults.drop_response("Produce", times=1):
        run_my_service(kafka.bootstrap)  # the records are written, but the service must retry

A fault is active until the end of its ``with`` block, its ``end()``, or until it has happened
``times`` times. APIs have the names of Kafka's protocol (docs/reference/apis.md).
"""

from __future__ import annotations

import asyncio
import difflib
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from millstream.broker.net.connection import Connection, Handle
from millstream.broker.net.context import RequestContext
from millstream.broker.net.dispatch import encode
from millstream.broker.net.responses import (
    CloseConnection,
    DeferredResponse,
    Encoded,
    FinishedResponse,
    NoResponse,
    Outcome,
    Pipelined,
)
from millstream.core.errors import ApiError, ErrorCode
from millstream.testing.refusal import refusal
from millstream.wire.apis import APIS, BY_KEY
from millstream.wire.frames import parse_request_header
from millstream.wire.messages.produce import ProduceRequest

_KEYS = {api.name: api.key for api in APIS}
PATIENCE_S = 30.0

# Handles a request in place of the broker. Arguments: the broker's handler, connection, frame.
Act = Callable[[Handle, Connection, memoryview], Any]
# Arguments: name or id of the topic, partition, batch, reason.
NoteRefusal = Callable[[str | bytes, int, memoryview, ApiError], None]


class Fault:
    """A fault. ``happened`` counts its occurrences; ``wait`` waits for the first."""

    def __init__(
        self, faults: Faults, key: int | None, times: int | None, client_id: str | None, act: Act
    ):
        self.happened = 0
        self.act = act
        self._faults = faults
        self._key = key
        self._left = times
        self._client_id = client_id
        self._first = threading.Event()

    def takes(self, frame: memoryview) -> bool:
        """Return whether the fault applies to this request, and count it."""
        key, _version, _correlation, client_id, _body = parse_request_header(frame)
        if (
            self._key not in (None, key)
            or self._client_id not in (None, client_id)
            or self._left == 0
        ):
            return False
        if self._left is not None:
            self._left -= 1
        self.happened += 1
        self._first.set()
        return True

    def wait(self, timeout_s: float = PATIENCE_S) -> None:
        if not self._first.wait(timeout_s):
            raise TimeoutError(f"the fault did not happen within {timeout_s:.0f} s")

    def end(self) -> None:
        self._faults.forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


class Faults:
    """The faults of a broker. Added by the test's thread, read by the broker's."""

    def __init__(self) -> None:
        self._active: tuple[Fault, ...] = ()
        # Informs the broker about a batch that was refused in its name.
        self.note_refusal: NoteRefusal = lambda topic, index, records, error: None

    def wrap(self, handle: Handle) -> Handle:
        """Return the broker's request handler with these faults in front of it."""

        def handle_or_fail(connection: Connection, frame: memoryview) -> Any:
            for fault in self._active:
                if fault.takes(frame):
                    return fault.act(handle, connection, frame)
            return handle(connection, frame)

        return handle_or_fail

    def drop_request(
        self, api: str | None = None, *, times: int | None = 1, client_id: str | None = None
    ) -> Fault:
        """Close the connection instead of handling the request."""
        return self._add(api, times, client_id, _drop_request)

    def drop_response(
        self, api: str | None = None, *, times: int | None = 1, client_id: str | None = None
    ) -> Fault:
        """Handle the request, but close the connection instead of sending the response."""
        return self._add(api, times, client_id, _drop_response)

    def delay(
        self,
        api: str | None,
        seconds: float,
        *,
        times: int | None = None,
        client_id: str | None = None,
    ) -> Fault:
        """Delay the request and all later ones on its connection."""
        if seconds < 0:
            raise ValueError(f"a delay must not be negative: {seconds} s")

        def act(
            handle: Handle, connection: Connection, frame: memoryview
        ) -> Awaitable[FinishedResponse | Pipelined]:
            return _delayed(seconds, handle, connection, memoryview(bytearray(frame)))

        return self._add(api, times, client_id, act)

    def error(
        self,
        api: str,
        code: ErrorCode | str | int,
        *,
        times: int | None = 1,
        client_id: str | None = None,
    ) -> Fault:
        """Refuse the request with this error (name or code of Kafka) instead of handling it."""
        error_code = _error(code)

        def act(handle: Handle, connection: Connection, frame: memoryview) -> Encoded | NoResponse:
            return self._refuse(connection, frame, error_code)

        return self._add(api, times, client_id, act)

    def _refuse(
        self, connection: Connection, frame: memoryview, code: ErrorCode
    ) -> Encoded | NoResponse:
        key, version, correlation_id, client_id, body = parse_request_header(frame)
        api = BY_KEY[key]
        request, _end = api.request_class().decode(frame, version, body)
        if isinstance(request, ProduceRequest):
            self._note(request, code)
            if request.acks == 0:
                return NoResponse()
        context = RequestContext(connection, version, correlation_id, client_id)
        return encode(api, context, refusal(api, version, request, code))

    def _note(self, request: ProduceRequest, code: ErrorCode) -> None:
        """Inform the broker, which then refuses in-flight batches after a refused one."""
        for topic in request.topic_data:
            for partition in topic.partition_data:
                if partition.records:
                    self.note_refusal(
                        topic.name or topic.topic_id,
                        partition.index,
                        memoryview(partition.records),
                        ApiError(code),
                    )

    def clear(self) -> None:
        """End all faults."""
        self._active = ()

    def forget(self, fault: Fault) -> None:
        self._active = tuple(active for active in self._active if active is not fault)

    def _add(self, api: str | None, times: int | None, client_id: str | None, act: Act) -> Fault:
        if times is not None and times < 1:
            raise ValueError(f"times must be at least 1, or None for every request, not {times}")
        fault = Fault(self, None if api is None else _key(api), times, client_id, act)
        self._active = (*self._active, fault)
        return fault


def _key(api: str) -> int:
    if api not in _KEYS:
        close = difflib.get_close_matches(api, _KEYS, 1)
        raise ValueError(
            f"unknown API {api!r}" + (f"; did you mean {close[0]!r}?" if close else "")
        )
    return _KEYS[api]


def _error(code: ErrorCode | str | int) -> ErrorCode:
    try:
        return ErrorCode[code] if isinstance(code, str) else ErrorCode.of(code)
    except (KeyError, ValueError):
        raise ValueError(f"unknown error {code!r} of Kafka's protocol") from None


def _drop_request(handle: Handle, connection: Connection, frame: memoryview) -> Any:
    raise CloseConnection("request dropped by a test before it was handled")


def _drop_response(handle: Handle, connection: Connection, frame: memoryview) -> Any:
    result = handle(connection, frame)
    if isinstance(result, Encoded | NoResponse):
        raise CloseConnection("response dropped by a test")
    if isinstance(result, DeferredResponse):
        result = Pipelined(result)
    if isinstance(result, Pipelined):
        return Pipelined(_closing(connection, result.response), result.passed_by)
    return _closing(connection, result)


async def _closing(
    connection: Connection, response: Awaitable[FinishedResponse | Pipelined]
) -> NoResponse:
    outcome = await response
    if isinstance(outcome, Pipelined):
        await outcome.response
    connection.close()
    return NoResponse()


async def _delayed(
    seconds: float, handle: Handle, connection: Connection, frame: memoryview
) -> FinishedResponse | Pipelined:
    await asyncio.sleep(seconds)
    try:
        result: Outcome = handle(connection, frame)
    except CloseConnection:
        connection.close()
        return NoResponse()
    if isinstance(result, Encoded | NoResponse | Pipelined):
        return result
    return Pipelined(result) if isinstance(result, DeferredResponse) else await result
