"""Move the fragments of this folder into CHANGELOG.md, as the section of a release."""

from __future__ import annotations

import datetime
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
HEADINGS = {
    "breaking": "Breaking changes",
    "feature": "Features",
    "fix": "Fixes",
    "docs": "Documentation",
}


def fragments(folder: Path) -> dict[str, list[Path]]:
    """Return the fragments by kind; raise if a file has no known kind."""
    by_kind: dict[str, list[Path]] = {kind: [] for kind in HEADINGS}
    for path in sorted(folder.glob("*.md")):
        if path.name == "README.md":
            continue
        kind = Path(path.stem).suffix.lstrip(".")
        if kind not in by_kind:
            kinds = ", ".join(HEADINGS)
            raise ValueError(f"{path.name}: name it <subject>.<kind>.md with one of {kinds}")
        by_kind[kind].append(path)
    return by_kind


def section(version: str, date: str, by_kind: dict[str, list[Path]]) -> str:
    """Return the section of a release: one heading per kind that has fragments."""
    parts = [f"## {version} ({date})"]
    for kind, paths in by_kind.items():
        if paths:
            bullets = "\n".join(path.read_text(encoding="utf-8").strip() for path in paths)
            parts.append(f"### {HEADINGS[kind]}\n\n{bullets}")
    return "\n\n".join(parts) + "\n\n"


def assemble(changelog: str, release: str) -> str:
    """Return the changelog with a release above all earlier ones."""
    first = re.search(r"^## ", changelog, re.M)
    at = first.start() if first else len(changelog)
    return changelog[:at] + release + changelog[at:]


def main(version: str) -> None:
    path = HERE.parent / "CHANGELOG.md"
    by_kind = fragments(HERE)
    release = section(version, datetime.date.today().isoformat(), by_kind)
    path.write_text(assemble(path.read_text(encoding="utf-8"), release), encoding="utf-8")
    for paths in by_kind.values():
        for fragment in paths:
            fragment.unlink()


if __name__ == "__main__":
    main(sys.argv[1])
