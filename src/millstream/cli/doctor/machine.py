"""The checks of `millstream doctor` on a machine of a broker: files, swap, clock, file systems."""

from __future__ import annotations

import ctypes
import os
import resource
import socket
from collections.abc import Iterable
from pathlib import Path

from millstream.cli.doctor.checks import ClusterView, Finding, Level

ENOUGH_FILES = 100_000
MAX_SWAPPINESS = 10
GOOD_FILE_SYSTEMS = {"xfs", "ext4", "btrfs", "zfs"}
_UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)


def is_here(host: str) -> bool:
    """Return whether an address belongs to this machine, that is, a socket can be bound to it."""
    try:
        for family, kind, _protocol, _name, address in socket.getaddrinfo(
            host, 0, type=socket.SOCK_STREAM
        ):
            with socket.socket(family, kind) as trial:
                trial.bind(address)
                return True
    except OSError:
        return False
    return False


def check_machine(view: ClusterView) -> Iterable[Finding]:
    """Check this machine, unless all brokers run elsewhere."""
    local = [broker for broker in view.cluster.brokers if is_here(broker.host)]
    if not local:
        return
    yield _files()
    yield from _swappiness()
    yield from _clock()
    for path in sorted({path for broker in local for path in _directories(view, broker.id)}):
        yield from _file_system(path)


def _directories(view: ClusterView, node: int) -> list[str]:
    return [
        directory.path
        for directory in view.admin.cluster.log_directories(node)
        if os.path.isdir(directory.path)
    ]


def _files() -> Finding:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < ENOUGH_FILES:
        return Finding(
            Level.warn,
            "open files",
            f"the limit of open files is {hard:,}",
            f"raise the hard limit (`ulimit -Hn`, or LimitNOFILE of the service) to {ENOUGH_FILES:,} or more",
        )
    return Finding(Level.ok, "open files", "the limit of open files is high enough")


def _swappiness() -> Iterable[Finding]:
    try:
        swappiness = int(Path("/proc/sys/vm/swappiness").read_text())
        swap = len(Path("/proc/swaps").read_text().splitlines()) > 1
    except (OSError, ValueError):
        return
    if swap and swappiness > MAX_SWAPPINESS:
        yield Finding(
            Level.warn,
            "swappiness",
            f"vm.swappiness is {swappiness}: the kernel may swap out the broker to grow the page cache",
            "`sysctl vm.swappiness=1`",
        )
    else:
        yield Finding(
            Level.ok, "swappiness", "no swap" if not swap else f"vm.swappiness is {swappiness}"
        )


def _clock() -> Iterable[Finding]:
    """Check that the clock is synchronised: retention depends on the timestamps of records."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return
    state = adjtimex(ctypes.create_string_buffer(256))  # modes 0: read only
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
            "for important data use XFS or ext4 on a local disk",
        )


def file_system(path: str, mounts: str = "/proc/mounts") -> str | None:
    """Return the type of the file system that a path is on, or None if it is unknown."""
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
