"""The generated reference is up to date, what the documents link to and name exists, and the site is built of them without a complaint."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from test_tidy import LAYERS

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SOURCE = ROOT / "src" / "millstream"


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


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_of_ours_that_documents_name_exist(path: Path) -> None:
    packages = "|".join(one.name for one in SOURCE.iterdir() if one.is_dir())
    for name in re.findall(rf"`((?:{packages})/[\w/]+\.py)`", path.read_text(encoding="utf-8")):
        assert (SOURCE / name).exists(), f"{path.name} names {name}"


def test_the_layers_of_the_architecture_are_those_that_are_enforced() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    told: dict[str, set[str]] = {}
    for package, allowed in re.findall(r"^\| `(\w+)` \|.*\| ([^|]*) \|$", text, re.M):
        if package in LAYERS:
            every = set(told) if "all above" in allowed else set()
            told[package] = every | (LAYERS.keys() & set(re.findall(r"\w+", allowed)))
    assert told == LAYERS


def test_the_site_is_built_without_warnings_and_needs_no_network(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "-b", "html"]
    ran = subprocess.run(
        [*build, "-d", str(tmp_path / "doctrees"), str(ROOT / "docs"), str(tmp_path / "site")],
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    pages = list((tmp_path / "site").rglob("*.html"))
    assert {"tutorial.html", "settings.html", "replication.html", "sql.html"} <= {one.name for one in pages}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(
            r'<(?:script|img|iframe)[^>]*src="(https?:[^"]*)|<link[^>]*href="(https?:[^"]*)', text
        )
        assert not loaded, page.name
