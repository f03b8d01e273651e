"""Every statement of docs/sql.md, one after the other, prints what the document says."""

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
    """Blocks of SQL with what they print, and the commands between them that run flows."""
    found = re.findall(r"^```(\w+)\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.M | re.S)
    made = []
    for at, (kind, text) in enumerate(found):
        if kind == "sql":
            following, prints = found[at + 1]
            assert following == "text", f"nothing says what this prints:\n{text}"
            made.append(Example(kind, text, prints))
        elif kind == "console" and text.startswith("$ millstream sql run --once"):
            made.append(Example(kind, text, ""))
    return made


@pytest.fixture
def shared_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command uses the session of the tests instead of one of its own."""

    @contextmanager
    def session(*_: Any, **__: Any) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(command, "spark_session", session)
    quiet_pyspark()


def test_every_statement_prints_what_the_document_says(
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
            capsys.readouterr()  # the document sends it to a file
            continue
        script.write_text(example.text)
        code = run(["sql", "-f", str(script)])
        printed = capsys.readouterr()
        both = re.sub(
            rf"(?m)^error: {re.escape(str(script))}:\d+: ", "error: ", printed.out + printed.err
        )
        assert both == example.prints
        assert code == ("error: " in example.prints)
