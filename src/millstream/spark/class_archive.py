"""An archive of Spark's classes, from which a JVM starts in about half the CPU time (AppCDS).

A JVM that starts Spark loads, parses and verifies some 20,000 classes. Java can write them to a
file in their in-memory form, and map that file at the next start. A JVM ignores an archive that
does not match: another Java, another jar, another class path. So a stale archive costs only time.

The archive is in the home of links (``spark_home``), because the class path is part of it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from millstream.client.java import Java

PREFIX = "classes-"
SUFFIX = ".jsa"
# A JVM that cannot use an archive prints a warning for each reason, though nothing is lost.
SILENT = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def archive_path(home: Path, java: Java) -> Path:
    """Return the path of the archive of a Spark home for one Java runtime."""
    executable = java.executable.resolve()
    release = executable.parent.parent / "release"
    described = release.read_bytes() if release.is_file() else b""
    name = hashlib.sha256(os.fsencode(executable) + b"\0" + described).hexdigest()[:12]
    return home / f"{PREFIX}{name}{SUFFIX}"


def options_to_use(archive: Path) -> tuple[str, ...]:
    """Return the options of a JVM that starts from an archive; none if there is no archive."""
    if not archive.is_file():
        return ()
    return (f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", *SILENT)


def options_to_make(draft: Path) -> tuple[str, ...]:
    """Return the options of a JVM that writes its classes to a file when it exits."""
    return (f"-XX:ArchiveClassesAtExit={draft}", *SILENT)


def remove_stale_homes(cache: Path) -> None:
    """Remove the homes, with their archives, of Spark installations that no longer exist."""
    for home in cache.glob("spark-*"):
        if home.is_dir() and not (home / "jars").exists() and (home / "jars").is_symlink():
            shutil.rmtree(home, ignore_errors=True)
