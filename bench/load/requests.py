"""Request-level load on raw sockets: the same small request, pipelined over one or more
connections.

Job: routes (the address of each partition's leader), topic, request ("produce", "fetch" or
"offset-commit"), message_bytes, connections (to each), depth (in flight per connection), requests,
warmup_requests. All responses to one request have the same size. They are counted by bytes, and
their error codes are checked by stride, so the generator costs little more than its system calls.
"""

import selectors
import socket
import time
from typing import NoReturn

from bench.load import frames, group_frames
from bench.load.job import Job, latency_us, run, say_ready, wait_go

RECEIVE_BYTES = 1 << 20
SILENCE_S = 20.0
GROUP = "bench"


class Pipe:
    """A connection with `depth` requests in flight, sent in half-depth blocks to keep it busy."""

    def __init__(
        self, address: str, frame: bytes, depth: int, response_bytes: int, error_at: int
    ) -> None:
        self.sock: socket.socket = frames.connect(address)
        self.per_block = max(1, depth // 2)
        self.blocks = 2 if depth > 1 else 1
        self.block = frame * self.per_block
        self.response_bytes, self.error_at = response_bytes, error_at
        self.waiting = bytearray()

    def start(self) -> int:
        self.sock.sendall(self.block * self.blocks)
        return self.per_block * self.blocks

    def receive(self) -> int:
        """Return the number of complete responses, after checking their error codes."""
        data = self.sock.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the broker closed the connection")
        self.waiting += data
        whole = len(self.waiting) // self.response_bytes
        if whole:
            end = whole * self.response_bytes
            for at in (self.error_at, self.error_at + 1):
                if any(self.waiting[at : end : self.response_bytes]):
                    raise RuntimeError("a request failed")
            del self.waiting[:end]
        return whole


class Generator:
    def __init__(self, job: Job) -> None:
        error_at = self._error_at(job)
        self.selector = selectors.DefaultSelector()
        self.pipes: list[Pipe] = []
        for partition, address in enumerate(job["routes"]):
            frame = self._frame(job, address, partition)
            response = self._first_response(address, frame, error_at)
            self.pipes += [
                Pipe(address, frame, job["depth"], len(response), error_at)
                for _ in range(job["connections"])
            ]
        for pipe in self.pipes:
            self.selector.register(pipe.sock, selectors.EVENT_READ, pipe)

    @staticmethod
    def _error_at(job: Job) -> int:
        if job["request"] == "offset-commit":
            return group_frames.offset_commit_error_at(job["topic"])
        return frames.error_position(
            frames.FETCH if job["request"] == "fetch" else frames.PRODUCE, job["topic"]
        )

    @staticmethod
    def _frame(job: Job, address: str, partition: int) -> bytes:
        if job["request"] == "offset-commit":
            group_frames.wait_for_coordinator(address, GROUP)
            return group_frames.offset_commit(GROUP, job["topic"], partition, 1)
        batch = frames.record_batch([b"x" * job["message_bytes"]], int(time.time() * 1000))
        produce_frame = frames.produce(job["topic"], partition, batch)
        if job["request"] == "produce":
            return produce_frame
        with frames.connect(address) as sock:
            sock.sendall(produce_frame)
            frames.read_response(sock)
        return frames.fetch(job["topic"], partition, 0, len(batch))

    @staticmethod
    def _first_response(address: str, frame: bytes, error_at: int) -> bytes:
        with frames.connect(address) as sock:
            sock.sendall(frame)
            response = frames.read_response(sock)
        if response[error_at : error_at + 2] != b"\0\0":
            code = int.from_bytes(response[error_at : error_at + 2], "big", signed=True)
            raise RuntimeError(f"the first request failed with error code {code}")
        return response

    def send(self, requests: int) -> int:
        """Send at least `requests` (whole blocks) and wait for the responses; return how many."""
        sent = sum(pipe.start() for pipe in self.pipes)
        received, credit = 0, dict.fromkeys(self.pipes, 0)
        while received < sent:
            ready = self.selector.select(SILENCE_S)
            if not ready:
                _silent()
            for key, _ in ready:
                pipe: Pipe = key.data
                answered = pipe.receive()
                received += answered
                credit[pipe] += answered
                while credit[pipe] >= pipe.per_block and sent < requests:
                    credit[pipe] -= pipe.per_block
                    pipe.sock.sendall(pipe.block)
                    sent += pipe.per_block
        return received


def _silent() -> NoReturn:
    raise TimeoutError(f"no answer in {SILENCE_S:.0f} s")


def _round_trips(generator: Generator, requests: int) -> list[int]:
    """Measure the round trip of each request, with depth 1 on one connection."""
    pipe, samples = generator.pipes[0], []
    for _ in range(requests):
        started = time.perf_counter_ns()
        pipe.sock.sendall(pipe.block)
        while not pipe.receive():
            pass
        samples.append(time.perf_counter_ns() - started)
    return samples


def work(job: Job) -> Job:
    generator = Generator(job)
    generator.send(job["warmup_requests"])
    say_ready()
    wait_go()
    started = time.perf_counter()
    if job["depth"] == 1 and len(generator.pipes) == 1:
        samples = _round_trips(generator, job["requests"])
        return latency_us(samples) | {
            "seconds": time.perf_counter() - started,
            "requests": len(samples),
        }
    done = generator.send(job["requests"])
    return {"seconds": time.perf_counter() - started, "requests": done}


if __name__ == "__main__":
    run(work)
