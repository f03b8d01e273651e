"""The documents as programs: their blocks of code, the commands in them, and what these are shown
to print.

A ``console`` block is commands (``$ ``, going on in the next line after a backslash) and what each
of them prints. Shown output is compared with the real one, but for what no two runs have in common:
addresses, times, durations, process and topic ids (``SAME``), and spaces. ``...`` stands for any
text, and in a line of its own for any lines. A command without output shown may print what it
likes. A ``python`` block that begins with ``# name.py`` is that file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(.*)$")
# Languages of blocks that nobody runs: what a program prints, pictures, contents of files,
# directives of the site.
NO_PROGRAMS = {"", "text", "json", "properties", "{toctree}", "{include}"}
ANY_LINES = "..."
SAME = [
    (re.compile(r"(localhost|127\.0\.0\.1):\d+"), "HOST:PORT"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z?"), "TIME"),
    (re.compile(r"\bpid \d+"), "pid N"),
    (re.compile(r"broker \d+ is the controller"), "broker N is the controller"),
    (re.compile(r"\b\d+(\.\d+)? ?s\b"), "N s"),
    (re.compile(r"\b[\w-]{22}\b(?<!-)"), "ID"),
    (re.compile(r"-{3,}"), "---"),
    (re.compile(r"\s+"), " "),
]


class Block(NamedTuple):
    """A fenced block, and the heading of second order that it stands under."""

    document: str
    section: str
    language: str
    line: int
    text: str

    @property
    def file(self) -> str | None:
        """The name of the file that this is."""
        named = re.match(r"# ([\w-]+\.py)\n", self.text)
        return named[1] if named and self.language == "python" else None

    @property
    def tests(self) -> int:
        """How many tests of pytest this has."""
        return (
            len(re.findall(r"^(?: {4})?def test_", self.text, re.M))
            if self.language == "python"
            else 0
        )

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


class Step(NamedTuple):
    """A command, and the lines that it is shown to print."""

    command: str
    shown: tuple[str, ...]


def documents() -> list[str]:
    """Every document, named from the top of the repository."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def blocks(document: str) -> Iterator[Block]:
    """The blocks of a document that are programs."""
    language: str | None = None
    section, start, text = "", 0, []
    for number, line in enumerate((ROOT / document).read_text(encoding="utf-8").splitlines(), 1):
        fence = FENCE.match(line)
        if fence is None:
            text.append(line + "\n")
            if language is None and line.startswith("## "):
                section = line[3:]
        elif language is None:
            language, start, text = fence[1].split(" ")[0], number, []
        else:
            if language not in NO_PROGRAMS:
                yield Block(document, section, language, start, "".join(text))
            language = None


def steps(block: Block) -> list[Step]:
    """The commands of a console block."""
    found: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and found[-1][0].endswith("\\"):
            found[-1] = (f"{found[-1][0]}\n{line}", [])
        else:
            assert found, f"{block}: output without a command"
            found[-1][1].append(line)
    return [Step(command, tuple(shown)) for command, shown in found]


def pattern(line: str) -> re.Pattern[str]:
    """What a printed line, brought to its common form, has to match to be the line
    that is shown.
    """
    return re.compile(".*".join(re.escape(part) for part in common(line).split(ANY_LINES)))


def common(line: str) -> str:
    for varying, name in SAME:
        line = varying.sub(name, line)
    return line.strip()


def is_shown(shown: tuple[str, ...], printed: list[str]) -> bool:
    """Whether a program printed what the document shows."""
    if not shown:
        return not printed
    if shown[0].strip() == ANY_LINES:
        return any(is_shown(shown[1:], printed[skip:]) for skip in range(len(printed) + 1))
    return bool(printed and pattern(shown[0]).fullmatch(common(printed[0]))) and is_shown(
        shown[1:], printed[1:]
    )
