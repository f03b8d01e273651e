"""The budget of each operation in `budgets.toml`, and the counts that exceed it."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from bench.counts.counter import Counts

FILE = Path(__file__).with_name("budgets.toml")
# Calls may grow by this share. System calls and turns of the loop may not grow.
HEAD_ROOM = 0.10
WITH_HEAD_ROOM = ("python", "c")

_HEAD = """\
# The work of the broker for one operation: its functions (python), functions in C that those call
# (c), receives, sends, system calls on files, turns of the event loop. Written by
# `python -m bench.counts --update`; give the reason in the commit if a number grows.
"""


def load() -> dict[str, Counts]:
    return {name: Counts(**row) for name, row in tomllib.loads(FILE.read_text()).items()}


def save(results: Mapping[str, Counts]) -> None:
    rows = [
        "\n".join(
            [f"[{name}]", *(f"{field} = {value}" for field, value in counts._asdict().items())]
        )
        for name, counts in results.items()
    ]
    FILE.write_text(_HEAD + "\n" + "\n\n".join(rows) + "\n")


def limit(field: str, budget: int) -> int:
    return int(budget * (1 + HEAD_ROOM)) if field in WITH_HEAD_ROOM else budget


def excess(name: str, counts: Counts, budget: Counts) -> list[str]:
    """Return one line for each count that exceeds its limit."""
    return [
        f"{name}: {field} grew from {allowed} to {value} (at most {limit(field, allowed)}); "
        f"`python -m bench.counts --where {name}` shows which functions are called how often"
        for field, value, allowed in zip(Counts._fields, counts, budget, strict=True)
        if value > limit(field, allowed)
    ]
