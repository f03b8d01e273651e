"""The blocks of the documents that need Spark run unchanged, in the session of all tests."""

from __future__ import annotations

import contextlib
import io
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.cli.main import main
from support.doc_session import session
from support.document_plan import PLANS, Part, all_parts, run_part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(600), pytest.mark.documents]


def in_this_process(command: str) -> tuple[str, int]:
    """Run a command in this process that would otherwise start a JVM."""
    printed = io.StringIO()
    words = shlex.split(command, comments=True)[1:]
    before = signal.getsignal(signal.SIGINT)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = main(words)
    finally:
        signal.signal(signal.SIGINT, before)
    return printed.getvalue(), code


@pytest.fixture
def lent_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs of documents get the session of the tests. They may change its settings but cannot
    stop it.
    """
    settings = dict(spark.conf.getAll)
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    yield
    for name in dict(spark.conf.getAll).keys() - settings.keys():
        spark.conf.unset(name)
    for name, value in settings.items():
        if spark.conf.isModifiable(name) and spark.conf.get(name) != value:
            spark.conf.set(name, value)


@pytest.mark.parametrize("part", all_parts(spark=True), ids=str)
def test_block_runs_as_written(
    part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lent_spark: None
) -> None:
    with session(tmp_path, monkeypatch, PLANS[part.document].replaced) as running:
        running.in_process = in_this_process
        run_part(part, running)
