"""Every block of code in the documents runs as it stands there, and prints what is shown. Those
that need Spark: tests/stories/documents/test_doc_blocks_spark.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.testing import Kafka
from support.doc_session import session
from support.document_plan import NOT_RUN, PLANS, Part, all_parts, run_part
from support.documents import ROOT, blocks, documents, is_shown, steps

pytestmark = pytest.mark.timeout(300)

PROGRAMS = {"python", "console"}


@pytest.mark.parametrize("document", documents())
def test_every_document_with_programs_is_run(document: str) -> None:
    found = list(blocks(document))
    assert {one.language for one in found} <= PROGRAMS or PLANS[document].covered_by, (
        f"{document}: blocks of other languages are not run"
    )
    assert not found or document in PLANS, (
        f"{document} has no entry in tests/support/document_plan.py"
    )


def test_what_others_run_is_run_by_a_test_that_names_the_document() -> None:
    for document, plan in PLANS.items():
        if plan.covered_by:
            assert Path(document).name in (ROOT / plan.covered_by).read_text(encoding="utf-8")


def test_every_exception_is_still_needed() -> None:
    commands = {
        document: [
            step.command
            for block in blocks(document)
            if block.language == "console"
            for step in steps(block)
        ]
        for document in documents()
    }
    commands[""] = [one for some in commands.values() for one in some]
    for document, exceptions in NOT_RUN.items():
        for start in exceptions:
            assert any(one.startswith(start) for one in commands[document]), (document, start)


@pytest.mark.documents
@pytest.mark.parametrize("part", all_parts(spark=False), ids=str)
def test_it_runs_as_it_is_written(
    part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(tmp_path, monkeypatch, PLANS[part.document].replaced) as running:
        run_part(part, running)


@pytest.mark.documents
def test_the_tests_in_documents_pass(pytester: pytest.Pytester, millstream: Kafka) -> None:
    mine = [document for document, plan in PLANS.items() if not plan.covered_by]
    found = [
        one for document in mine for one in blocks(document) if one.tests or "testing" in document
    ]
    programs = {
        f"test_block_{number}": one.text.replace("localhost:9092", millstream.bootstrap)
        for number, one in enumerate(found)
    }
    pytester.makepyfile(**programs)
    result = pytester.runpytest_subprocess(
        "-p", "millstream.testing.plugin", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=sum(one.tests for one in found))


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (["a  b"], ["a b"], True),
        (["a"], ["b"], False),
        (["a"], ["a", "b"], False),
        (["a", "..."], ["a", "b", "c"], True),
        (["...", "c"], ["a", "b", "c"], True),
        (["...", "c"], ["a", "b"], False),
        (["took ... ms"], ["took 5 ms"], True),
        (["at localhost:9092, 0.12 s"], ["at 127.0.0.1:33333, 4 s"], True),
        (["id onpnvO2RTeaBBxzb5iA6Eg"], ["id P64UjNghTEmVE9Fff6QwXQ"], True),
        (["3 records"], ["4 records"], False),
    ],
)
def test_what_is_shown_is_compared(shown: list[str], printed: list[str], same: bool) -> None:
    assert is_shown(tuple(shown), printed) is same
