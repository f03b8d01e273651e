"""The corruption matrix: `make damage` runs all of it, `make damage SHORT=1` a sample in half a
minute.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from robust import damage_matrix as matrix
from robust import damage_world as world

pytestmark = pytest.mark.long

SAMPLE = 24
# Each is damage that was served, or took more than its partition down, before it was cured.
ALWAYS = (
    ("orders-0/*.txnindex", "flipped"),
    ("orders-0/*.txnindex", "missing"),
    ("orders-0/*.log", "unreadable"),
    ("__consumer_offsets-0/*.log", "flipped"),
    ("__transaction_state-0/*.log", "garbage"),
    ("orders-1/partition.metadata", "flipped"),
    ("log-start-offset-checkpoint", "garbage"),
)


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, tuple[Path, world.Seen]]:
    made = {}
    for kill in (False, True):
        data = tmp_path_factory.mktemp("template") / "data"
        made[kill] = (data, world.build(data, kill=kill))
    return made


def _violations(
    cells: list[matrix.Cell], template: Path, seen: world.Seen, scratch: Path, seed: str
) -> dict[str, list[str]]:
    found = {
        str(cell): matrix.violations(cell, template, scratch, seen, seed=seed) for cell in cells
    }
    return {cell: texts for cell, texts in found.items() if texts}


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_sample_of_damaged_files_harms_nothing_else(
    templates: dict[bool, tuple[Path, world.Seen]], tmp_path: Path, kill: bool
) -> None:
    template, seen = templates[kill]
    cells = matrix.cells(template, kill=kill)
    always = [
        cell
        for cell in cells
        if any(Path(cell.file).match(f) and cell.damage == d for f, d in ALWAYS)
    ]
    assert {cell.damage for cell in always} >= {damage for _file, damage in ALWAYS}
    chosen = random.Random(7).sample(cells, SAMPLE) + always
    assert _violations(chosen, template, seen, tmp_path / "data", "") == {}


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_every_damaged_file_harms_nothing_else(
    templates: dict[bool, tuple[Path, world.Seen]], tmp_path: Path, kill: bool
) -> None:
    template, seen = templates[kill]
    cells = matrix.cells(template, kill=kill)
    assert len(cells) > 300
    assert _violations(cells, template, seen, tmp_path / "data", os.environ.get("SEED", "")) == {}
