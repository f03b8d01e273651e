"""The limits of this machine without a broker.

They are bytes through a loopback connection, into the page cache, and onto the disk. Job: folder,
loopback_megabytes, write_megabytes, syncs. The three run one after the other, each with a separate
start signal.
"""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from bench.load.job import Job, run, say_ready, wait_go

CHUNK = 1 << 20
SYNC_BYTES = 4096


def loopback(megabytes: int) -> float:
    """Return megabytes per second from this process to another, 1 MB per call."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = os.fork()
        if not child:
            _read_all(server)
        with socket.create_connection(server.getsockname()) as sock:
            block, count = bytes(CHUNK), megabytes * 1_000_000 // CHUNK
            started = time.perf_counter()
            for _ in range(count):
                sock.sendall(block)
            sock.shutdown(socket.SHUT_WR)
            sock.recv(1)  # all has been read
            seconds = time.perf_counter() - started
        os.waitpid(child, 0)
    return count * CHUNK / 1e6 / seconds


def _read_all(server: socket.socket) -> None:
    """Run the other process: read until the end, acknowledge, and exit."""
    sock, _ = server.accept()
    buffer = bytearray(CHUNK)
    while sock.recv_into(buffer):
        pass
    sock.sendall(b"x")
    sock.close()
    os._exit(0)


def page_cache(path: Path, megabytes: int) -> float:
    """Return megabytes per second into a new file, 1 MB per call, without waiting for the disk."""
    block, count = os.urandom(CHUNK), megabytes * 1_000_000 // CHUNK
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        started = time.perf_counter()
        for _ in range(count):
            os.write(fd, block)
        return count * CHUNK / 1e6 / (time.perf_counter() - started)
    finally:
        os.close(fd)
        path.unlink()


def syncs(path: Path, count: int) -> float:
    """Return how often per second 4 KB can be appended and synced, one after the other."""
    block = bytes(SYNC_BYTES)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        started = time.perf_counter()
        for _ in range(count):
            os.write(fd, block)
            os.fsync(fd)
        return count / (time.perf_counter() - started)
    finally:
        os.close(fd)
        path.unlink()


def work(job: Job) -> Job:
    path = Path(job["folder"]) / "limits"
    steps: dict[str, Callable[[], float]] = {
        "loopback_mb_per_s": lambda: loopback(job["loopback_megabytes"]),
        "write_mb_per_s": lambda: page_cache(path, job["write_megabytes"]),
        "syncs_per_s": lambda: syncs(path, job["syncs"]),
    }
    results = {}
    for name, measure in steps.items():
        say_ready()
        wait_go()
        results[name] = measure()
    return results


if __name__ == "__main__":
    run(work)
