"""What `millstream doctor` looks at on the machine itself, where one of the brokers runs on it."""

from __future__ import annotations

import ctypes
import os
import resource
import socket
from collections.abc import Iterable
from pathlib import Path

from millstream.cli.doctor.checks import Finding, Level, Seen

ENOUGH_FILES = 100_000
MOST_SWAPPINESS = 10
GOOD_FILE_SYSTEMS = {"xfs", "ext4", "btrfs", "zfs"}
_UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)


def is_here(host: str) -> bool:
    """Whether an address is one of this machine's: then a socket can be bound to it."""
    try:
        for family, kind, _protocol, _name, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind) as trial:
                trial.bind(address)
                return True
    except OSError:
        return False
    return False


def check_machine(seen: Seen) -> Iterable[Finding]:
    """Nothing, where all brokers are elsewhere: their machines cannot be seen from here."""
    here = [broker for broker in seen.cluster.brokers if is_here(broker.host)]
    if not here:
        return
    yield _files()
    yield from _swappiness()
    yield from _clock()
    for path in sorted({path for broker in here for path in _directories(seen, broker.id)}):
        yield from _file_system(path)


def _directories(seen: Seen, node: int) -> list[str]:
    return [one.path for one in seen.admin.cluster.log_directories(node) if os.path.isdir(one.path)]


def _files() -> Finding:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < ENOUGH_FILES:
        return Finding(
            Level.warn,
            "open files",
            f"{hard:,} files may be open at a time",
            f"raise the hard limit (`ulimit -Hn`, or LimitNOFILE of the service) to {ENOUGH_FILES:,} or more",
        )
    return Finding(Level.ok, "open files", "enough files may be open at a time")


def _swappiness() -> Iterable[Finding]:
    try:
        found = int(Path("/proc/sys/vm/swappiness").read_text())
        swap = len(Path("/proc/swaps").read_text().splitlines()) > 1
    except (OSError, ValueError):
        return
    if swap and found > MOST_SWAPPINESS:
        yield Finding(
            Level.warn,
            "swappiness",
            f"vm.swappiness is {found}: memory of the broker may be swapped out in favour of the page cache",
            "`sysctl vm.swappiness=1`",
        )
    else:
        yield Finding(Level.ok, "swappiness", "no swap" if not swap else f"vm.swappiness is {found}")


def _clock() -> Iterable[Finding]:
    """Records carry times, and retention goes by them."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return
    state = adjtimex(ctypes.create_string_buffer(256))  # modes 0: only asks
    if state == _UNSYNCHRONISED:
        yield Finding(
            Level.warn,
            "clock",
            "the clock of this machine is not synchronised",
            "run chrony, ntpd or systemd-timesyncd",
        )
    elif state >= 0:
        yield Finding(Level.ok, "clock", "the clock of this machine is synchronised")


def _file_system(path: str) -> Iterable[Finding]:
    kind = file_system(path)
    if kind is None:
        return
    if kind in GOOD_FILE_SYSTEMS:
        yield Finding(Level.ok, "file system", f"{path} is on {kind}")
    else:
        yield Finding(
            Level.warn,
            "file system",
            f"{path} is on {kind}",
            "for data that counts use XFS, or ext4, on a disk of this machine",
        )


def file_system(path: str, mounts: str = "/proc/mounts") -> str | None:
    """The kind of file system that a path is on; None where the system does not tell."""
    try:
        rows = [line.split() for line in Path(mounts).read_text().splitlines()]
    except OSError:
        return None
    real, best, kind = os.path.realpath(path), "", None
    for row in rows:
        point = row[1].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, row[2]
    return kind
