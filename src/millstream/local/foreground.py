"""Parts shared by commands that run servers in the foreground: locks and port checks."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from millstream.client.errors import ClientError

LOCK_FILE = ".lock"


@contextmanager
def own_directory(directory: Path, server: str) -> Iterator[None]:
    """Lock a directory for ``server`` during the block; create it if it is missing."""
    lock = lock_directory(directory, server)
    try:
        yield
    finally:
        os.close(lock)


def lock_directory(directory: Path, server: str) -> int:
    """Lock a directory and return the file descriptor of the lock.

    The lock is held as long as any process, such as a child, has the descriptor open. Raise
    ClientError if the directory is already locked.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ClientError(
            f"cannot use {directory}: {error.strerror}", hint="choose another --data"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise _owned(directory, server) from None
    return lock


def _owned(directory: Path, server: str) -> ClientError:
    return ClientError(
        f"{server} is already running in {directory}", hint="stop it, or choose another --data"
    )


def is_owned(directory: Path) -> bool:
    """Return whether a process holds the lock of this directory."""
    try:
        with (directory / LOCK_FILE).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def refuse_owned(directory: Path, server: str) -> None:
    """Raise early if the directory is locked; the start of ``server`` takes the lock itself."""
    if is_owned(directory):
        raise _owned(directory, server)


def refuse_used_ports(host: str, ports: Mapping[str, int], hint: str) -> None:
    """Raise ClientError if a port is in use; the keys of ``ports`` name the servers."""
    used = [f"{port} ({server})" for server, port in ports.items() if not is_free(host, port)]
    if used:
        noun = "port" if len(used) == 1 else "ports"
        raise ClientError(f"{noun} in use on {host}: {', '.join(used)}", hint=hint)


def is_free(host: str, port: int) -> bool:
    """Return whether a server could listen on the port."""
    with socket.socket() as probe:
        # Like servers, ignore closed connections in TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
