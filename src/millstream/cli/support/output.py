"""Output of commands: tables and JSON on stdout, remarks and progress on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from millstream.cli.support.table import Table, terminal_size
from millstream.core.words import counted

PROGRESS_EVERY_S = 0.2


def print_json(value: Any) -> None:
    """Print one JSON document. A list has one element per line, for people and for grep."""
    if not isinstance(value, list) or not value:
        print(json.dumps(value, ensure_ascii=False))
        return
    print(
        "[\n  " + ",\n  ".join(json.dumps(element, ensure_ascii=False) for element in value) + "\n]"
    )


def print_json_rows(rows: Iterable[Any]) -> None:
    """Print a list like ``print_json``, element by element: all of them may not fit in memory."""
    before = "[\n  "
    for row in rows:
        print(before + json.dumps(row, ensure_ascii=False), end="")
        before = ",\n  "
    print("[]" if before.startswith("[") else "\n]")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows below column names. In a pipe nothing is coloured, wrapped or truncated."""
    terminal = sys.stdout.isatty()
    table = Table(*columns, ruled=terminal)
    for row in rows:
        table.add(*(_cell(value) for value in row))
    print(
        "\n".join(table.lines(terminal_size().columns, colour=True) if terminal else table.lines())
    )


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "-"
    if isinstance(value, tuple | list):
        value = ",".join(map(str, value)) or "-"
    return printable(str(value))


def printable(text: str) -> str:
    """Escape control characters, because any client may choose names that would move the cursor.

    Examples are the names of groups, clients and transactional ids.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def note(text: str) -> None:
    """Print a remark for the user on stderr, never for the program that reads stdout."""
    print(text, file=sys.stderr)


def note_on_terminal(text: str) -> None:
    """Print a remark only if stderr is a terminal; logs and pipes do not need it."""
    if sys.stderr.isatty():
        note(text)


def human_bytes(count: float) -> str:
    """Return a size in a readable unit: 999 B, 1.2 kB, 34 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


class Progress:
    """A progress line that is rewritten in place; silent unless stderr is a terminal."""

    def __init__(
        self, title: str, *, total: int | None = None, enabled: bool | None = None
    ) -> None:
        self.title = title
        self.total = total
        self.enabled = sys.stderr.isatty() if enabled is None else enabled
        self._started_s = self._shown_s = time.monotonic()
        self._width = 0

    def update(self, count: int, size: int = 0) -> None:
        """Show ``count`` records and ``size`` bytes, at most five times a second."""
        if not self.enabled:
            return
        now_s = time.monotonic()
        if now_s - self._shown_s >= PROGRESS_EVERY_S:
            self._shown_s = now_s
            self._show(self._line(count, size, max(now_s - self._started_s, 1e-9)))

    def clear(self) -> None:
        """Erase the line; later output starts at the left edge."""
        if self._width:
            self._show("")
            self._width = 0

    def _line(self, count: int, size: int, elapsed_s: float) -> str:
        share = f" {min(100, 100 * count // self.total)} %" if self.total else ""
        sizes = f", {human_bytes(size)}" if size else ""
        return (
            f" {self.title}{share}  {counted(count, 'record')}{sizes}, {count / elapsed_s:,.0f}/s"
        )

    def _show(self, line: str) -> None:
        print(f"\r{line:<{self._width}}\r{line}", end="", file=sys.stderr, flush=True)
        self._width = len(line)
