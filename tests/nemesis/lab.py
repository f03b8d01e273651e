"""A network of one's own: every server in a network namespace, all of them on one bridge, and links
that can be cut in either direction.

A link is cut by a permanent neighbour entry with an address that nobody has: packets leave and
arrive nowhere, and neither side is told. That is what a pulled cable looks like; a closed
connection would be kinder. Where namespaces are not allowed everything runs on
127.0.0.1, and there are no links to cut.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

INSIDE = "MILLSTREAM_LAB"  # set for what runs in namespaces of its own
_NAMESPACES = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
_AS_ROOT = ["--user", "--map-root-user"]
_NETWORK = "10.77.0"
_NOBODY = "02:00:00:00:00:ff"


def namespaces() -> list[str] | None:
    """The words that give a command namespaces of its own: as root, or as a user where the kernel
    allows that. None: they cannot be had.
    """
    for more in ([], _AS_ROOT) if os.geteuid() == 0 else (_AS_ROOT,):
        words = ["unshare", *more, *_NAMESPACES]
        try:
            probe = [
                *words,
                "sh",
                "-c",
                "ip link add name probe type bridge && ip link add type veth",
            ]
            if subprocess.run(probe, capture_output=True, timeout=20, check=False).returncode == 0:
                return words
        except (OSError, subprocess.TimeoutExpired):
            continue
    return None


def enter(module: str, arguments: list[str]) -> None:
    """Starts this program again in namespaces of its own; comes back where that is so already, or
    cannot be.
    """
    if os.environ.get(INSIDE) is None and (words := namespaces()) is not None:
        os.environ[INSIDE] = "1"
        sys.stdout.flush()
        os.execvp(words[0], [*words, sys.executable, "-m", module, *arguments])


@dataclass(frozen=True)
class Host:
    """A machine of the lab. ``prefix``: the words that run a command on it."""

    name: str
    address: str
    prefix: tuple[str, ...] = ()
    device: str = ""


class Lab:
    """The bridge, and the hosts on it. The first host is where clients run."""

    def __init__(self) -> None:
        self.has_links = os.environ.get(INSIDE) is not None
        self._holders: list[subprocess.Popen[bytes]] = []
        self.cuts: set[tuple[str, str]] = set()
        self.clients = Host(
            "clients", f"{_NETWORK}.1" if self.has_links else "127.0.0.1", device="bridge"
        )
        if self.has_links:
            _run("ip", "link", "set", "lo", "up")
            _run("ip", "link", "add", "bridge", "type", "bridge")
            _run("ip", "addr", "add", f"{self.clients.address}/24", "dev", "bridge")
            _run("ip", "link", "set", "bridge", "up")

    def host(self, name: str) -> Host:
        if not self.has_links:
            return Host(name, "127.0.0.1")
        number = len(self._holders) + 2
        address = f"{_NETWORK}.{number}"
        pid = self._namespace()
        prefix = ("nsenter", f"--net=/proc/{pid}/ns/net", "--")
        end = f"port{number}"
        _run("ip", "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        _run("ip", "link", "set", end, "master", "bridge", "up")
        _run(*prefix, "ip", "link", "set", "lo", "up")
        _run(*prefix, "ip", "addr", "add", f"{address}/24", "dev", "eth0")
        _run(*prefix, "ip", "link", "set", "eth0", "up")
        return Host(name, address, prefix, "eth0")

    def _namespace(self) -> int:
        """A process that does nothing but hold a network namespace."""
        holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self._holders.append(holder)
        mine = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{holder.pid}/ns/net") == mine:
            time.sleep(0.002)
        return holder.pid

    def cut(self, source: Host, target: Host) -> None:
        """Nothing that ``source`` sends arrives at ``target`` any more; the other direction is
        another link.
        """
        entry = ("to", target.address, "dev", source.device)
        _run(
            *source.prefix, "ip", "neigh", "replace", *entry, "lladdr", _NOBODY, "nud", "permanent"
        )
        self.cuts.add((source.name, target.name))

    def heal(self, source: Host, target: Host) -> None:
        if (source.name, target.name) in self.cuts:
            _run(*source.prefix, "ip", "neigh", "del", "to", target.address, "dev", source.device)
            self.cuts.discard((source.name, target.name))

    def close(self) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()


def small_disk(directory: Path, megabytes: int) -> bool:
    """A file system of its own below a directory, of a size that can be filled; False where that is
    not allowed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if os.environ.get(INSIDE) is None:
        return False
    words = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(directory)]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def pairs(hosts: Iterable[Host], others: Iterable[Host]) -> list[tuple[Host, Host]]:
    """Every link from one of the first to one of the second."""
    seconds = list(others)
    return [(one, other) for one in hosts for other in seconds if one.name != other.name]


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
