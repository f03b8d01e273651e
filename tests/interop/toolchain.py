"""Finds Java, Go and Node, fetches what the programs need by package name, and builds them in a cache directory.

What cannot be had raises ``Missing`` with a sentence that says what is missing; tests are skipped with it. The cache is
``tests/interop/.cache`` (not under version control) or ``$MILLSTREAM_INTEROP_CACHE``. A build is made once per state
of its sources.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD_TIMEOUT_S = 600


class Missing(Exception):
    """A tool or a package that cannot be had here."""


def cache() -> Path:
    return Path(os.environ.get("MILLSTREAM_INTEROP_CACHE") or HERE / ".cache")


def find(tool: str) -> str:
    path = shutil.which(tool)
    if path is None:
        raise Missing(f"{tool} is not installed")
    return path


def _run(command: Sequence[str], directory: Path, what: str) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=BUILD_TIMEOUT_S,
            text=True,
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"{what}: no result within {BUILD_TIMEOUT_S} s") from None
    if done.returncode:
        raise Missing(f"{what} failed: {' | '.join(done.stdout.strip().splitlines()[-3:])}")


def _sources(language: str) -> list[Path]:
    return sorted(path for path in (HERE / language).iterdir() if path.is_file())


def _build_directory(language: str) -> Path:
    """A directory of its own per state of the sources, with a copy of them."""
    digest = hashlib.sha256()
    for path in _sources(language):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    directory = cache() / f"{language}-{digest.hexdigest()[:16]}"
    directory.mkdir(parents=True, exist_ok=True)
    for path in _sources(language):
        shutil.copy2(path, directory)
    return directory


def java_classpath() -> str:
    """Our Java program, the Java client, the broker and its tools; all fetched by Maven."""
    java, javac, maven = find("java"), find("javac"), find("mvn")
    directory = _build_directory("java")
    listed, ready = directory / "classpath.txt", directory / "ready"
    if not (ready.exists() and all(Path(jar).exists() for jar in listed.read_text().split(os.pathsep))):
        _check_java_release(java)
        resolve = [maven, "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={listed}"]
        _run(resolve, directory, "fetching the Java packages with Maven")
        files = [str(path) for path in sorted(directory.glob("*.java"))]
        compiler = [javac, "-nowarn", "-d", str(directory), "-cp", listed.read_text().strip(), *files]
        _run(compiler, directory, "compiling the Java program")
        ready.touch()
    return f"{directory}{os.pathsep}{listed.read_text().strip()}"


def _check_java_release(java: str) -> None:
    """Apache Kafka 4 needs Java 17 for the broker and its tools."""
    command = [java, "-XshowSettings:properties", "-version"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    release = next(
        (line.split("=")[1].strip() for line in said.splitlines() if "java.specification.version" in line),
        "0",
    )
    if float(release) < 17:
        raise Missing(f"Java 17 or newer is needed, this is {release}")


def java_command() -> list[str]:
    return [find("java"), "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", java_classpath()]


def go_program() -> list[str]:
    go = find("go")
    directory = _build_directory("go")
    program = directory / "interop"
    if not program.exists():
        _run([go, "mod", "tidy"], directory, "fetching the Go modules")
        _run([go, "build", "-o", str(program), "."], directory, "building the Go program")
    return [str(program)]


def node_program() -> list[str]:
    node, npm = find("node"), find("npm")
    directory = _build_directory("node")
    ready = directory / "ready"
    if not ready.exists():
        install = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
        _run(install, directory, "fetching the Node packages")
        ready.touch()
    return [node, str(directory / "interop.js")]
