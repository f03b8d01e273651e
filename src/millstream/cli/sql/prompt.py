"""The prompt of ``millstream sql``: multi-line statements that end with a semicolon.

It has history and completion.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.cli.sql.show import Interrupted
from millstream.cli.support.output import note
from millstream.client.errors import ClientError
from millstream.sql.statements import BEGINNINGS, SHOWN
from millstream.sql.tokens import split

if TYPE_CHECKING:
    from millstream.cli.sql.show import StatementRunner
    from millstream.sql.engine import Engine

MAX_HISTORY = 5000
FIRST, NEXT = "sql> ", "...> "
QUIT = ("\\q", "exit", "quit")
HELP = """\
CREATE STREAM name (columns) WITH (topic = '...', value = json, watermark = 'column 1 minute');
CREATE TABLE name WITH (topic = '...');            guesses the columns if they are left out
SELECT ...;                                        shows the available rows
SELECT ... EMIT CHANGES;                           shows new rows too; Ctrl-C stops it
INSERT INTO name SELECT ...;                       creates a flow, which `millstream sql run` runs
SHOW TABLES | STREAMS | TOPICS | FLOWS;   DESCRIBE name;   EXPLAIN SELECT ...;   DROP STREAM | TABLE | FLOW name;
\\q quits."""
# fmt: off
WORDS = (
    *BEGINNINGS, *SHOWN, "STREAM", "TABLE", "FLOW", "INTO", "EMIT", "CHANGES", "WHERE", "GROUP", "ORDER", "BY", "HAVING", "LIMIT", "JOIN",
    "LEFT", "ON", "AND", "OR", "NOT", "BETWEEN", "INTERVAL", "window", "count", "sum", "avg", "min", "max", "CAST", "AS", "IF", "EXISTS", "REPLACE",
)
# fmt: on


class Prompt:
    """Reads statements, runs them and prints the results."""

    def __init__(self, engine: Engine, runner: StatementRunner, where: str) -> None:
        self._engine = engine
        self._runner = runner
        self._where = where

    def run(self) -> None:
        note(f'millstream sql: {self._where}; "help" lists the statements, \\q quits')
        with _history(self._complete):
            for text in self._statements():
                try:
                    self._runner.statement(text)
                except Interrupted:
                    note("stopped")

    def _statements(self) -> Iterator[str]:
        """Yield statements until the end of input. Ctrl-C discards a half-typed statement."""
        buffer = ""
        while True:
            try:
                line = input(NEXT if buffer.strip() else FIRST)
            except KeyboardInterrupt:
                print()
                buffer = ""
                continue
            except EOFError:
                print()
                return
            word = line.strip().rstrip(";").lower()
            if not buffer.strip() and word in QUIT:
                return
            if not buffer.strip() and word in ("help", "\\?", "\\h"):
                print(HELP)
                continue
            pieces, rest = split(f"{buffer}{line}\n")
            buffer = rest
            for piece in pieces:
                yield piece.text

    def _complete(self, text: str) -> list[str]:
        """Return keywords and declared names that start with a text."""
        try:
            names = [source.name for source in self._engine.catalog.read().sources.values()]
        except ClientError:
            names = []
        return [word for word in (*names, *WORDS) if word.lower().startswith(text.lower())]


@contextmanager
def _history(complete: Any) -> Iterator[None]:
    """Provide history and Tab completion, if Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    file = history_file()
    try:
        readline.read_history_file(file)
    except OSError:
        pass  # no history yet
    matches: list[str] = []

    def completer(text: str, state: int) -> str | None:
        if state == 0:
            matches[:] = complete(text)
        return matches[state] if state < len(matches) else None

    readline.set_completer(completer)
    readline.set_completer_delims(" \t\n,;()=<>'\"")
    readline.parse_and_bind("tab: complete")
    readline.set_history_length(MAX_HISTORY)
    try:
        yield
    finally:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(file)
        except OSError as error:
            note(f"cannot save the history: {error.strerror}")


def history_file() -> Path:
    """Return the path of the history, as XDG specifies."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "millstream" / "sql_history"
