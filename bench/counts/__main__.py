"""`python -m bench.counts`: the work of the broker for each operation, beside its budget."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.counts import budgets, process
from bench.counts.counter import Counts
from bench.counts.work import WORK, count
from bench.counts.world import world


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.counts", description=__doc__)
    parser.add_argument(
        "--only", default="", help="names of pieces of work, separated by commas (default: all)"
    )
    parser.add_argument(
        "--where", metavar="NAME", choices=WORK, help="the functions of one piece, by count"
    )
    parser.add_argument("--update", action="store_true", help="make the current counts the budget")
    parser.add_argument(
        "--strace", action="store_true", help="system calls of a broker process, by strace"
    )
    parser.add_argument(
        "--callgrind", action="store_true", help="instructions of a broker process, by valgrind"
    )
    options = parser.parse_args(argv)
    names = [name for name in options.only.split(",") if name] or [*WORK]
    if unknown := [name for name in names if name not in WORK]:
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(WORK)}")
    if options.where:
        return show_where(options.where)
    tools = [tool for tool in process.TOOLS if getattr(options, tool)]
    if tools:
        return max([show_tool(tool, names) for tool in tools])
    counts = count_all(names)
    if options.update:
        budgets.save(budgets.load() | counts if budgets.FILE.exists() else counts)
    return show(counts)


def count_all(names: Sequence[str]) -> dict[str, Counts]:
    with tempfile.TemporaryDirectory() as scratch, world(Path(scratch)) as broker_world:
        return {name: count(broker_world, name) for name in names}


def show(results: dict[str, Counts]) -> int:
    """Print counts, with the budget in brackets if it differs. Return 1 if a limit is exceeded."""
    declared = budgets.load()
    table = Table("for one", *Counts._fields)
    for name, counts in results.items():
        cells = [
            str(value) if value == budget else f"{value} ({budget})"
            for value, budget in zip(counts, declared[name], strict=True)
        ]
        table.add_row(f"{name}: {WORK[name].title}", *cells)
    Console(width=None if sys.stdout.isatty() else 150).print(table)
    grown = [
        line
        for name, counts in results.items()
        for line in budgets.excess(name, counts, declared[name])
    ]
    print("\n".join(grown), end="\n" if grown else "")
    return int(bool(grown))


def show_where(name: str) -> int:
    with tempfile.TemporaryDirectory() as scratch, world(Path(scratch)) as broker_world:
        count(broker_world, name)
        calls = broker_world.calls.where()
    for function, times in calls.most_common():
        print(f"{times:6}  {function}")
    return 0


def show_tool(tool: str, names: Sequence[str]) -> int:
    if not process.is_installed(tool):
        print(f"{process.TOOLS[tool][0]} is not installed", file=sys.stderr)
        return 1
    for name in names:
        rows = sorted(process.per_operation(tool, name).items(), key=lambda row: -row[1])
        print(f"{name}: " + ", ".join(f"{key} {value:,.1f}" for key, value in rows), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
