"""The examples for clients run, and print what they promise."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing import Kafka, broker

EXAMPLES = Path(__file__).parent.parent / "examples" / "clients"

# What is printed, as a regular expression.
PRINTS = {
    "point_to_point": r"300 jobs done by [123] workers: .*",
    "publish_subscribe": r"""mail: \['the mill turns', 'the stream flows'\]
archive: \['the mill turns', 'the stream flows'\]
mail, later: \['rain is coming'\]
archive, later: \['rain is coming'\]
audit, new: \['the mill turns', 'the stream flows', 'rain is coming'\]""",
    "delivery_guarantees": r"""at-most-once: [1-9]\d* lost, 0 twice
at-least-once: 0 lost, [1-9]\d* twice
exactly-once: 0 lost, 0 twice""",
    "replay_by_time": r"""the last 12 minutes: \[10, 5\]
since a moment: \[20, 15, 10, 5\]
the last two: \[10, 5\]""",
    "worker_pool": r"""1000 payments of 20 accounts, each account's in order
lag: 0""",
    "transactions": r"""Grace: MS1 is sold out, and there is no invoice
example-invoices: \[\('Ada', 'MS1'\), \('Grace', 'MS2'\)\]
example-seats: \[\('Ada', 'MS1'\), \('Grace', 'MS2'\)\]""",
    "latency": r"100 sent, 100 read; half within \d+ ms, 99 of 100 within \d+ ms",
}


def test_every_example_is_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == PRINTS.keys()


@pytest.fixture(scope="module")
def shared() -> Iterator[Kafka]:
    """One broker for all of them, as somebody has who tries one after the other."""
    with broker() as kafka:
        yield kafka


@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
@pytest.mark.parametrize("name", PRINTS)
def test_it_runs_beside_the_others_and_twice(
    name: str, again: bool, shared: Kafka, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](shared.bootstrap)
    assert re.fullmatch(PRINTS[name], capsys.readouterr().out.strip())
