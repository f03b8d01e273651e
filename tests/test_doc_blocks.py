"""The Python in the documents about clients and tests runs as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from millstream.testing import Kafka

DOCS = Path(__file__).parent.parent / "docs"


def blocks(name: str) -> list[str]:
    """The Python in a document, named from the folder of the documents."""
    return re.findall(r"^```python\n(.*?)^```", (DOCS / name).read_text(encoding="utf-8"), re.M | re.S)


def test_blocks_about_clients_run_one_after_the_other(
    millstream: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = blocks("clients.md")
    module = ModuleType("clients_document")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for number, block in enumerate(found, 1):
        text = block.replace("localhost:9092", millstream.bootstrap)
        exec(compile(text, f"clients.md, block {number}", "exec", dont_inherit=True), module.__dict__)
    assert len(found) > 5
    assert len(millstream.consume("invoices")) == 1


def test_blocks_about_tests_pass(pytester: pytest.Pytester, millstream: Kafka) -> None:
    found = [
        one.replace("localhost:9092", millstream.bootstrap)
        for one in blocks("testing.md") + blocks("../README.md")
    ]
    programs = {f"test_block_{number}": block for number, block in enumerate(found)}
    pytester.makepyfile(**programs)
    passed = sum(len(re.findall(r"^def test_", block, re.M)) for block in found)
    result = pytester.runpytest_subprocess("-p", "millstream.testing.plugin", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=passed)  # the block without a test runs when it is collected
