"""The time until a broker that was just started accepts a record.

It is measured on a raw socket, since a client library takes longer to start than some brokers.
"""

import struct
import time
from collections.abc import Callable

from bench import streams
from bench.load import frames
from bench.processes import BenchFailed
from bench.running import KAFKA, Broker

PATIENCE_S = 120.0
PAUSE_S = 0.001
TOPIC_EXISTS = 36


def create_and_write(broker: Broker, topic: str) -> float:
    """Return the seconds from exec until a record of a new topic is acknowledged."""
    if broker.peer.protocol != KAFKA:
        broker.create_topic(topic, 1)
        streams.protocol(broker.peer.protocol).Writer(broker.address, topic, 1).send(1)
        return time.perf_counter() - broker.exec_at
    if broker.peer.topics == "stdin":
        broker.create_topic(topic, 1)
    else:
        _until(broker, lambda: _created(broker, topic), "create a topic")
    write(broker, topic)
    return time.perf_counter() - broker.exec_at


def write(broker: Broker, topic: str) -> int:
    """Write a record as soon as possible; return its offset."""
    offsets: list[int] = []

    def is_written() -> bool:
        code, offset = _write_once(broker, topic)
        offsets.append(offset)
        return code == 0

    _until(broker, is_written, "accept a record")
    return offsets[-1]


def _until(broker: Broker, condition: Callable[[], bool], action: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline or broker.process.poll() is not None:
            raise BenchFailed(f"{broker.peer.title} did not {action}")
        time.sleep(PAUSE_S)


def _request(broker: Broker, frame: bytes) -> bytes | None:
    try:
        with frames.connect(broker.address) as sock:
            sock.sendall(frame)
            return frames.read_response(sock)
    except OSError:
        return None


def _created(broker: Broker, topic: str) -> bool:
    response = _request(broker, frames.create_topic(topic))
    if response is None:
        return False
    code = struct.unpack_from(">h", response, 4 + 4 + 4 + 4 + 2 + len(topic.encode()))[0]
    return code in (0, TOPIC_EXISTS)


def _write_once(broker: Broker, topic: str) -> tuple[int, int]:
    """Return error code and base offset."""
    batch = frames.record_batch([b"x"], int(time.time() * 1000))
    response = _request(broker, frames.produce(topic, 0, batch))
    if response is None:
        return -1, -1
    code, offset = struct.unpack_from(">hq", response, frames.error_position(frames.PRODUCE, topic))
    return code, offset
