"""``millstream spark prepare``: write the class archive (``spark/class_archive.py``).

A short run of the demo's pipeline loads the classes that pipelines use: topics, a join with state,
an aggregate, Parquet. The JVM of that run writes the archive when it exits.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from millstream.cli.demo.driver import FLOWS
from millstream.cli.pipeline.run import QUICK_JVM_OPTION
from millstream.client.errors import ClientError
from millstream.local.broker import LocalBroker
from millstream.spark import class_archive, jvm_options, spark_home
from millstream.spark.session import cache_dir, java_for_spark

SECONDS = 2
RATE = 100
# One flow with topics and state loads nine of ten classes that the others would load.
ONLY = ("--only", "paid_orders")
TIMEOUT_S = 900.0
POLL_S = 0.1


class Prepared(NamedTuple):
    """The archive, and whether this call wrote it."""

    archive: Path
    made: bool
    seconds: float


def prepare_archive(*, again: bool = False) -> Prepared:
    """Write the archive unless it exists. Raise ClientError if this machine cannot have one."""
    began_s = time.monotonic()
    class_archive.remove_stale_homes(cache_dir())
    home = spark_home.home_for({}, cache_dir())
    if home is None:
        raise ClientError(
            "cannot prepare a Spark that pip did not install",
            hint="unset SPARK_HOME and PYSPARK_PYTHON to use the installed one",
        )
    archive = class_archive.archive_path(home, java_for_spark())
    if archive.exists() and not again:
        return Prepared(archive, False, 0.0)
    draft = archive.with_name(f"{archive.name}.{os.getpid()}")
    try:
        _train(draft)
        draft.replace(archive)
    finally:
        draft.unlink(missing_ok=True)
    return Prepared(archive, True, time.monotonic() - began_s)


def _train(draft: Path) -> None:
    """Run the demo's pipeline over a few records, in a JVM that writes ``draft`` when it exits."""
    options = " ".join(class_archive.options_to_make(draft))
    with tempfile.TemporaryDirectory(prefix="millstream-prepare-") as temporary:
        directory = Path(temporary)
        log = directory / "prepare.log"
        with LocalBroker(directory / "broker", {"group.initial.rebalance.delay.ms": 0}) as broker:
            _send_records(broker.bootstrap)
            command = [
                sys.executable,
                "-m",
                "millstream",
                "pipeline",
                "run",
                str(FLOWS),
                "--once",
                *ONLY,
            ]
            command += [
                "--bootstrap",
                broker.bootstrap,
                "--checkpoint",
                str(directory / "checkpoints"),
            ]
            command += ["--conf", QUICK_JVM_OPTION, "--conf", f"{jvm_options.EXTRA}={options}"]
            command += ["--format", "json"]
            environment = {**os.environ, "MILLSTREAM_DEMO_ARCHIVE": str(directory / "paid-orders")}
            code = _run_to_the_end(command, environment, log)
        if code or not draft.exists():
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
            raise ClientError(f"Spark could not be prepared (exit code {code})\n{tail}")


def _send_records(bootstrap: str) -> None:
    from millstream.cli.demo.generator import generate
    from millstream.cli.demo.story import create_topics, send_customers

    create_topics(bootstrap)
    send_customers(bootstrap)
    generate(bootstrap, SECONDS, RATE)


def _run_to_the_end(command: list[str], environment: dict[str, str], log: Path) -> int:
    """Run a driver and wait for its JVM, which writes the archive after the driver's exit."""
    with (
        log.open("wb") as output,
        _group(
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        ) as process,
    ):
        deadline_s = time.monotonic() + TIMEOUT_S
        while process.poll() is None or _has_members(process.pid):
            if time.monotonic() > deadline_s:
                raise ClientError(f"Spark could not be prepared within {TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)
        return process.returncode


@contextmanager
def _group(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Kill every process of the group at the end of the block, also after Ctrl-C."""
    try:
        yield process
    finally:
        if _has_members(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _has_members(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
