"""The broker's work for a request stays within its budget.

Counts, unlike seconds, are the same on every machine and in every run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.counts import budgets
from bench.counts.counter import Calls, Counts
from bench.counts.work import WORK, count
from bench.counts.world import World, world


@pytest.fixture(scope="module")
def broker_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("counts")) as broker_world:
        yield broker_world


@pytest.mark.parametrize("name", WORK)
def test_work_stays_within_its_budget(broker_world: World, name: str) -> None:
    grown = budgets.excess(name, count(broker_world, name), budgets.load()[name])
    assert not grown, "\n".join(grown)


def test_every_operation_has_a_budget() -> None:
    assert [*budgets.load()] == [*WORK]


def test_counts_are_reproducible(tmp_path: Path) -> None:
    runs = []
    for number in range(2):
        with world(tmp_path / str(number)) as broker_world:
            runs.append(
                [count(broker_world, name) for name in ("produce-one", "tail", "offset-commit")]
            )
    assert runs[0] == runs[1]


def test_growth_is_reported_with_count_and_command() -> None:
    budget = Counts(python=100, c=50, receives=1, sends=1, files=1, turns=0)
    assert budgets.excess("x", budget._replace(python=110, c=55), budget) == []
    assert budgets.excess("x", budget._replace(python=111, files=2), budget) == [
        "x: python grew from 100 to 111 (at most 110); "
        "`python -m bench.counts --where x` shows which functions are called how often",
        "x: files grew from 1 to 2 (at most 1); "
        "`python -m bench.counts --where x` shows which functions are called how often",
    ]


def test_only_calls_of_the_broker_are_counted() -> None:
    from millstream.wire.varint import encode_varint

    calls = Calls()
    calls.start()
    sorted([3, 1, 2], key=lambda number: -number)
    encode_varint(300)
    calls.stop()
    assert {code.co_name for code in calls.python} == {"encode_varint"}
