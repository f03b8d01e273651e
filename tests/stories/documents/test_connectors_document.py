"""Every command and every piece of Python in docs/connectors.md runs, in order and unchanged."""

from __future__ import annotations

import re
import shlex
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')
pytest.importorskip("deltalake", reason='needs pip install "millstream[connect]"')

from millstream.cli import connect as command
from millstream.cli.app import run
from millstream.local.broker import LocalBroker
from millstream.pipelines.load import load_pipeline
from support import postgres
from support.spark.pipeline_world import received, run_once

pytestmark = pytest.mark.timeout(600)

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "connectors.md"
DATABASE = "postgresql://localhost/shop"


def blocks() -> list[tuple[str, str]]:
    return re.findall(
        r"^```(console|python)\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.M | re.S
    )


def test_every_connector_states_its_guarantee_and_the_reason() -> None:
    sections = DOCUMENT.read_text(encoding="utf-8").split("\n## ")[1:]
    titled = {
        section.partition("\n")[0]: section
        for section in sections
        if re.match(r".* to (a|Parquet)\b", section)
    }
    assert len(titled) == 5
    for title, text in titled.items():
        assert re.search(r"\*\*Each [^*]*exactly\s+once[^*]*\*\*[^.]*\bbecause\b", text), title


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str | None:
    """The URL that replaces the one in the document, or None without PostgreSQL."""
    if postgres.why_not():
        return None
    server = request.getfixturevalue("postgres_server")
    server.execute("DROP SCHEMA public CASCADE")
    server.execute("CREATE SCHEMA public")
    return str(server.url)


@pytest.fixture
def shared_session(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command uses the session of the tests instead of starting another."""

    @contextmanager
    def session(*_: Any, **__: Any) -> Iterator[Any]:
        yield spark

    monkeypatch.setattr(command, "spark_session", session)


@pytest.mark.documents
def test_document_runs_as_written(
    shared_session: None,
    spark: Any,
    broker: Any,
    database: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own: LocalBroker = broker(
        {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP", own.bootstrap)
    for kind, text in blocks():
        if kind == "console":
            for line in text.splitlines():
                run_command(line.removeprefix("$ "), database)
        elif name := re.match(r"# (\w+\.py)\n", text):
            Path(name[1]).write_text(text.replace("localhost:9092", own.bootstrap))
        else:
            exec(compile(text, "connectors.md", "exec", dont_inherit=True), {})
    assert [order["id"] for order in received(own.bootstrap, "orders-again")] == [1, 2]
    if database is not None:
        assert [order["id"] for order in received(own.bootstrap, "orders-from-postgresql")] == [
            1,
            2,
        ]
    file_of_the_document(spark, own.bootstrap, tmp_path)


def run_command(line: str, database: str | None) -> None:
    words = shlex.split(line)
    if words[0] != "millstream":
        subprocess.run(line, shell=True, check=True)
        return
    if DATABASE in line and database is None:
        return
    arguments = [word.replace(DATABASE, database) if database else word for word in words[1:]]
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(run(arguments))
    assert not ended.value.code, line


def file_of_the_document(spark: Any, bootstrap: str, directory: Path) -> None:
    with sqlite3.connect("stock.db") as connection:
        connection.execute(
            "CREATE TABLE stock (article TEXT PRIMARY KEY, n INTEGER, changed TIMESTAMP NOT NULL)"
        )
        connection.execute("INSERT INTO stock VALUES ('nut', 7, '2026-03-01 12:00:00')")
    run_once(load_pipeline("shop.py"), spark, directory / "checkpoints")
    stock = received(bootstrap, "stock")
    assert [(row["article"], row["n"]) for row in stock] == [("nut", 7)]
    with sqlite3.connect("stock.db") as connection:
        assert connection.execute("SELECT customer FROM large").fetchall() == [("bob",)]
