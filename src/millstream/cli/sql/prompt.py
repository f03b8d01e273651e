"""The prompt of ``millstream sql``: statements over several lines up to their semicolon, with history and completion."""

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
    from millstream.cli.sql.show import Shown
    from millstream.sql.engine import Engine

MOST_HISTORY = 5000
FIRST, NEXT = "sql> ", "...> "
QUIT = ("\\q", "exit", "quit")
HELP = """\
CREATE STREAM name (columns) WITH (topic = '...', value = json, watermark = 'column 1 minute');
CREATE TABLE name WITH (topic = '...');            columns are guessed when they are left out
SELECT ...;                                        what is there now
SELECT ... EMIT CHANGES;                           and what comes; Ctrl-C stops it
INSERT INTO name SELECT ...;                       a flow: `millstream sql run` runs it
SHOW TABLES | STREAMS | TOPICS | FLOWS;   DESCRIBE name;   EXPLAIN SELECT ...;   DROP STREAM | TABLE | FLOW name;
\\q ends the session."""
# fmt: off
WORDS = (
    *BEGINNINGS, *SHOWN, "STREAM", "TABLE", "FLOW", "INTO", "EMIT", "CHANGES", "WHERE", "GROUP", "ORDER", "BY", "HAVING", "LIMIT", "JOIN",
    "LEFT", "ON", "AND", "OR", "NOT", "BETWEEN", "INTERVAL", "window", "count", "sum", "avg", "min", "max", "CAST", "AS", "IF", "EXISTS", "REPLACE",
)
# fmt: on


class Prompt:
    """Reads, carries out, prints; again."""

    def __init__(self, engine: Engine, shown: Shown, where: str) -> None:
        self._engine = engine
        self._shown = shown
        self._where = where

    def run(self) -> None:
        note(f'millstream sql: {self._where}; "help" says what there is, \\q ends')
        with _history(self._complete):
            for text in self._statements():
                try:
                    self._shown.statement(text)
                except Interrupted:
                    note("stopped")

    def _statements(self) -> Iterator[str]:
        """Until the end of the input. Ctrl-C throws away what is half typed."""
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
        """Words and declared names that go on like this."""
        try:
            names = [one.name for one in self._engine.catalog.read().sources.values()]
        except ClientError:
            names = []
        return [one for one in (*names, *WORDS) if one.lower().startswith(text.lower())]


@contextmanager
def _history(complete: Any) -> Iterator[None]:
    """Lines of earlier sessions, and completion with Tab, where Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    file = history_file()
    try:
        readline.read_history_file(file)
    except OSError:
        pass  # none yet
    found: list[str] = []

    def completer(text: str, state: int) -> str | None:
        if state == 0:
            found[:] = complete(text)
        return found[state] if state < len(found) else None

    readline.set_completer(completer)
    readline.set_completer_delims(" \t\n,;()=<>'\"")
    readline.parse_and_bind("tab: complete")
    readline.set_history_length(MOST_HISTORY)
    try:
        yield
    finally:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(file)
        except OSError as error:
            note(f"the history could not be kept: {error.strerror}")


def history_file() -> Path:
    """Where XDG wants it."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "millstream" / "sql_history"
