"""The house rules as a test: layers, purity, a docstring in every file, one place for one thing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "millstream"

# package -> the packages of ours that it may import
LAYERS: dict[str, set[str]] = {
    "core": set(),
    "wire": {"core"},
    "replication": {"core", "wire"},
    "control": {"core", "wire"},
    "groups": {"core", "wire"},
    "transactions": {"core", "wire"},
    "ports": {"core"},
    "log": {"core", "wire", "ports"},
    "cluster": {"core", "wire", "replication", "control", "groups", "transactions", "ports", "log"},
    "broker": {
        "core",
        "wire",
        "replication",
        "control",
        "groups",
        "transactions",
        "ports",
        "log",
        "cluster",
    },
    "client": {"core", "wire", "ports"},
    "spark": {"core", "wire", "client"},
    "pipelines": {"core", "client", "spark"},
    "connect": {"core", "wire", "client", "spark", "pipelines"},
    "sql": {"core", "client", "spark", "pipelines"},
    # `serve` starts a broker, `log dump` reads files without one
    "cli": {"core", "client", "broker", "log", "spark", "pipelines", "connect", "sql"},
    # a broker in every test, and what a test does with it
    "testing": {"core", "wire", "ports", "broker", "client", "cli"},
    "sim": {"core", "wire", "replication", "control", "ports", "log", "cluster", "broker", "client"},
}
PURE = {"core", "wire", "replication", "control", "groups", "transactions"}
# What a decision may not touch: it gets time and randomness as arguments and returns what is to be done.
IMPURE_MODULES = {
    "asyncio",
    "random",
    "secrets",
    "socket",
    "subprocess",
    "threading",
    "time",
    "select",
    "shutil",
    "tempfile",
}
IMPURE_NAMES = {"open", "print", "input"}
MOST_LINES = 700

FILES = sorted(SOURCE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py")) + sorted((ROOT / "bench").rglob("*.py"))


def package_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else ""


def imports_of(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
    return found


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_imports_stay_within_the_layer(path: Path) -> None:
    package = package_of(path)
    if not package:
        return
    allowed = LAYERS[package] | {package}
    for name in imports_of(ast.parse(path.read_text())):
        parts = name.split(".")
        if parts[0] == "millstream" and len(parts) > 1:
            assert parts[1] in allowed, f"{relative(path)} imports {name}"


@pytest.mark.parametrize("path", [p for p in FILES if package_of(p) in PURE], ids=relative)
def test_pure_packages_have_no_io_no_clock_no_chance(path: Path) -> None:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await), f"{relative(path)}: async"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in IMPURE_NAMES, f"{relative(path)}: {node.func.id}()"
    for name in imports_of(tree):
        assert name.split(".")[0] not in IMPURE_MODULES | {"os"}, f"{relative(path)} imports {name}"


@pytest.mark.parametrize("path", FILES + TESTS, ids=relative)
def test_every_file_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{relative(path)} opens without a docstring"


@pytest.mark.parametrize("path", FILES + TESTS, ids=relative)
def test_files_keep_to_one_subject(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MOST_LINES, f"{relative(path)} has {lines} lines"


@pytest.mark.parametrize("path", [p for p in FILES if p.name != "__init__.py"], ids=relative)
def test_no_bare_tasks_and_no_swallowed_exceptions(path: Path) -> None:
    """Every task has an owner that keeps it; only dispatch catches broadly."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = ast.unparse(node.value.func)
            owned = called.endswith(
                ("_tasks.create_task", "group.create_task")
            )  # a TaskGroup keeps its tasks
            dropped = called.endswith("create_task") and not owned
            assert not dropped, f"{relative(path)}:{node.lineno} drops a task"
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"{relative(path)}:{node.lineno} bare except"


def test_every_api_has_a_message_a_handler_and_a_place_in_the_table() -> None:
    from millstream.wire.apis import APIS

    modules = {api.module for api in APIS}
    for folder in ("wire/messages", "broker/handlers"):
        files = {path.stem for path in (SOURCE / folder).glob("*.py")} - {"__init__"}
        assert files == modules, folder


def test_the_simulation_is_used_by_tests_only() -> None:
    for path in FILES:
        if package_of(path) != "sim":
            assert not any(
                name.startswith("millstream.sim") for name in imports_of(ast.parse(path.read_text()))
            )
