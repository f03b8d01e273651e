"""The documents: generated pages are current, links and named files exist, the site builds without
warnings.
"""

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
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "changelog.d").glob("*.md"), *(ROOT / "docs").rglob("*.md")]
)
SOURCE = ROOT / "src" / "millstream"
# Folders that documents name from the root of the repository.
FOLDERS = ("bench", "changelog.d", "docs", "examples", "release", "src", "tests")
# Written by the commands that the documents describe.
GENERATED = {"bench/results", "bench/results/first-run.jsonl", "tests/interop/.cache"}


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def named_paths(text: str) -> set[str]:
    """Return the paths in backticks, except those with placeholders or patterns."""
    packages = {folder.name for folder in SOURCE.iterdir() if folder.is_dir()}
    return {
        path
        for path in re.findall(r"`([\w.-]+/[\w./-]*)`", text)
        if path.partition("/")[0] in packages | set(FOLDERS) and path not in GENERATED
    }


def test_reference_pages_match_the_declarations() -> None:
    generator = load(ROOT / "docs" / "generate.py")
    for name, page in generator.PAGES.items():
        path = ROOT / "docs" / "reference" / name
        assert path.read_text(encoding="utf-8") == page(), f"{path} is stale: run make docs"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_resolve(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_named_in_documents_exist(path: Path) -> None:
    for name in named_paths(path.read_text(encoding="utf-8")):
        assert (SOURCE / name).exists() or (ROOT / name).exists(), f"{path.name} names {name}"


def test_architecture_stays_short() -> None:
    lines = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 125


def test_layers_in_architecture_are_the_enforced_ones() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    documented: dict[str, set[str]] = {}
    for package, allowed in re.findall(r"^\| `(\w+)` \|.*\| ([^|]*) \|$", text, re.M):
        if package in LAYERS:
            above = set(documented) if "all above" in allowed else set()
            documented[package] = above | (LAYERS.keys() & set(re.findall(r"\w+", allowed)))
    assert documented == LAYERS


def test_fragments_become_a_release_of_the_changelog(tmp_path: Path) -> None:
    assemble = load(ROOT / "changelog.d" / "assemble.py")
    (tmp_path / "README.md").write_text("explains fragments")
    (tmp_path / "racks.feature.md").write_text("- `doctor` reports racks.\n")
    (tmp_path / "lag.fix.md").write_text("- LAG is exact.\n")
    release = assemble.section("0.2.0", "2026-03-01", assemble.fragments(tmp_path))
    assert assemble.assemble("# Changelog\n\n## 0.1.0\n", release) == (
        "# Changelog\n\n## 0.2.0 (2026-03-01)\n\n### Features\n\n- `doctor` reports racks.\n\n"
        "### Fixes\n\n- LAG is exact.\n\n## 0.1.0\n"
    )
    (tmp_path / "lag.md").write_text("- no kind")
    with pytest.raises(ValueError, match=r"lag\.md"):
        assemble.fragments(tmp_path)


def test_site_builds_without_warnings_and_needs_no_network(tmp_path: Path) -> None:
    build = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "--fail-on-warning",
        "--keep-going",
        "-b",
        "html",
    ]
    result = subprocess.run(
        [*build, "-d", str(tmp_path / "doctrees"), str(ROOT / "docs"), str(tmp_path / "site")],
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    pages = list((tmp_path / "site").rglob("*.html"))
    assert {"tutorial.html", "settings.html", "replication.html", "sql.html"} <= {
        page.name for page in pages
    }
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(
            r'<(?:script|img|iframe)[^>]*src="(https?:[^"]*)|<link[^>]*href="(https?:[^"]*)', text
        )
        assert not loaded, page.name
