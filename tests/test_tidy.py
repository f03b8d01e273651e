"""The house rules as a test: layers, purity, a docstring in every file, one place for one thing.

`python tests/test_tidy.py` prints how many modules have a test file of their name.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "millstream"
TEST_ROOT = ROOT / "tests"

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
    # servers as child processes
    "local": {"core", "client"},
    # `serve` starts a broker, `log dump` reads files without one
    "cli": {"core", "client", "local", "broker", "log", "spark", "pipelines", "connect", "sql"},
    # a broker in every test, and what a test does with it
    "testing": {"core", "wire", "ports", "broker", "client", "local"},
    "sim": {
        "core",
        "wire",
        "replication",
        "control",
        "ports",
        "log",
        "cluster",
        "broker",
        "client",
    },
}
PURE = {"core", "wire", "replication", "control", "groups", "transactions"}
# What a decision may not touch: it gets time and randomness as arguments and returns what is to be
# done.
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
MOST_LINES = 720
MOST_METHODS = 25
# package -> its classes that are still wider; a package without an entry keeps to the rule
WIDE_CLASSES_ALLOWED: dict[str, set[str]] = {}

# Folders of tests that mirror no package: stories by subject, helpers, and suites with a purpose
# and a target of the Makefile.
STORIES, SUPPORT = "stories", "support"
SUITES = {"bench", "chaos", "compat", "fuzz", "interop", "nemesis", "robust"}
# One file for each API: tests reach them through the broker or through the declarations.
ONE_PER_API = {SOURCE / "wire" / "messages", SOURCE / "broker" / "handlers"}

FILES = sorted(SOURCE.rglob("*.py"))
TESTS = sorted(TEST_ROOT.rglob("*.py")) + sorted((ROOT / "bench").rglob("*.py"))


def package_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else ""


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports_of(path: Path) -> list[str]:
    found = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
    return found


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


# One test for all files: a test for each and each rule took longer to set up than to run.
def test_imports_stay_within_the_layer() -> None:
    wrong = [
        f"{relative(path)} imports {name}"
        for path in FILES
        if (package := package_of(path))
        for name in imports_of(path)
        if name.startswith("millstream.") and name.split(".")[1] not in LAYERS[package] | {package}
    ]
    assert wrong == []


def test_pure_packages_have_no_io_no_clock_no_chance() -> None:
    wrong = []
    pure = [path for path in FILES if package_of(path) in PURE]
    assert len(pure) > len(PURE)
    for path in pure:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.AsyncFunctionDef | ast.Await):
                wrong.append(f"{relative(path)}:{node.lineno} async")
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in IMPURE_NAMES
            ):
                wrong.append(f"{relative(path)}:{node.lineno} {node.func.id}()")
        impure = [
            name for name in imports_of(path) if name.split(".")[0] in IMPURE_MODULES | {"os"}
        ]
        wrong += [f"{relative(path)} imports {name}" for name in impure]
    assert wrong == []


def test_every_file_says_what_it_is_for() -> None:
    opened = {path: path.read_text().lstrip()[:5] for path in FILES + TESTS}
    assert [
        relative(path) for path, text in opened.items() if not text.startswith(('"""', 'r"""'))
    ] == []


def test_files_keep_to_one_subject() -> None:
    lines = {relative(path): len(path.read_text().splitlines()) for path in FILES + TESTS}
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


def test_classes_have_one_responsibility() -> None:
    """A class with more methods wants to be split.

    The list of those that are not yet only shrinks.
    """
    wide: dict[str, set[str]] = {}
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                methods = [
                    item
                    for item in node.body
                    if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
                ]
                if len(methods) > MOST_METHODS:
                    wide.setdefault(package_of(path), set()).add(node.name)
    assert wide == WIDE_CLASSES_ALLOWED


def test_no_bare_tasks_and_no_swallowed_exceptions() -> None:
    """Every task has an owner that keeps it; only dispatch catches broadly."""
    wrong = []
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                called = ast.unparse(node.value.func)
                # a TaskGroup keeps its tasks
                owned = called.endswith(("_tasks.create_task", "group.create_task"))
                if called.endswith("create_task") and not owned:
                    wrong.append(f"{relative(path)}:{node.lineno} drops a task")
            if isinstance(node, ast.ExceptHandler) and node.type is None:
                wrong.append(f"{relative(path)}:{node.lineno} bare except")
    assert wrong == []


def test_every_api_has_a_message_a_handler_and_a_place_in_the_table() -> None:
    from millstream.wire.apis import APIS

    modules = {api.module for api in APIS}
    for folder in ("wire/messages", "broker/handlers"):
        files = {path.stem for path in (SOURCE / folder).glob("*.py")} - {"__init__"}
        assert files == modules, folder


def test_the_simulation_is_used_by_tests_only() -> None:
    others = [path for path in FILES if package_of(path) != "sim"]
    assert [
        relative(path)
        for path in others
        if any(name.startswith("millstream.sim") for name in imports_of(path))
    ] == []


def mirrored_tests() -> list[Path]:
    """Return the Python files below `tests/<package>`."""
    packages = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    return [
        path for path in TESTS if path.is_relative_to(TEST_ROOT) and folder_of(path) in packages
    ]


def folder_of(path: Path) -> str:
    """Return the first folder below `tests`, empty for files that lie there."""
    parts = path.relative_to(TEST_ROOT).parts
    return parts[0] if len(parts) > 1 else ""


def subject_of(test: Path) -> Path | None:
    """Return the module that `test_<module>.py` or `test_<module>_<aspect>.py` is named after."""
    folder = SOURCE / test.parent.relative_to(TEST_ROOT)
    words = test.stem.removeprefix("test_").split("_")
    names = ["_".join(words[:count]) for count in range(len(words), 0, -1)]
    modules = [
        made for name in names for made in (folder / f"{name}.py", folder / name / "__init__.py")
    ]
    return next((module for module in modules if module.exists()), None)


def test_tests_of_a_package_are_named_after_its_modules() -> None:
    """Whoever looks for the tests of `log/segments/open_files.py` finds
    `tests/log/segments/test_open_files.py`.
    """
    mirrored = mirrored_tests()
    assert len(mirrored) > len(LAYERS)
    wrong = [
        f"{relative(path)} is named after no module; if it tells a story of several, it belongs to tests/{STORIES}"
        if path.stem.startswith("test_")
        else f"{relative(path)} is a helper, which belongs to tests/{SUPPORT}"
        for path in mirrored
        if path.name != "conftest.py" and not (path.stem.startswith("test_") and subject_of(path))
    ]
    assert wrong == []


def test_other_tests_are_stories_by_subject_or_a_suite() -> None:
    others = set(TESTS) - set(mirrored_tests())
    below = {path: folder_of(path) for path in others if path.is_relative_to(TEST_ROOT)}
    wrong = [
        f"{relative(path)} is in no known folder"
        for path, folder in below.items()
        if folder not in {"", STORIES, SUPPORT, *SUITES}
    ]
    stories = [
        path for path, folder in below.items() if folder == STORIES and path.name != "conftest.py"
    ]
    wrong += [
        f"{relative(path)} is not tests/{STORIES}/<subject>/test_*.py"
        for path in stories
        if len(path.relative_to(TEST_ROOT).parts) != 3 or not path.stem.startswith("test_")
    ]
    assert stories and sorted(wrong) == []


def modules_with_a_test() -> tuple[list[Path], list[Path]]:
    """Return the modules that have a test file of their name, and all that could have one."""
    named = {subject_of(path) for path in mirrored_tests()}
    modules = [path for path in FILES if path.stem not in {"__init__", "__main__"}]
    modules = [path for path in modules if path.parent not in ONE_PER_API]
    return [path for path in modules if path in named], modules


if __name__ == "__main__":
    tested, modules = modules_with_a_test()
    print(
        f"{len(tested)} of {len(modules)} modules ({len(tested) / len(modules):.0%}) have a test of their name"
    )
