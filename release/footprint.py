"""``make footprint``: the cost of the core in packages, megabytes, imports and time.

It builds the wheel of the last commit, installs it into a clean environment, and prints tables in
Markdown for docs/internals/footprint.md. ``--wheel`` measures another file, such as that of an
older commit. Times are CPU seconds, the lowest of several runs, because a busy machine lengthens
the others.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from release import dist  # noqa: E402
from release.environment import Environment  # noqa: E402

# Parts of every virtual environment.
NOT_OURS = {"pip", "setuptools"}
RUNS = 7

SIZES = """
import json
from importlib import metadata
sizes = {}
for distribution in metadata.distributions():
    files = [file.locate() for file in distribution.files or ()]
    sizes[distribution.name] = sum(file.stat().st_size for file in files if file.exists())
print(json.dumps(sizes))
"""
MODULES = "import sys; {}; print(len(sys.modules))"
COMMANDS = (
    ("`millstream --help`", ["--help"]),
    ("`millstream --version`", ["--version"]),
    ("`millstream topics create --help`", ["topics", "create", "--help"]),
    ("`millstream version --format json`", ["version", "--format", "json"]),
)


def sizes(environment: Environment) -> dict[str, int]:
    """Return the bytes of each installed package, with the bytecode that pip compiled."""
    import json

    found: dict[str, int] = json.loads(environment.python("-c", SIZES))
    return {name: size for name, size in found.items() if name not in NOT_OURS}


def cpu_s(command: Sequence[str], directory: Path) -> float:
    """Return the lowest CPU time of several runs."""
    times = []
    for _ in range(RUNS):
        before = os.times()
        subprocess.run(command, cwd=directory, stdout=subprocess.DEVNULL, check=True)
        after = os.times()
        times.append(
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system
        )
    return min(times)


def ready_s(environment: Environment) -> tuple[float, float]:
    """Return the lowest CPU and wall time from the start of ``serve`` to its ready line."""
    cpu, wall = [], []
    for _ in range(RUNS):
        started, before = time.monotonic(), os.times()
        with environment.broker():
            wall.append(time.monotonic() - started)
        after = os.times()
        cpu.append(
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system
        )
    return min(cpu), min(wall)


def report(environment: Environment) -> str:
    found = sizes(environment)
    lines = [
        f"{len(found)} packages, {sum(found.values()) / 1e6:.1f} MB",
        "",
        "| package | MB |",
        "| -- | -- |",
    ]
    lines += [
        f"| {name} | {size / 1e6:.1f} |"
        for name, size in sorted(found.items(), key=lambda row: -row[1])
    ]
    lines += ["", "| command | CPU seconds |", "| -- | -- |"]
    program = str(environment.directory / "bin" / "millstream")
    for title, words in COMMANDS:
        lines.append(f"| {title} | {cpu_s([program, *words], environment.home):.2f} |")
    cpu, wall = ready_s(environment)
    lines.append(f"| `millstream serve`, start to stop ({wall:.2f} s until ready) | {cpu:.2f} |")
    for title, statement in (
        ("`--help`", "import millstream.cli.main; millstream.cli.main.main(['--help'])"),
        ("`topics`", "import millstream.cli.app, millstream.cli.topics"),
    ):
        count = environment.python("-c", MODULES.format(statement)).split()[-1]
        lines.append(f"| modules after {title} | {count} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--wheel", type=Path, help="measure this file instead of the last commit")
    wheel = parser.parse_args().wheel
    with tempfile.TemporaryDirectory(prefix="millstream-footprint-") as scratch:
        if wheel is None:
            built = dist.build(ROOT, Path(scratch), dist.SURROUNDINGS[0])
            wheel = next(path for path in built if path.suffix == ".whl")
        environment = Environment(Path(scratch, "clean"))
        environment.install(str(wheel.resolve()))
        environment.millstream("topics", "--help")  # compiles the rest
        print(report(environment))
    return 0


if __name__ == "__main__":
    sys.exit(main())
