"""Every statement of docs/sql.md, in order, prints the output in the document."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from millstream.cli.app import run
from millstream.cli.pipeline.run import quiet_pyspark
from millstream.cli.sql import command

pytestmark = [pytest.mark.timeout(600), pytest.mark.documents]

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "sql.md"


class Example(NamedTuple):
    kind: str
    text: str
    prints: str


def examples() -> list[Example]:
    """Return the blocks of SQL with their output, and the commands between them that run flows."""
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.M | re.S)
    parsed = []
    for at, (kind, text) in enumerate(blocks):
        if kind == "sql":
            following, prints = blocks[at + 1]
            assert following == "text", f"nothing says what this prints:\n{text}"
            parsed.append(Example(kind, text, prints))
        elif kind == "console" and text.startswith("$ millstream sql run --once"):
            parsed.append(Example(kind, text, ""))
    return parsed


@pytest.fixture
def shared_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command uses the session of the tests instead of starting another."""

    @contextmanager
    def session(*_: Any, **__: Any) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(command, "spark_session", session)
    quiet_pyspark()


def test_every_statement_prints_the_output_in_the_document(
    shared_session: None,
    broker: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = broker({"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1})
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP", own.bootstrap)
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "statements.sql"
    capsys.readouterr()
    for example in examples():
        if example.kind == "console":
            assert run(["sql", "run", "--once"]) == 0, capsys.readouterr()
            capsys.readouterr()  # the document redirects it to a file
            continue
        script.write_text(example.text)
        code = run(["sql", "-f", str(script)])
        printed = capsys.readouterr()
        both = re.sub(
            rf"(?m)^error: {re.escape(str(script))}:\d+: ", "error: ", printed.out + printed.err
        )
        assert both == example.prints
        assert code == ("error: " in example.prints)
