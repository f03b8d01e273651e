"""What the broker does for a request stays within its budget. Counts instead of seconds: the same on every machine and in every run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.counts import budgets
from bench.counts.counter import Calls, Counts
from bench.counts.work import WORK, count
from bench.counts.world import World, world


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("counts")) as one:
        yield one


@pytest.mark.parametrize("name", WORK)
def test_work_stays_within_its_budget(here: World, name: str) -> None:
    grown = budgets.excess(name, count(here, name), budgets.load()[name])
    assert not grown, "\n".join(grown)


def test_every_piece_of_work_has_a_budget() -> None:
    assert [*budgets.load()] == [*WORK]


def test_counting_twice_gives_the_same(tmp_path: Path) -> None:
    found = []
    for number in range(2):
        with world(tmp_path / str(number)) as one:
            found.append([count(one, name) for name in ("produce-one", "tail", "offset-commit")])
    assert found[0] == found[1]


def test_growth_is_told_with_what_and_where() -> None:
    budget = Counts(python=100, c=50, receives=1, sends=1, files=1, turns=0)
    assert budgets.excess("x", budget._replace(python=110, c=55), budget) == []
    assert budgets.excess("x", budget._replace(python=111, files=2), budget) == [
        "x: python grew from 100 to 111 (at most 110); `python -m bench.counts --where x` shows which functions are called how often",
        "x: files grew from 1 to 2 (at most 1); `python -m bench.counts --where x` shows which functions are called how often",
    ]


def test_calls_of_the_broker_are_counted_and_those_of_others_are_not() -> None:
    from millstream.wire.varint import encode_varint

    calls = Calls()
    calls.start()
    sorted([3, 1, 2], key=lambda one: -one)
    encode_varint(300)
    calls.stop()
    assert {code.co_name for code in calls.python} == {"encode_varint"}
