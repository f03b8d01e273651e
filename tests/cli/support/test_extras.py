"""Commands whose optional packages are not installed: one line that names the
extra, no traceback.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from millstream.cli.commands import COMMANDS
from millstream.cli.support.extras import EXTRA_OF, SPARK_NEEDS

ROOT = Path(__file__).parents[3]
# A module that is None in sys.modules cannot be imported, as if it were not installed.
PROGRAM = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
from millstream.cli.main import main
sys.exit(main(sys.argv[2:]))
"""
PIPELINE = """
from millstream.pipelines import Pipeline, topic
p = Pipeline("orders")
"""


def run_without(modules: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, modules, *words],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "orders.py"
    path.write_text(PIPELINE)
    return str(path)


@pytest.mark.parametrize(
    "words",
    [
        ("pipeline", "check", "FILE"),
        ("pipeline", "run", "FILE"),
        ("sql", "SHOW TABLES"),
        ("sql", "run"),
        ("connect", "a.csv", "topic:orders"),
        ("mirror", "--from", "localhost:1", "--to", "localhost:2", "--topics", "orders"),
        ("spark", "up"),
    ],
    ids=lambda words: "-".join(words[:2]),
)
def test_command_without_spark_names_the_extra(words: tuple[str, ...], file: str) -> None:
    ran = run_without("pyspark", *(file if word == "FILE" else word for word in words))
    assert ran.returncode == 1
    assert re.fullmatch(
        r'error: .* need Spark, which is not installed; pip install "millstream\[spark\]"\n',
        ran.stderr,
    )


@pytest.mark.parametrize("module", [name for name in SPARK_NEEDS if name != "pyspark"])
def test_pipeline_without_a_package_beside_spark_names_it(module: str, file: str) -> None:
    ran = run_without(module, "pipeline", "check", file)
    assert (ran.returncode, ran.stderr) == (
        1,
        f'error: pipelines need {module} in addition to Spark; pip install "millstream[spark]"\n',
    )


def test_import_of_a_missing_extra_anywhere_in_a_command_is_one_line(file: str) -> None:
    """As a net for imports that no command checks before: here the application finds it."""
    program = """
import sys
from millstream.cli import version
from millstream.cli.app import run
def fail() -> None:
    raise ModuleNotFoundError("No module named 'kazoo'", name="kazoo.client")
version.app.commands[:] = [version.app.commands[0]._replace(function=fail)]
sys.exit(run(["version"]))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (
        1,
        "error: this command needs the package 'kazoo.client', which is not installed; "
        'pip install "millstream[cluster]"\n',
    )


def test_pipeline_file_that_imports_a_missing_extra_names_it(tmp_path: Path) -> None:
    path = tmp_path / "orders.py"
    path.write_text("import pyspark.sql\n" + PIPELINE)
    ran = run_without("pyspark", "pipeline", "status", str(path))
    assert ran.returncode == 1
    assert ran.stderr.startswith("error: orders.py:1: ModuleNotFoundError")
    assert ran.stderr.endswith('; pip install "millstream[spark]"\n')


def test_help_of_every_command_needs_no_extra() -> None:
    """One process for all: each noun is imported as on the command line."""
    program = f"""
import sys
for name in {sorted(EXTRA_OF)!r}:
    sys.modules[name] = None
from millstream.cli.app import run
for name in {[command.name for command in COMMANDS if command.name != "serve"]!r}:
    assert run([name, "--help"]) == 0, name
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_every_optional_package_is_listed_with_its_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    modules = {"protobuf": "google"}
    for extra in ("fast", "cluster", "formats", "spark", "connect"):
        for requirement in extras[extra]:
            package = re.match(r"[A-Za-z0-9_-]+", requirement)[0]
            listed = EXTRA_OF[modules.get(package, package)]
            assert any(re.match(rf"{package}\b", other) for other in extras[listed]), package
