"""What a piece of work may take, as declared in `budgets.toml`, and what is wrong where it takes more."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from bench.counts.counter import Counts

FILE = Path(__file__).with_name("budgets.toml")
# Calls may grow by so much before anybody is told; a system call or a turn of the loop more is always told.
HEAD_ROOM = 0.10
WITH_HEAD_ROOM = ("python", "c")

_HEAD = """\
# What the broker does for one piece of work: functions of its own (python), functions in C that those call (c), receives, sends, system calls
# on files, turns of the event loop. Written by `python -m bench.counts --update`; say in the commit why a number grows.
"""


def load() -> dict[str, Counts]:
    return {name: Counts(**row) for name, row in tomllib.loads(FILE.read_text()).items()}


def save(found: Mapping[str, Counts]) -> None:
    rows = [
        "\n".join([f"[{name}]", *(f"{field} = {value}" for field, value in counts._asdict().items())])
        for name, counts in found.items()
    ]
    FILE.write_text(_HEAD + "\n" + "\n\n".join(rows) + "\n")


def limit(field: str, budget: int) -> int:
    return int(budget * (1 + HEAD_ROOM)) if field in WITH_HEAD_ROOM else budget


def excess(name: str, found: Counts, budget: Counts) -> list[str]:
    """One line for each count that grew beyond its limit."""
    return [
        f"{name}: {field} grew from {allowed} to {value} (at most {limit(field, allowed)}); "
        f"`python -m bench.counts --where {name}` shows which functions are called how often"
        for field, value, allowed in zip(Counts._fields, found, budget, strict=True)
        if value > limit(field, allowed)
    ]
