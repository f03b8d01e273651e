"""The operations that are counted, by name."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from bench.counts.counter import Counts
from bench.counts.world import World
from bench.load import frames, group_frames
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest

Frames = Callable[[int], Sequence[bytes]]
GROUP = "readers"
MB = 1 << 20
CREATE_TOPICS = 19


class Broker(Protocol):
    """A broker in this process or another."""

    def ask(self, frame: bytes) -> bytes:
        """Return the response to a frame."""


class Work(NamedTuple):
    """An operation.

    ``prepare`` returns a function that builds the frames, given the number of the repetition.
    ``error_at`` is the position of the error code in the response to the last frame.
    """

    title: str
    prepare: Callable[[Broker], Frames]
    error_at: int
    megabytes: int = 0


def error_of(work: Work, response: bytes) -> int:
    return int.from_bytes(response[work.error_at : work.error_at + 2], "big", signed=True)


def _topic(world: Broker, name: str) -> str:
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1)],
        timeout_ms=30_000,
    )
    world.ask(frames.request(CREATE_TOPICS, 4, 1, request.encode(4)))
    # It exists when the response arrives, and gets a leader a moment later.
    at = frames.error_position(frames.PRODUCE, name)
    while any(world.ask(_produce(name, [b"first"]))[at : at + 2]):
        time.sleep(0.01)
    return name


def _produce(topic: str, values: list[bytes], acks: int = 1) -> bytes:
    return frames.produce(topic, 0, frames.record_batch(values, int(time.time() * 1000)), acks=acks)


def _producing(title: str, topic: str, size: int, acks: int = 1) -> Work:
    def prepare(world: Broker) -> Frames:
        _topic(world, topic)
        return lambda number: [_produce(topic, [bytes(size)], acks)]

    return Work(title, prepare, frames.error_position(frames.PRODUCE, topic), round(size / MB))


def _fetching(title: str, topic: str, size: int) -> Work:
    def prepare(world: Broker) -> Frames:
        _topic(world, topic)
        world.ask(_produce(topic, [bytes(size)]))
        frame = frames.fetch(topic, 0, 1, 2 * MB)
        assert len(world.ask(frame)) > size
        return lambda number: [frame]

    return Work(title, prepare, frames.error_position(frames.FETCH, topic), round(size / MB))


def _tailing(world: Broker) -> Frames:
    """A fetch that waits, and a record that completes it.

    They share a connection, so the response to the fetch is sent first.
    """
    topic = _topic(world, "tail")
    return lambda number: [
        _waiting_fetch(topic, 1 + number),
        _produce(topic, [bytes(100)]),
    ]


def _waiting_fetch(topic: str, offset: int) -> bytes:
    frame = bytearray(frames.fetch(topic, 0, offset, MB))
    at = 4 + 10 + len(frames.CLIENT_ID) + 4  # length, header, replica id
    frame[at : at + 4] = (30_000).to_bytes(4, "big")
    return bytes(frame)


def _coordinator(world: Broker) -> None:
    for frame in (
        group_frames.find_coordinator(GROUP),
        group_frames.heartbeat(GROUP, -1, "nobody"),
    ):
        while group_frames.heartbeat_error(world.ask(frame)) in group_frames.NOT_YET:
            time.sleep(0.01)


def _beating(world: Broker) -> Frames:
    _coordinator(world)
    topic = _topic(world, "heartbeat")
    metadata = group_frames.subscription(topic)
    first_join = group_frames.joined(world.ask(group_frames.join(GROUP, "", "range", metadata)))
    joined = group_frames.joined(
        world.ask(group_frames.join(GROUP, first_join.member_id, "range", metadata))
    )
    plan = {joined.member_id: group_frames.assignment(topic, [0])}
    world.ask(group_frames.sync(GROUP, joined.generation, joined.member_id, plan))
    frame = group_frames.heartbeat(GROUP, joined.generation, joined.member_id)
    assert group_frames.heartbeat_error(world.ask(frame)) == group_frames.NONE
    return lambda number: [frame]


def _committing(world: Broker) -> Frames:
    _coordinator(world)
    topic = _topic(world, "commit")
    return lambda number: [group_frames.offset_commit("alone", topic, 0, number)]


WORK: dict[str, Work] = {
    "produce-one": _producing("one record of 100 B, acks=1", "one", 100),
    "produce-one-all": _producing("one record of 100 B, acks=all", "all", 100, -1),
    "produce-16k": _producing("a batch of 16 KB", "middle", 16 * 1024),
    "produce-1mb": _producing("a batch of 1 MB", "large", MB - 200),
    "fetch-one": _fetching("a batch of 100 B", "small", 100),
    "fetch-1mb": _fetching("a batch of 1 MB, from the page cache", "big", MB - 200),
    "tail": Work(
        "a fetch that waits, and the record it waits for",
        _tailing,
        frames.error_position(frames.PRODUCE, "tail"),
    ),
    "heartbeat": Work("a heartbeat of a member", _beating, group_frames.BODY_AT + 4),
    "offset-commit": Work(
        "an offset, committed", _committing, group_frames.offset_commit_error_at("commit")
    ),
}


def count(world: World, name: str) -> Counts:
    work = WORK[name]
    counts = world.count(work.prepare(world))
    if error := error_of(work, world.answers[-1]):
        raise AssertionError(f"{name}: the broker answers with error {error}")
    return counts
