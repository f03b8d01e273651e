"""What commands that run servers in the foreground share: signals, a directory of their own, ports that must be free."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from millstream.client.errors import ClientError

LOCK_FILE = ".lock"
# A second Ctrl-C this soon is the same one to whoever pressed it, or came on two ways.
_SAME_PRESS_S = 1.0


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """SIGTERM is as Ctrl-C: KeyboardInterrupt. Stopping in good order is not interrupted by a second SIGTERM, nor by a key that is pressed twice;
    by a later Ctrl-C it is, with another KeyboardInterrupt, and what is left to do then is not interrupted any more."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    asked_s: float | None = None

    def stop(number: int, frame: Any) -> None:
        nonlocal asked_s
        if asked_s is not None and (number != signal.SIGINT or time.monotonic() - asked_s < _SAME_PRESS_S):
            return
        if asked_s is not None:
            for one in numbers:
                signal.signal(one, signal.SIG_IGN)
        asked_s = time.monotonic()
        interrupted = before[signal.SIGINT]
        if callable(interrupted):
            interrupted(number, frame)  # who counts Ctrl-C counts this
        raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def own_directory(directory: Path, what: str) -> Iterator[None]:
    """Nobody else runs ``what`` in this directory meanwhile; it is made where it is missing."""
    lock = lock_directory(directory, what)
    try:
        yield
    finally:
        os.close(lock)


def lock_directory(directory: Path, what: str) -> int:
    """A file descriptor: whoever has it open, a child that it was passed to as well, has the directory to itself. ClientError where somebody
    else does."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ClientError(f"cannot use {directory}: {error.strerror}", hint="name another --data") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise _owned(directory, what) from None
    return lock


def _owned(directory: Path, what: str) -> ClientError:
    return ClientError(f"{what} runs in {directory} already", hint="stop it, or name another --data")


def is_owned(directory: Path) -> bool:
    """Whether somebody runs in this directory."""
    try:
        with (directory / LOCK_FILE).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def refuse_owned(directory: Path, what: str) -> None:
    """To say so before anything else is done; to start ``what`` takes the lock, too."""
    if is_owned(directory):
        raise _owned(directory, what)


def refuse_used_ports(host: str, ports: Mapping[str, int], hint: str) -> None:
    """ClientError for ports that somebody listens on; ``ports`` says for whom each is."""
    used = [f"{port} ({what})" for what, port in ports.items() if not is_free(host, port)]
    if used:
        noun = "port" if len(used) == 1 else "ports"
        raise ClientError(f"{noun} in use on {host}: {', '.join(used)}", hint=hint)


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there."""
    with socket.socket() as probe:
        # As servers do: what lingers of closed connections does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
