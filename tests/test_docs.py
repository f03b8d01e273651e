"""The generated reference is up to date, and what the documents link to exists."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_pages_are_what_the_declarations_say() -> None:
    made = generator()
    for name, page in made.PAGES.items():
        path = ROOT / "docs" / "reference" / name
        assert path.read_text(encoding="utf-8") == page(), f"{path} is stale: run make docs"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_files_named_in_the_architecture_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for name in re.findall(
        r"`((?:core|wire|control|replication|ports|log|cluster|broker|client|cli|sim)/[\w/]+\.py)`", text
    ):
        assert (ROOT / "src" / "millstream" / name).exists(), f"ARCHITECTURE.md names {name}"
