"""Checkpoint files on this machine: atomic, never over another file, without helper processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from millstream.spark import checkpoint_files
from millstream.spark.session import cache_dir, prepare, python_path
from support.spark import quick_jvm

SPARKS_OWN = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
)
MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager$"


@pytest.fixture
def own(spark: SparkSession) -> Any:
    """A session whose queries write checkpoints as those of users do."""
    made = spark.newSession()
    prepare(made)
    return made


def manager(spark: Any, path: Path | str, **settings: str) -> Any:
    """Return the manager that Spark creates for a checkpoint."""
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    for name, value in settings.items():
        conf.set(name.replace("__", "."), value)
    module = getattr(getattr(spark._jvm, MANAGER), "MODULE$")
    return module.create(spark._jvm.org.apache.hadoop.fs.Path(str(path)), conf)


def write(spark: Any, files: Any, path: Path, data: bytes, *, overwrite: bool = False) -> None:
    stream = files.createAtomic(spark._jvm.org.apache.hadoop.fs.Path(str(path)), overwrite)
    stream.write(data)
    stream.close()


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def test_file_appears_whole_when_it_is_closed(own: Any, tmp_path: Path) -> None:
    files, path = manager(own, tmp_path), tmp_path / "offsets" / "0"
    stream = files.createAtomic(own._jvm.org.apache.hadoop.fs.Path(str(path)), False)
    stream.write(b"first")
    assert not path.exists()
    stream.close()
    assert path.read_bytes() == b"first" and names(path.parent) == ["0"]


def test_cancelled_file_leaves_nothing(own: Any, tmp_path: Path) -> None:
    files = manager(own, tmp_path)
    stream = files.createAtomic(own._jvm.org.apache.hadoop.fs.Path(str(tmp_path / "0")), False)
    stream.write(b"half")
    stream.cancel()
    assert names(tmp_path) == []


def test_file_of_another_driver_is_not_replaced(own: Any, tmp_path: Path) -> None:
    files, path = manager(own, tmp_path), tmp_path / "0"
    late = files.createAtomic(own._jvm.org.apache.hadoop.fs.Path(str(path)), False)
    late.write(b"late")
    write(own, files, path, b"first")
    with pytest.raises(Exception, match="FileAlreadyExistsException"):
        late.close()
    assert path.read_bytes() == b"first"
    write(own, files, path, b"again", overwrite=True)
    assert path.read_bytes() == b"again"


def test_exactly_one_of_many_writers_gets_the_name(own: Any, tmp_path: Path) -> None:
    files, path = manager(own, tmp_path), tmp_path / "0"
    won: list[bytes] = []

    def compete(data: bytes) -> None:
        try:
            write(own, files, path, data)
            won.append(data)
        except Exception as error:
            assert "FileAlreadyExistsException" in str(error)

    for turn in range(10):
        threads = [
            threading.Thread(target=compete, args=(b"%d.%d" % (turn, number),))
            for number in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert won == [path.read_bytes()]
        won.clear()
        path.unlink()


def test_checksum_of_a_replaced_file_goes_first(own: Any, tmp_path: Path) -> None:
    """With a stale checksum of Spark's manager, the new contents would look corrupt."""
    settings = {checkpoint_files.SETTING.replace(".", "__"): SPARKS_OWN}
    sparks, ours, path = (
        manager(own, tmp_path, **settings),
        manager(own, tmp_path),
        tmp_path / "1.delta",
    )
    write(own, sparks, path, b"old")
    (tmp_path / ".1.delta.crc").write_bytes(b"crc\0\0\0\2\0stale")
    write(own, ours, path, b"new", overwrite=True)
    assert names(tmp_path) == ["1.delta"]
    for files in (sparks, ours):
        stream = files.open(own._jvm.org.apache.hadoop.fs.Path(str(path)))
        assert bytes(own._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)) == b"new"
        stream.close()


def test_other_file_systems_keep_sparks_manager(own: Any, tmp_path: Path) -> None:
    mount = {"fs__viewfs__mounttable__here__link__/data": tmp_path.as_uri()}
    files = manager(own, "viewfs://here/data/checkpoint", **mount)
    field = files.getClass().getDeclaredField("files")
    field.setAccessible(True)
    assert field.get(files).getClass().getName() == SPARKS_OWN
    assert not files.isLocal()


def test_setting_of_the_user_is_kept(spark: SparkSession) -> None:
    made = spark.newSession()
    made.conf.set(checkpoint_files.SETTING, SPARKS_OWN)
    prepare(made)
    assert made.conf.get(checkpoint_files.SETTING) == SPARKS_OWN
    assert not checkpoint_files.use_local_files(made, cache_dir())


@pytest.mark.parametrize(
    "master", ["local-cluster[2,1,1024]", "spark://host:7077", "yarn", "localhost"]
)
def test_executors_in_other_processes_keep_sparks_manager(master: str) -> None:
    assert not checkpoint_files._runs_in_driver(master)
    assert checkpoint_files._runs_in_driver("local") and checkpoint_files._runs_in_driver(
        "local[*,4]"
    )


def test_unwritable_cache_keeps_sparks_manager(spark: SparkSession, tmp_path: Path) -> None:
    made, blocked = spark.newSession(), tmp_path / "file"
    blocked.write_text("no directory")
    assert not checkpoint_files.use_local_files(made, blocked / "cache")
    assert made.conf.get(checkpoint_files.SETTING, None) is None
    assert checkpoint_files.use_local_files(made, tmp_path / "cache")
    (compiled,) = (tmp_path / "cache").iterdir()
    assert len(list(compiled.rglob("*.class"))) == 2


ROWS = "rate-micro-batch"


def counted(spark: Any, checkpoint: Path, batches: int) -> list[int]:
    """Run micro-batches of one row with state, and return the sum of the counts of each."""
    seen: list[int] = []
    rows = spark.readStream.format(ROWS).option("rowsPerBatch", 1).option("numPartitions", 1).load()
    counts = rows.groupBy().count()
    query = (
        counts.writeStream.outputMode("complete")
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(lambda batch, number: seen.append(batch.collect()[0]["count"]))
        .start()
    )
    try:
        while len(seen) < batches:
            assert query.isActive, query.exception()
            time.sleep(0.05)
    finally:
        query.stop()
    return seen


@pytest.mark.parametrize("first", ["spark", "ours"])
def test_checkpoint_continues_with_the_other_manager(own: Any, tmp_path: Path, first: str) -> None:
    """Counts in RocksDB continue, whichever manager wrote the checkpoint before."""
    order = ["spark", "ours"] if first == "spark" else ["ours", "spark"]
    last = 0
    for who in (*order, first):
        made = quick_jvm.usual_session(own)
        made.conf.set(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        if who == "spark":
            made.conf.set(checkpoint_files.SETTING, SPARKS_OWN)
        seen = counted(made, tmp_path / "checkpoint", 3)
        assert seen[0] in (last, last + 1) and seen == list(range(seen[0], seen[0] + len(seen)))
        last = seen[-1]


PROGRAM = """
import json, sys, time
from millstream.spark.session import session

spark = session(master="local[1]", conf=json.loads(sys.argv[2]))
environment = (
    spark._jsparkSession.sessionState().dataSourceManager().lookupDataSource("millstream").dataSourceCls().envVars()
)
print(json.dumps(sorted(environment)))
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1).load()
query = (
    rows.groupBy().count().writeStream.outputMode("complete").option("checkpointLocation", sys.argv[1])
    .foreachBatch(lambda batch, number: batch.collect()).start()
)
while query.lastProgress is None or query.lastProgress["batchId"] < 4:
    assert query.isActive, query.exception()
    time.sleep(0.05)
query.stop()
spark.stop()
"""


@pytest.mark.timeout(600)
def test_fresh_session_is_prepared_before_any_query(tmp_path: Path) -> None:
    """In a separate JVM: the keys in the map of the source, and the processes for
    the checkpoint.
    """
    tools, log = tmp_path / "bin", tmp_path / "processes"
    tools.mkdir()
    for name in ("chmod", "readlink"):
        script = tools / name
        script.write_text(
            f'#!/bin/sh\necho {name} "$@" >> {log}\nPATH=${{PATH#*:}} exec {name} "$@"\n'
        )
        script.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": python_path(),
    }
    checkpoint = tmp_path / "checkpoint"
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            PROGRAM,
            str(checkpoint),
            json.dumps(quick_jvm.CONF | quick_jvm.SMALL),
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    keys = set(json.loads(ran.stdout))
    assert keys >= {
        "SPARK_LOCAL_DIRS",
        "SPARK_AUTH_SOCKET_TIMEOUT",
        "SPARK_BUFFER_SIZE",
        "SPARK_PYTHON_RUNTIME",
    }
    started = log.read_text().splitlines() if log.exists() else []
    assert [line for line in started if str(checkpoint) in line] == []
    assert (checkpoint / "commits" / "3").exists()
