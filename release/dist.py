"""``make dist``: build the sdist and the wheel of the last commit, twice, and compare the bytes.

Each build starts from a fresh clone, with another directory, time zone and umask, so that nothing
of the machine gets into the files. Times in the archives are those of the commit. The wheel is
built from the sdist. The same commit gives the same bytes with the same version of hatchling, which
the wheel records.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Settings that must not matter, one set for each build.
SURROUNDINGS = (
    {"umask": 0o022, "TZ": "UTC", "PYTHONHASHSEED": "1", "LC_ALL": "C"},
    {"umask": 0o077, "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "2", "LC_ALL": "C.UTF-8"},
)


class NotReproducible(Exception):
    """Two builds of one commit differ."""


def commit_time_s(repository: Path) -> str:
    return _output("git", "-C", str(repository), "log", "-1", "--format=%ct")


def build(repository: Path, workplace: Path, surroundings: dict[str, object]) -> list[Path]:
    """Clone the last commit into the workplace and build it there.

    Return the sdist and the wheel.
    """
    clone, made = workplace / "clone", workplace / "dist"
    subprocess.run(
        ["git", "clone", "--quiet", "--no-hardlinks", str(repository), str(clone)], check=True
    )
    umask = surroundings["umask"]
    assert isinstance(umask, int)
    variables = {name: str(value) for name, value in surroundings.items() if name != "umask"}
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(made), str(clone)],
        env=os.environ | variables | {"SOURCE_DATE_EPOCH": commit_time_s(repository)},
        umask=umask,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return sorted(made.iterdir())


def build_twice(repository: Path, out: Path) -> list[Path]:
    """Build twice, raise NotReproducible if the bytes differ, and put the files into ``out``."""
    with tempfile.TemporaryDirectory(prefix="millstream-dist-") as scratch:
        first, second = (
            build(repository, Path(scratch, str(number)), surroundings)
            for number, surroundings in enumerate(SURROUNDINGS)
        )
        names = [path.name for path in first]
        if names != [path.name for path in second]:
            raise NotReproducible(f"the builds have different names: {names}")
        for path, again in zip(first, second, strict=True):
            if not filecmp.cmp(path, again, shallow=False):
                raise NotReproducible(f"two builds of {path.name} differ")
        out.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy(path, out)) for path in first]


def check(files: Sequence[Path]) -> None:
    """Check the metadata and the rendered README as PyPI would."""
    subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)], check=True
    )


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--out", type=Path, default=ROOT / "dist", help="the directory for the files"
    )
    out = parser.parse_args().out
    if _output("git", "-C", str(ROOT), "status", "--porcelain"):
        print("note: this builds the last commit, without the uncommitted changes", file=sys.stderr)
    try:
        files = build_twice(ROOT, out)
    except NotReproducible as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    check(files)
    for path in files:
        print(f"{path.stat().st_size:>10,} bytes  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
