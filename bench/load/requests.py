"""Request-level load on raw sockets: the same small request again and again, pipelined, over one or
more connections.

Job: routes (of each partition the address of its leader), topic, request ("produce", "fetch" or
"offset-commit"), message_bytes, connections (to each), depth (in flight per connection), requests,
warmup_requests. All answers to one request have the same size, so they are counted by bytes and
their error codes checked by stride: the generator costs little more than its system calls.
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
    """A connection with `depth` requests in flight, sent in half-depth blocks so that it never runs
    dry.
    """

    def __init__(self, address: str, frame: bytes, depth: int, answer_bytes: int, error_at: int) -> None:
        self.sock: socket.socket = frames.connect(address)
        self.per_block = max(1, depth // 2)
        self.blocks = 2 if depth > 1 else 1
        self.block = frame * self.per_block
        self.answer_bytes, self.error_at = answer_bytes, error_at
        self.waiting = bytearray()

    def start(self) -> int:
        self.sock.sendall(self.block * self.blocks)
        return self.per_block * self.blocks

    def receive(self) -> int:
        """Whole answers among what came, their error codes checked."""
        data = self.sock.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the broker closed the connection")
        self.waiting += data
        whole = len(self.waiting) // self.answer_bytes
        if whole:
            end = whole * self.answer_bytes
            for at in (self.error_at, self.error_at + 1):
                if any(self.waiting[at : end : self.answer_bytes]):
                    raise RuntimeError("a request was answered with an error")
            del self.waiting[:end]
        return whole


class Generator:
    def __init__(self, job: Job) -> None:
        error_at = self._error_at(job)
        self.selector = selectors.DefaultSelector()
        self.pipes: list[Pipe] = []
        for partition, address in enumerate(job["routes"]):
            frame = self._frame(job, address, partition)
            answer = self._first_answer(address, frame, error_at)
            self.pipes += [
                Pipe(address, frame, job["depth"], len(answer), error_at) for _ in range(job["connections"])
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
        put = frames.produce(job["topic"], partition, batch)
        if job["request"] == "produce":
            return put
        with frames.connect(address) as sock:
            sock.sendall(put)
            frames.read_answer(sock)
        return frames.fetch(job["topic"], partition, 0, len(batch))

    @staticmethod
    def _first_answer(address: str, frame: bytes, error_at: int) -> bytes:
        with frames.connect(address) as sock:
            sock.sendall(frame)
            answer = frames.read_answer(sock)
        if answer[error_at : error_at + 2] != b"\0\0":
            code = int.from_bytes(answer[error_at : error_at + 2], "big", signed=True)
            raise RuntimeError(f"the first request was answered with error code {code}")
        return answer

    def send(self, requests: int) -> int:
        """At least `requests` answered requests; returns how many (whole blocks)."""
        sent = sum(pipe.start() for pipe in self.pipes)
        got, credit = 0, dict.fromkeys(self.pipes, 0)
        while got < sent:
            ready = self.selector.select(SILENCE_S)
            if not ready:
                _silent()
            for key, _ in ready:
                pipe: Pipe = key.data
                answered = pipe.receive()
                got += answered
                credit[pipe] += answered
                while credit[pipe] >= pipe.per_block and sent < requests:
                    credit[pipe] -= pipe.per_block
                    pipe.sock.sendall(pipe.block)
                    sent += pipe.per_block
        return got


def _silent() -> NoReturn:
    raise TimeoutError(f"no answer in {SILENCE_S:.0f} s")


def _one_by_one(generator: Generator, requests: int) -> list[int]:
    """Depth 1 on one connection: the round trip of each request."""
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
        samples = _one_by_one(generator, job["requests"])
        return latency_us(samples) | {"seconds": time.perf_counter() - started, "requests": len(samples)}
    done = generator.send(job["requests"])
    return {"seconds": time.perf_counter() - started, "requests": done}


if __name__ == "__main__":
    run(work)
