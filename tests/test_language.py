"""Plain English as a test: the worst patterns of the old dialect stay out of what is finished.

`docs/internals/style.md` explains the rules. A package, document or test folder enters `FINISHED`
when its names, docstrings, comments and texts follow them; nothing leaves the list.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

FINISHED_CODE: tuple[str, ...] = (
    "bench",
    "changelog.d",
    "docs",
    "release",
    "src/millstream/broker",
    "src/millstream/cli",
    "src/millstream/client",
    "src/millstream/cluster",
    "src/millstream/connect",
    "src/millstream/control",
    "src/millstream/core",
    "src/millstream/groups",
    "src/millstream/local",
    "src/millstream/log",
    "src/millstream/pipelines",
    "src/millstream/ports",
    "src/millstream/replication",
    "src/millstream/sim",
    "src/millstream/spark",
    "src/millstream/sql",
    "src/millstream/testing",
    "src/millstream/transactions",
    "src/millstream/wire",
    "src/pyspark_millstream",
    "tests/bench",
    "tests/broker",
    "tests/client",
    "tests/cluster",
    "tests/connect",
    "tests/control",
    "tests/pipelines",
    "tests/replication",
    "tests/sim",
    "tests/spark",
    "tests/sql",
    "tests/stories/clients",
    "tests/stories/configs",
    "tests/stories/damage",
    "tests/stories/documents",
    "tests/stories/failover",
    "tests/support/cluster",
)
FINISHED_DOCUMENTS: tuple[str, ...] = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "changelog.d/README.md",
    "docs/benchmarks.md",
    "docs/changelog.md",
    "docs/cli.md",
    "docs/clients.md",
    "docs/cluster.md",
    "docs/connectors.md",
    "docs/dead-letters.md",
    "docs/index.md",
    "docs/internals/architecture.md",
    "docs/internals/contributing.md",
    "docs/internals/control.md",
    "docs/internals/coordinators.md",
    "docs/internals/fetch.md",
    "docs/internals/flows.md",
    "docs/internals/footprint.md",
    "docs/internals/index.md",
    "docs/internals/join.md",
    "docs/internals/log.md",
    "docs/internals/micro-batch.md",
    "docs/internals/not-obvious.md",
    "docs/internals/produce.md",
    "docs/internals/replication.md",
    "docs/internals/simulation.md",
    "docs/internals/spark.md",
    "docs/internals/style.md",
    "docs/internals/transactions.md",
    "docs/interop.md",
    "docs/lab/chaos.md",
    "docs/lab/index.md",
    "docs/lab/lessons.md",
    "docs/lab/simulation.md",
    "docs/mirroring.md",
    "docs/pipelines.md",
    "docs/reference/apis.md",
    "docs/reference/commands.md",
    "docs/reference/errors.md",
    "docs/reference/modules.md",
    "docs/reference/settings.md",
    "docs/reliability.md",
    "docs/scaling.md",
    "docs/spark-cluster.md",
    "docs/spark-sink.md",
    "docs/spark.md",
    "docs/sql.md",
    "docs/support.md",
    "docs/testing-elsewhere.md",
    "docs/testing.md",
    "docs/tutorial.md",
)

MAX_COLUMNS = 100

# Words that hide who does what, or that have a plain twin.
WORDS = re.compile(
    r"\b(meanwhile|anew|nobody|somebody|whoever|of (its|their|his) own|so many|(is|are|was|were) told"
    r"|there (is|are) (no|none)\b[^.]{0,30}\bthat (is|are) there)\b",
    re.IGNORECASE,
)
# A sentence that starts with a relative clause: "What is refused is ...", "Who waits ...".
RELATIVE = re.compile(
    r"(?:^|[.!?:]\s+)(?:What|Who|Whoever|Where) (?:is|are|was|were|has|have|had|it|the|a|an|no|not|one"
    r"|nothing|waits?|asks?|comes?|goes?|does|can|may|must)\b[^?]*$",
    re.MULTILINE,
)
# Names that say nothing about the thing they hold.
PRONOUNS = frozenset({"one", "told", "it", "what"})


def python_files() -> list[Path]:
    return sorted(path for folder in FINISHED_CODE for path in (ROOT / folder).rglob("*.py"))


def documents() -> list[Path]:
    return [ROOT / name for name in FINISHED_DOCUMENTS]


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield docstrings and comments of a Python file, with the line where each begins."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string.lstrip("#: ")


def text_of(document: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of prose of a Markdown file: no code blocks, no tables."""
    fenced = False
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        elif not fenced and not line.startswith("|"):
            yield number, line


def dialect(number: int, text: str, where: Path) -> list[str]:
    spoken = re.sub(r"``?[^`]*``?", "", text)
    matches = [
        match.group(0) for pattern in (WORDS, RELATIVE) for match in pattern.finditer(spoken)
    ]
    return [f"{where.relative_to(ROOT)}:{number}: {match.strip()[:60]!r}" for match in matches]


def test_finished_code_is_in_plain_english() -> None:
    wrong = [
        complaint
        for path in python_files()
        for number, text in prose_of(path)
        for complaint in dialect(number, text, path)
    ]
    assert wrong == []


def test_finished_code_names_things() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: a variable called {node.id!r}"
        for path in python_files()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in PRONOUNS
    ]
    assert wrong == []


def test_prose_of_finished_code_is_wrapped() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number + offset}"
        for path in python_files()
        for number, text in prose_of(path)
        for offset, line in enumerate(text.splitlines())
        if len(line) > MAX_COLUMNS and " " in line.strip() and "://" not in line
    ]
    assert wrong == []


def test_finished_documents_are_in_plain_english() -> None:
    wrong = [
        complaint
        for path in documents()
        for number, text in text_of(path)
        for complaint in dialect(number, text, path)
    ]
    assert wrong == []


def test_finished_documents_are_wrapped() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in documents()
        for number, line in text_of(path)
        if len(line) > MAX_COLUMNS and breakable(line)
    ]
    assert wrong == []


def breakable(line: str) -> bool:
    """Return whether a line has a space outside of code and links, behind a list marker."""
    text = re.sub(r"`[^`]*`|\[[^]]*\]\([^)]*\)", "x", line.strip())
    return " " in re.sub(r"^([-*]|\d+\.) ", "", text)
