"""The client's side of a connection without a connection: versions, requests, frames, responses."""

from __future__ import annotations

import random

import pytest

from millstream.wire.apis import APIS, BY_NAME, api_of
from millstream.wire.frames import begin_response, finish_response, parse_request_header
from millstream.wire.link import Link, NoCommonVersion
from millstream.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from millstream.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.messages.produce import ProduceRequest
from millstream.wire.schema import DecodeError, Struct

FETCH, HEARTBEAT = BY_NAME["Fetch"], BY_NAME["Heartbeat"]
CLASSIC, FLEXIBLE = 3, 4  # versions of Heartbeat
MAX_BYTES = 1 << 20


def new_link(*, in_order: bool = False) -> Link[str]:
    return Link("ällo", max_response_bytes=MAX_BYTES, in_order=in_order)


def answer(request: bytes, response: Struct) -> bytes:
    """The whole frame that a broker would send."""
    key, version, number, _client_id, _body = parse_request_header(memoryview(request)[4:])
    return bytes(finish_response(begin_response(key, version, number) + response.encode(version)))


def heartbeat(link: Link[str], waiter: str, version: int = FLEXIBLE) -> bytes:
    return link.request(HeartbeatRequest(group_id="g", member_id="m"), version, waiter)


def frames_of(link: Link[str], data: bytes) -> list[memoryview]:
    return list(link.feed(memoryview(data)))


# ---- versions ----


@pytest.mark.parametrize(
    ("served", "oldest", "newest", "expected"),
    [
        ((0, 99), None, None, FETCH.newest),
        ((4, 6), None, None, 6),
        ((0, 99), None, 7, 7),
        ((0, 99), 9, 9, 9),
        ((5, 9), 9, None, 9),
    ],
)
def test_newest_common_version_is_chosen(
    served: tuple[int, int], oldest: int | None, newest: int | None, expected: int
) -> None:
    link = new_link()
    link.versions[FETCH.key] = served
    assert link.version(FETCH, oldest=oldest, newest=newest) == expected


@pytest.mark.parametrize(
    ("served", "oldest", "newest"),
    [
        (None, None, None),
        ((0, 8), 9, None),
        ((90, 99), None, None),
        ((10, 12), None, 9),
    ],
)
def test_disjoint_versions_raise_with_both_ranges(
    served: tuple[int, int] | None, oldest: int | None, newest: int | None
) -> None:
    link = new_link()
    if served is not None:
        link.versions[FETCH.key] = served
    with pytest.raises(NoCommonVersion, match="Fetch") as raised:
        link.version(FETCH, oldest=oldest, newest=newest)
    assert raised.value.theirs == served


def test_versions_are_learned_from_an_api_versions_response() -> None:
    link = new_link()
    request = link.request(ApiVersionsRequest(), 3, "versions")
    rows = [ApiVersion(api_key=FETCH.key, min_version=4, max_version=11)]
    (frame,) = frames_of(link, answer(request, ApiVersionsResponse(api_keys=rows)))
    waiter, response = link.response(frame)
    link.learn_versions(response)
    assert (waiter, link.versions, link.version(FETCH)) == ("versions", {FETCH.key: (4, 11)}, 11)


# ---- requests ----


@pytest.mark.parametrize("version", [CLASSIC, FLEXIBLE])
def test_request_frame_is_read_back_by_the_broker_side(version: int) -> None:
    link = new_link()
    for number in (1, 2):
        frame = heartbeat(link, "w", version)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        body = memoryview(frame)[4:]
        *header, at = parse_request_header(body)
        assert header == [HEARTBEAT.key, version, number, "ällo"]
        message, end = HeartbeatRequest.decode(body, version, at)
        assert (message.group_id, end) == ("g", len(body))


def test_header_begins_a_request_that_the_caller_encodes() -> None:
    link = new_link()
    message = ProduceRequest(acks=-1, timeout_ms=1, topic_data=[])
    body = bytes(message.encode(12))
    own = link.header(BY_NAME["Produce"], 12, "own") + body
    assert own == new_link().request(message, 12, "other")[4:]
    assert not link.idle


def test_message_that_cannot_be_encoded_leaves_nothing_pending() -> None:
    link = new_link()
    with pytest.raises(AttributeError):
        link.request(HeartbeatRequest(group_id=object()), FLEXIBLE, "w")  # type: ignore[arg-type]
    assert link.idle


def test_every_api_is_known_by_the_name_of_its_request() -> None:
    assert api_of(MetadataRequest()) is BY_NAME["Metadata"]
    assert [api_of(api.request_class()()) for api in APIS] == list(APIS)


# ---- responses ----


@pytest.mark.parametrize("version", [CLASSIC, FLEXIBLE])
def test_responses_find_their_requests_in_any_order(version: int) -> None:
    link = new_link()
    requests = {name: heartbeat(link, name, version) for name in "abc"}
    for name, code in (("b", 1), ("c", 2), ("a", 3)):
        (frame,) = frames_of(link, answer(requests[name], HeartbeatResponse(error_code=code)))
        waiter, response = link.response(frame)
        assert (waiter, response.error_code) == (name, code)
    assert link.idle


def test_link_in_order_refuses_a_response_that_overtakes() -> None:
    link = new_link(in_order=True)
    heartbeat(link, "first")
    second = heartbeat(link, "second")
    (frame,) = frames_of(link, answer(second, HeartbeatResponse()))
    with pytest.raises(DecodeError, match="request 2 instead of 1"):
        link.response(frame)


@pytest.mark.parametrize("in_order", [False, True])
def test_response_without_a_request_is_refused(in_order: bool) -> None:
    link = new_link(in_order=in_order)
    request = heartbeat(new_link(), "of another link")
    (frame,) = frames_of(link, answer(request, HeartbeatResponse()))
    with pytest.raises(DecodeError, match="not pending"):
        link.response(frame)


def test_abandoned_requests_return_their_waiters_once() -> None:
    link = new_link()
    for name in "ab":
        heartbeat(link, name)
    assert link.abandon() == ["a", "b"]
    assert link.idle and link.abandon() == []


@pytest.mark.parametrize("seed", range(20))
def test_frames_are_the_same_however_the_bytes_arrive(seed: int) -> None:
    dice = random.Random(seed)
    link = new_link()
    codes = [dice.randrange(100) for _ in range(8)]
    data = b"".join(
        answer(heartbeat(link, str(code)), HeartbeatResponse(error_code=code)) for code in codes
    )
    got: list[tuple[str, int]] = []
    while data:
        if dice.random() < 0.5:  # into the link's own memory
            count = min(dice.randint(1, 9), len(link.buffer), len(data))
            link.buffer[:count] = data[:count]
            frame = link.received(count)
            frames = [] if frame is None else [frame]
        else:
            count = min(dice.randint(1, 40), len(data))
            frames = frames_of(link, data[:count])
        data = data[count:]
        got += [(waiter, response.error_code) for waiter, response in map(link.response, frames)]
    assert got == [(str(code), code) for code in codes]


@pytest.mark.parametrize("size", [-1, 0, 3, MAX_BYTES + 1])
def test_impossible_frame_size_is_refused_before_memory_is_allocated(size: int) -> None:
    link = new_link()
    link.allocate = lambda count: pytest.fail(f"{count} bytes")
    with pytest.raises(DecodeError, match=f"{size} bytes"):
        frames_of(link, size.to_bytes(4, "big", signed=True))


def test_end_of_stream_raises_also_between_frames() -> None:
    with pytest.raises(ConnectionResetError):
        new_link().received(0)


def test_response_memory_can_be_reused() -> None:
    link, memory = new_link(), bytearray(100)
    link.allocate = lambda count: memoryview(memory)[:count]
    for code in (5, 6):
        (frame,) = frames_of(link, answer(heartbeat(link, "w"), HeartbeatResponse(error_code=code)))
        assert frame.obj is memory
        assert link.response(frame)[1].error_code == code
