"""The package: its metadata, its version, and what users get when they install it.

`make test` runs the quick half. `make package` builds the sdist and the wheel, installs the core
and each extra into clean environments, and runs the main command of each.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from release import dist
from release.environment import Environment

import millstream
from millstream.cli.support.extras import EXTRA_OF
from millstream.local.zookeeper import LocalZooKeeper

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
DEVELOPERS = {"all", "docs", "dev"}
PYTHONS = os.environ.get("MILLSTREAM_PYTHONS", "").split()


def supported_pythons() -> list[str]:
    found = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    return [str(version) for version in found]


def requirement_name(requirement: str) -> str:
    match = re.match(r"[\w.-]+(\[\w+\])?", requirement)
    assert match is not None
    return match.group(0)


# ---------------------------------------------------------------- declarations


def test_all_is_every_extra_for_users() -> None:
    (requirement,) = EXTRAS["all"]
    listed = re.fullmatch(r"millstream\[(.*)\]", requirement)
    assert listed is not None and set(listed.group(1).split(",")) == EXTRAS.keys() - DEVELOPERS


def test_extras_named_in_errors_exist() -> None:
    assert set(EXTRA_OF.values()) == EXTRAS.keys() - DEVELOPERS


def test_first_python_is_the_required_one() -> None:
    assert PROJECT["requires-python"] == f">={supported_pythons()[0]}"


def test_package_is_typed() -> None:
    assert (ROOT / "src" / "millstream" / "py.typed").exists()
    assert "Typing :: Typed" in PROJECT["classifiers"]


# Import names of the distributions whose name differs.
IMPORT_NAMES = {
    "confluent-kafka": "confluent_kafka",
    "backports.zstd": "backports",
    "psycopg[binary]": "psycopg",
    "protobuf": "google",
}
# Spark's own, the test tools of users, and Python 3.14's part of the standard library.
ALSO_ALLOWED = {
    "py4j",
    "pytest",
    "testcontainers",
    "compression",
    "matplotlib",
    "sitecustomize",
}


def imported_packages() -> set[str]:
    """Return the packages of others that the sources import."""
    names = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - {"millstream", "pyspark_millstream"}


def import_names(requirements: list[str]) -> set[str]:
    names = map(requirement_name, requirements)
    return {IMPORT_NAMES.get(name, name) for name in names}


def test_imported_packages_are_declared() -> None:
    extras = [requirement for name in EXTRAS.keys() - DEVELOPERS for requirement in EXTRAS[name]]
    core = import_names(PROJECT["dependencies"])
    imported = imported_packages()
    assert imported - ALSO_ALLOWED <= core | import_names(extras)
    assert core <= imported


def test_core_without_extras_stays_small() -> None:
    """Each package of the core has a row with the reason in docs/internals/footprint.md."""
    page = (ROOT / "docs" / "internals" / "footprint.md").read_text(encoding="utf-8")
    for requirement in PROJECT["dependencies"]:
        assert f"| {requirement_name(requirement)} |" in page, requirement


def test_support_page_names_the_declared_versions_and_real_modules() -> None:
    page = (ROOT / "docs" / "support.md").read_text(encoding="utf-8")
    pythons = supported_pythons()
    assert f"CPython {pythons[0]} to {pythons[-1]}" in page
    (spark,) = (word for word in EXTRAS["spark"] if word.startswith("pyspark"))
    version = re.match(r"pyspark>=(\d+\.\d+),<", spark)
    assert version is not None and f"| Spark (extra `spark`) | {version.group(1)} |" in page
    for name in re.findall(r"`(millstream(?:\.\w+)+)`", page):
        assert find_spec(name) is not None, name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_pinned_and_test_every_supported_python(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    for job in workflow["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix")
        if matrix is not None:
            assert matrix == {
                "os": ["ubuntu-latest", "macos-latest"],
                "python": supported_pythons(),
            }
        for step in job["steps"]:
            assert re.search(r"@(release/)?v\d+$", step.get("uses", "@v1")), step
            for target in re.findall(r"^make ([a-z-]+)", step.get("run", ""), re.M):
                assert f"\n{target}:" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_only_the_publishing_job_may_ask_for_an_identity() -> None:
    jobs = {
        name: job
        for path in WORKFLOWS
        for name, job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].items()
    }
    assert {name for name, job in jobs.items() if "permissions" in job} == {"publish"}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["if"] == "startsWith(github.ref, 'refs/tags/v')"


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=str
)
def test_issue_templates_are_forms(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.name != "config.yml":
        assert form["name"] and form["description"]
        assert all(field["attributes"]["label"] for field in form["body"])


# ---------------------------------------------------------------- the version


def test_version_is_that_of_the_build_or_of_the_installed_package() -> None:
    built = ROOT / "src" / "millstream" / "_version.py"
    if built.exists():
        assert f'version = "{millstream.__version__}"' in built.read_text()
    else:
        assert millstream.__version__ == metadata.version("millstream")


def test_sources_without_build_and_installation_have_an_unknown_version(tmp_path: Path) -> None:
    shutil.copy(ROOT / "src" / "millstream" / "__init__.py", tmp_path / "millstream.py")
    program = "import millstream; print(millstream.__version__)"
    ran = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {program}",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == millstream.UNKNOWN_VERSION


def test_wheel_has_the_version_of_the_tag_and_no_more_than_the_package(tmp_path: Path) -> None:
    """Built from the sources as they are, as a repository of one commit with a tag."""
    pytest.importorskip("hatch_vcs")
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(
        ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "_version.py")
    )
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"], ["tag", "v7.8.9"]):
        subprocess.run([*git, *words], check=True)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    subprocess.run(build, cwd=tmp_path, capture_output=True, check=True)
    with zipfile.ZipFile(tmp_path / "dist" / "millstream-7.8.9-py3-none-any.whl") as wheel:
        names = set(wheel.namelist())
        assert b'\nversion = "7.8.9"\n' in wheel.read("millstream/_version.py")
        described = wheel.read("millstream-7.8.9.dist-info/METADATA").decode()
    assert "millstream/py.typed" in names and "pyspark_millstream/__init__.py" in names
    tops = {"millstream", "pyspark_millstream", "millstream-7.8.9.dist-info"}
    assert {name.partition("/")[0] for name in names} == tops
    assert set(re.findall(r"^Provides-Extra: (\S+)$", described, re.M)) == EXTRAS.keys()


# ---------------------------------------------------------------- clean environments


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sdist and the wheel of the last commit, by suffix."""
    files = dist.build_twice(ROOT, tmp_path_factory.mktemp("dist"))
    dist.check(files)
    return {path.suffix: path for path in files}


def install(
    tmp_path: Path, wheel: Path, extras: str = "", python: str = sys.executable
) -> Environment:
    environment = Environment(tmp_path, python)
    environment.install(f"{wheel}[{extras}]" if extras else str(wheel))
    return environment


@pytest.mark.long
@pytest.mark.parametrize("python", ["", *PYTHONS])
def test_core_starts_produces_consumes_and_stops(
    built: dict[str, Path], tmp_path: Path, python: str
) -> None:
    environment = install(
        tmp_path, built[".whl"], python=f"python{python}" if python else sys.executable
    )
    assert environment.millstream("--version") == f"millstream {built['.whl'].name.split('-')[1]}\n"
    ran = environment.shell(ROOT / "examples" / "first_minute.sh")
    assert "ada ordered 1 tea (partition " in ran and "100,000 records to numbers in" in ran
    program = "import millstream; print(millstream.__file__)"
    assert environment.python("-c", program).startswith(str(environment.directory))


@pytest.mark.long
def test_sdist_installs_in_isolation_with_its_version(
    built: dict[str, Path], tmp_path: Path
) -> None:
    environment = Environment(tmp_path)
    environment.install(str(built[".gz"]))
    version = built[".whl"].name.split("-")[1]
    assert environment.millstream("--version") == f"millstream {version}\n"
    installed = environment.python(
        "-c", "from importlib import metadata as m; print(m.version('millstream'))"
    )
    assert installed.strip() == version


@pytest.mark.long
def test_clone_without_tags_installs_editable(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(
        ["git", "clone", "-q", "--depth", "1", "--no-tags", f"file://{ROOT}", str(clone)],
        check=True,
    )
    environment = Environment(tmp_path / "installed")
    environment.install("--editable", str(clone))
    assert re.fullmatch(
        r"millstream 0\.1\.dev\d+\+g[0-9a-f]+\n", environment.millstream("--version")
    )
    where = environment.python("-c", "import millstream; print(millstream.__file__)")
    assert where.startswith(str(clone))


def use_fast(environment: Environment) -> None:
    """gzip goes through ISA-L, and child processes decode with aiokafka's extension."""
    with environment.broker() as bootstrap:
        environment.millstream("produce", "a", "-c", "gzip", "-b", bootstrap, stdin="one\ntwo\n")
        assert environment.millstream("consume", "a", "--exit", "-b", bootstrap) == "one\ntwo\n"
    environment.python(
        "-c",
        "from millstream.wire.records import compression, payload_fast\n"
        "assert compression._zlib().__name__ == 'isal.isal_zlib' and payload_fast.available()",
    )


def use_cluster(environment: Environment) -> None:
    """Two brokers on a ZooKeeper that exists already: the extra brings none."""
    keeper = LocalZooKeeper(environment.home / "zookeeper")
    keeper.start()
    try:
        words = ("up", "--brokers", "2", "--port", "0", "--zookeeper", keeper.address)
        with environment.running(*words) as output:
            check_cluster(environment, output)
    finally:
        keeper.stop()


def check_cluster(environment: Environment, output: str) -> None:
    bootstrap = re.search(r"127\.0\.0\.1:\d+", output.rpartition("ready: ")[2])
    assert bootstrap is not None, output
    address = ("-b", bootstrap.group(0))
    environment.millstream("topics", "create", "a", "--replication-factor", "2", *address)
    environment.millstream("produce", "a", *address, stdin="one\n")
    assert environment.millstream("consume", "a", "--exit", *address) == "one\n"


def use_formats(environment: Environment) -> None:
    """Avro and Protobuf values of the clients."""
    program = (
        "import sys\n"
        "from google.protobuf.wrappers_pb2 import StringValue\n"
        "from millstream.client import Consumer, Producer, avro\n"
        "for topic, kind, value in (\n"
        "    ('a', avro('\"string\"'), 'x'),\n"
        "    ('p', StringValue, StringValue(value='y')),\n"
        "):\n"
        "    with Producer(sys.argv[1], value=kind) as producer:\n"
        "        producer.send(topic, value)\n"
        "    (record,) = Consumer(sys.argv[1], topic, value=kind, until_end=True)\n"
        "    assert record.value == value\n"
    )
    with environment.broker() as bootstrap:
        environment.python("-c", program, bootstrap)


PIPELINE = """\
from millstream.pipelines import Pipeline, topic

pipe = Pipeline("shop")
pipe.stream("orders", value="json", schema="id int, amount int")
pipe.sql("large", "SELECT * FROM orders WHERE amount > 10", to=topic("large", key="id"))
"""


def use_spark(environment: Environment) -> None:
    (environment.home / "shop.py").write_text(PIPELINE)
    with environment.broker() as bootstrap:
        rows = '{"id": 1, "amount": 9}\n{"id": 2, "amount": 12}\n'
        environment.millstream("produce", "orders", "-b", bootstrap, stdin=rows)
        environment.millstream("pipeline", "check", "shop.py", "-b", bootstrap)
        environment.millstream("pipeline", "run", "shop.py", "--once", "-b", bootstrap)
        assert environment.millstream("consume", "large", "--exit", "-b", bootstrap) == (
            '{"id":2,"amount":12}\n'
        )


def use_connect(environment: Environment) -> None:
    """A topic to a Delta table, and the driver of PostgreSQL."""
    with environment.broker() as bootstrap:
        environment.millstream("produce", "orders", "-b", bootstrap, stdin='{"id": 1}\n{"id": 2}\n')
        words = (
            "connect",
            "topic:orders",
            "delta:lake",
            "--schema",
            "id int",
            "--once",
            "-b",
            bootstrap,
        )
        environment.millstream(*words)
    program = "import psycopg; from deltalake import DeltaTable; print(len(DeltaTable('lake').file_uris()))"
    assert int(environment.python("-c", program)) >= 1


def use_all(environment: Environment) -> None:
    """A cluster with its ZooKeeper, which needs the jars and the Java of Spark."""
    with environment.running(
        "up", "--brokers", "2", "--port", "0", "--zookeeper-port", "0"
    ) as output:
        check_cluster(environment, output)


def build_site(environment: Environment) -> None:
    site = ["-m", "sphinx", "--quiet", "-b", "html", "-d", "doctrees", str(ROOT / "docs"), "site"]
    environment.python(*site)
    assert (environment.home / "site" / "index.html").exists()


# The connectors run on Spark, so docs/connectors.md installs both.
USES: dict[str, Callable[[Environment], None]] = {
    "fast": use_fast,
    "cluster": use_cluster,
    "formats": use_formats,
    "spark": use_spark,
    "spark,connect": use_connect,
    "all": use_all,
    "docs": build_site,
}


def test_every_extra_is_used() -> None:
    used = {extra for extras in USES for extra in extras.split(",")}
    assert used == EXTRAS.keys() - {"dev"}


@pytest.mark.long
@pytest.mark.parametrize("extras", USES)
def test_extra_brings_what_its_main_command_needs(
    built: dict[str, Path], tmp_path: Path, extras: str
) -> None:
    environment = install(tmp_path, built[".whl"], extras)
    USES[extras](environment)
    shutil.rmtree(environment.directory)
