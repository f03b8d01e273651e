"""The facts about this machine that a reader of figures needs, without identifying it."""

import os
import platform
import time
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

QUIET_SHARE = 0.15  # of all cores
QUIET_SAMPLE_S = 0.2
PACKAGES = ("confluent-kafka", "crc32c", "uvloop", "lz4", "backports.zstd", "isal")


def facts(scratch: Path) -> dict[str, Any]:
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30)),
        "kernel": f"{platform.system()} {platform.release().split('-')[0]}",
        "file_system": _file_system(scratch),
        "python": platform.python_version(),
        "packages": {name: installed for name in PACKAGES if (installed := _version(name))},
        "priority": _priority(),
    }


def wait_quiet(patience_s: float) -> float:
    """Wait for idle processors, at most ``patience_s``; return the share that is busy."""
    deadline = time.monotonic() + patience_s
    while True:
        busy = float(psutil.cpu_percent(interval=QUIET_SAMPLE_S)) / 100
        if busy <= QUIET_SHARE or time.monotonic() >= deadline:
            return busy


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _priority() -> int:
    """Return the niceness of the session if Linux groups sessions, else of the process."""
    try:
        return int(Path("/proc/self/autogroup").read_text().split()[-1])
    except (OSError, ValueError, IndexError):
        return os.nice(0)


def _file_system(path: Path) -> str:
    mounts = [
        p for p in psutil.disk_partitions(all=True) if path.resolve().is_relative_to(p.mountpoint)
    ]
    return max(mounts, key=lambda p: len(p.mountpoint)).fstype if mounts else "unknown"


def _version(name: str) -> str | None:
    try:
        return package_version(name)
    except PackageNotFoundError:
        return None
