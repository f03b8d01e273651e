"""Errors of the JVM, and pipelines that continue in a new JVM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from millstream.pipelines.run.jvm_failures import (
    BROKEN_MAP,
    CLASS_LOADING,
    DEAD_JVM,
    LOST_WORKER,
    OUT_OF_MEMORY,
    STOPPED_CONTEXT,
    JvmFault,
    fault_of,
)
from support.spark.pipeline_world import create, received, send, wait_until

NOT_SERIALIZABLE = """[STREAM_FAILED] Query terminated with exception: Job aborted due to stage failure: Task not serializable:
java.lang.IllegalStateException: Illegal size 5 of collection, expected 6
\tat scala.collection.generic.DefaultSerializationProxy.writeObject(DefaultSerializationProxy.scala:42)"""


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (NOT_SERIALIZABLE, BROKEN_MAP),
        ("Job aborted: java.lang.OutOfMemoryError: Java heap space", OUT_OF_MEMORY),
        ("java.lang.OutOfMemoryError: Metaspace", OUT_OF_MEMORY),
        (
            "java.lang.NoClassDefFoundError: Could not initialize class org.apache.spark.X",
            CLASS_LOADING,
        ),
        (
            "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.",
            STOPPED_CONTEXT,
        ),
        ("Job 3 cancelled because SparkContext was shut down", STOPPED_CONTEXT),
        (
            "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
            LOST_WORKER,
        ),
        (
            "the query ended\njava.io.EOFException\n\tat java.io.DataInputStream.readInt",
            LOST_WORKER,
        ),
        ("java.io.EOFException: Unexpected end of ZLIB input stream", None),
        ("Task not serializable: java.io.NotSerializableException: shop.Rule", None),
        ("[DIVIDE_BY_ZERO] Division by zero.", None),
        ("Python worker failed to connect back.", None),
    ],
)
def test_fault_is_recognized_by_its_text(text: str, fault: JvmFault | None) -> None:
    assert fault_of(Exception(text)) == fault
    outer = RuntimeError("the job that writes the batch failed")
    outer.__cause__ = Exception(text)
    assert fault_of(outer) == fault


def test_unreachable_jvm_is_dead() -> None:
    assert fault_of(Py4JNetworkError("Answer from Java side is empty")) == DEAD_JVM
    assert fault_of(Py4JError("An error occurred while calling o316.isActive")) == DEAD_JVM
    missing = "An error occurred while calling o1.x. Trace:\npy4j.Py4JException: Method x([]) does not exist"
    assert fault_of(Py4JError(missing)) is None
    assert fault_of(ConnectionRefusedError("a broker that is away")) is None


def test_refused_py4j_connection_is_a_dead_jvm() -> None:
    from py4j.java_gateway import GatewayParameters, JavaGateway

    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=1))
    with pytest.raises(Exception) as raised:
        gateway.jvm.System.currentTimeMillis()
    assert fault_of(raised.value) == DEAD_JVM


PIPELINE = """
import os, threading, time
from pathlib import Path
from millstream.pipelines import Pipeline, topic

pipe = Pipeline("{name}", dead_letters=False)
pipe.stream("orders", topic="{name}", schema="id int")

@pipe.flow(to=topic("{name}-out"))
def copied(orders):
    threading.Thread(target=broken_when_asked, args=(orders.sparkSession,), daemon=True).start()
    return orders

def broken_when_asked(spark):
    while not Path("{sign}").exists():
        time.sleep(0.05)
    os.remove("{sign}")
    {how}

def lie(spark):
    source = spark._jsparkSession.sessionState().dataSourceManager().lookupDataSource("millstream")
    wrapper = source.dataSourceCls().envVars()
    field = wrapper.getClass().getDeclaredField("underlying")
    field.setAccessible(True)
    entries = field.get(wrapper)
    size = entries.getClass().getDeclaredField("contentSize")
    size.setAccessible(True)
    size.setInt(entries, size.getInt(entries) + 1)
"""
BREAKS = {
    "a map whose size lies": "lie(spark)",
    "a JVM that was killed": "spark.sparkContext._gateway.proc.kill()",
}


class Command:
    """``millstream pipeline run`` in a process, and the events that it prints."""

    def __init__(self, file: Path, bootstrap: str) -> None:
        self.out, self.err = file.with_suffix(".out"), file.with_suffix(".err")
        words = [
            "run",
            str(file),
            "--master",
            "local[2]",
            "--format",
            "json",
            "--bootstrap",
            bootstrap,
        ]
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "millstream", "pipeline", *words],
                stdout=out,
                stderr=err,
                cwd=file.parent,
                env=os.environ.copy(),
            )

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = self.out.read_text().splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in events if event["event"] == kind]

    def alive(self) -> bool:
        assert self.process.poll() is None, (
            self.out.read_text()[-3000:] + self.err.read_text()[-3000:]
        )
        return True


@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", list(BREAKS))
def test_pipeline_continues_exactly_once_in_a_new_jvm(
    shared_broker: Any, topic_name: str, tmp_path: Path, how: str
) -> None:
    bootstrap, sign, file = shared_broker.bootstrap, tmp_path / "break", tmp_path / "shop.py"
    file.write_text(PIPELINE.format(name=topic_name, sign=sign, how=BREAKS[how]))
    create(bootstrap, topic_name)
    send(bootstrap, topic_name, [{"id": number} for number in range(100)])

    def arrived(count: int) -> bool:
        return command.alive() and len(received(bootstrap, f"{topic_name}-out")) >= count

    command = Command(file, bootstrap)
    try:
        wait_until(lambda: command.alive() and bool(command.events("batch")), "the first batch")
        wait_until(lambda: arrived(100), "the first rows")
        sign.touch()
        wait_until(lambda: not sign.exists(), "the break")
        send(bootstrap, topic_name, [{"id": number} for number in range(100, 200)])
        wait_until(lambda: command.alive() and bool(command.events("restart")), "the restart")
        wait_until(lambda: arrived(200), "the rows after the restart")
        status = json.loads(
            next(tmp_path.glob("millstream-checkpoints/*/.status.json")).read_text()
        )
        command.process.send_signal(signal.SIGTERM)
        assert command.process.wait(120) == 0
    finally:
        command.process.kill()
        command.process.wait()
    rows = received(bootstrap, f"{topic_name}-out")
    assert sorted(row["id"] for row in rows) == list(range(200))
    (restart,) = command.events("restart")
    assert restart["restart"] == 1 and restart["in_ms"] == 1000 and "JVM" in restart["reason"]
    assert status["restarts"] == 1 and status["pid"] == command.process.pid
    assert len(command.events("started")) == 2 and len(command.events("ended")) == 1
