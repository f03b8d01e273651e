"""Finds Java, Go, Node and Spark's connector, fetches what the programs need by package name, and
builds them in a cache directory.

What cannot be had raises ``Missing`` with a sentence that says what is missing; tests are skipped
with it. The cache is ``tests/interop/.cache`` (not under version control) or
``$MILLSTREAM_INTEROP_CACHE``. A build is made once per state of its sources.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

T = TypeVar("T")

HERE = Path(__file__).resolve().parent
BUILD_TIMEOUT_S = 600
# Where the connector of the installed Spark cannot be had: older ones (4.2.0 was seen to run on
# 4.3.0; 4.0.0 does not).
OLDER_CONNECTORS = ("4.2.1", "4.2.0")
OLDEST_TOKEN_PROVIDER = "4.0.0"


class Missing(Exception):
    """A tool or a package that cannot be had here."""


def skip_if_missing(get: Callable[[], T]) -> T:
    """What Maven, Go or npm would have to bring may be out of reach: then the test cannot be, and
    the message names what is missing.
    """
    try:
        return get()
    except Missing as missing:
        pytest.skip(str(missing))


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
    if not (
        ready.exists() and all(Path(jar).exists() for jar in listed.read_text().split(os.pathsep))
    ):
        _check_java_release(java)
        resolve = [maven, "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={listed}"]
        _run(resolve, directory, "fetching the Java packages with Maven")
        files = [str(path) for path in sorted(directory.glob("*.java"))]
        compiler = [
            javac,
            "-nowarn",
            "-d",
            str(directory),
            "-cp",
            listed.read_text().strip(),
            *files,
        ]
        _run(compiler, directory, "compiling the Java program")
        ready.touch()
    return f"{directory}{os.pathsep}{listed.read_text().strip()}"


def _check_java_release(java: str) -> None:
    """Apache Kafka 4 needs Java 17 for the broker and its tools."""
    command = [java, "-XshowSettings:properties", "-version"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    release = next(
        (
            line.split("=")[1].strip()
            for line in said.splitlines()
            if "java.specification.version" in line
        ),
        "0",
    )
    if float(release) < 17:
        raise Missing(f"Java 17 or newer is needed, this is {release}")


def java_command() -> list[str]:
    return [find("java"), "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", java_classpath()]


class Connector(NamedTuple):
    """Spark's own Kafka connector: its version, and the jars that Spark does not have."""

    version: str
    jars: tuple[str, ...]


def spark_connector(spark_version: str) -> Connector:
    """That of the installed Spark, else the newest older one that runs on it; what was found once
    is taken again.
    """
    find("java")
    maven = find("mvn")
    directory = _build_directory("spark")
    pairs = [
        (version, tokens)
        for version in (spark_version, *OLDER_CONNECTORS)
        for tokens in dict.fromkeys((version, OLDEST_TOKEN_PROVIDER))
    ]
    for version, tokens in pairs:
        if jars := _listed(directory / f"{version}-{tokens}.txt"):
            return Connector(version, jars)
    why = ""
    for version, tokens in pairs:
        try:
            return Connector(version, _connector_jars(maven, directory, version, tokens))
        except Missing as missing:
            why = why or str(missing)
    raise Missing(f"Spark's Kafka connector for Spark {spark_version} cannot be had: {why}")


def _listed(listed: Path) -> tuple[str, ...]:
    """The jars of a class path that was resolved before, if all of them are still there."""
    jars = tuple(listed.read_text().strip().split(os.pathsep)) if listed.exists() else ()
    return jars if all(Path(jar).exists() for jar in jars) else ()


def _connector_jars(maven: str, directory: Path, version: str, tokens: str) -> tuple[str, ...]:
    listed = directory / f"{version}-{tokens}.txt"
    goal = ["dependency:build-classpath", f"-Dmdep.outputFile={listed}"]
    versions = [f"-Dconnector.version={version}", f"-Dtoken.version={tokens}"]
    _run(
        [maven, "-q", "-B", *goal, *versions],
        directory,
        f"fetching the connector {version} with Maven",
    )
    return tuple(listed.read_text().strip().split(os.pathsep))


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
        install = [
            npm,
            "install",
            "--no-audit",
            "--no-fund",
            "--no-package-lock",
            "--ignore-scripts",
        ]
        _run(install, directory, "fetching the Node packages")
        ready.touch()
    return [node, str(directory / "interop.js")]
