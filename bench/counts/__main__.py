"""`python -m bench.counts`: what the broker does for each piece of work, beside its budget."""

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
    parser.add_argument("--where", metavar="NAME", choices=WORK, help="the functions of one piece, by count")
    parser.add_argument("--update", action="store_true", help="make what is counted now the budget")
    parser.add_argument("--strace", action="store_true", help="system calls of a broker process, by strace")
    parser.add_argument(
        "--callgrind", action="store_true", help="instructions of a broker process, by valgrind"
    )
    given = parser.parse_args(argv)
    names = [name for name in given.only.split(",") if name] or [*WORK]
    if unknown := [name for name in names if name not in WORK]:
        parser.error(f"there is no {', '.join(unknown)}; there is {', '.join(WORK)}")
    if given.where:
        return show_where(given.where)
    tools = [tool for tool in process.TOOLS if getattr(given, tool)]
    if tools:
        return max([show_tool(tool, names) for tool in tools])
    found = counted(names)
    if given.update:
        budgets.save(budgets.load() | found if budgets.FILE.exists() else found)
    return show(found)


def counted(names: Sequence[str]) -> dict[str, Counts]:
    with tempfile.TemporaryDirectory() as scratch, world(Path(scratch)) as here:
        return {name: count(here, name) for name in names}


def show(found: dict[str, Counts]) -> int:
    """A count, and in brackets its budget where that is another. 1 if something is beyond its limit."""
    declared = budgets.load()
    table = Table("for one", *Counts._fields)
    for name, counts in found.items():
        cells = [
            str(value) if value == budget else f"{value} ({budget})"
            for value, budget in zip(counts, declared[name], strict=True)
        ]
        table.add_row(f"{name}: {WORK[name].what}", *cells)
    Console(width=None if sys.stdout.isatty() else 150).print(table)
    grown = [line for name, counts in found.items() for line in budgets.excess(name, counts, declared[name])]
    print("\n".join(grown), end="\n" if grown else "")
    return int(bool(grown))


def show_where(name: str) -> int:
    with tempfile.TemporaryDirectory() as scratch, world(Path(scratch)) as here:
        count(here, name)
        found = here.calls.where()
    for place, times in found.most_common():
        print(f"{times:6}  {place}")
    return 0


def show_tool(tool: str, names: Sequence[str]) -> int:
    if not process.is_there(tool):
        print(f"{process.TOOLS[tool][0]} is not installed: nothing is counted with it", file=sys.stderr)
        return 1
    for name in names:
        found = sorted(process.per_piece(tool, name).items(), key=lambda row: -row[1])
        print(f"{name}: " + ", ".join(f"{key} {value:,.1f}" for key, value in found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
