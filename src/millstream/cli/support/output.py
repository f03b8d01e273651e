"""What commands print: tables and JSON on stdout, remarks and progress on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from millstream.core.words import counted

PROGRESS_EVERY_S = 0.2


def print_json(value: Any) -> None:
    """One JSON document; a list has one element a line, for people and for grep."""
    if not isinstance(value, list) or not value:
        print(json.dumps(value, ensure_ascii=False))
        return
    print("[\n  " + ",\n  ".join(json.dumps(one, ensure_ascii=False) for one in value) + "\n]")


def print_json_rows(rows: Iterable[Any]) -> None:
    """The same list, printed as its elements come: there may be more of them than memory."""
    before = "[\n  "
    for row in rows:
        print(before + json.dumps(row, ensure_ascii=False), end="")
        before = ",\n  "
    print("[]" if before.startswith("[") else "\n]")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns under their names. Into a pipe nothing is coloured, wrapped or cut."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(
        *columns, box=box.SIMPLE_HEAD if sys.stdout.isatty() else None, pad_edge=False, header_style="bold"
    )
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=1_000_000)
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "-"
    if isinstance(value, tuple | list):
        value = ",".join(map(str, value)) or "-"
    return printable(str(value))


def printable(text: str) -> str:
    """One line of a table: names that anybody may choose (groups, clients, transactional ids) must not move the cursor."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def note(text: str) -> None:
    """A remark for the person, never for the program that reads stdout."""
    print(text, file=sys.stderr)


def note_on_terminal(text: str) -> None:
    """Print a remark for a user who waits at a terminal; logs and pipes do not need it."""
    if sys.stderr.isatty():
        note(text)


def human_bytes(count: float) -> str:
    """A size in the unit that reads best: 999 B, 1.2 kB, 34 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


class Progress:
    """One line that is rewritten while long work goes on; silent unless stderr is a terminal."""

    def __init__(self, what: str, *, total: int | None = None, enabled: bool | None = None) -> None:
        self.what = what
        self.total = total
        self.enabled = sys.stderr.isatty() if enabled is None else enabled
        self._started_s = self._shown_s = time.monotonic()
        self._width = 0

    def update(self, count: int, size: int = 0) -> None:
        """Show where the work is, at most five times a second; ``count`` records, ``size`` bytes."""
        if not self.enabled:
            return
        now_s = time.monotonic()
        if now_s - self._shown_s >= PROGRESS_EVERY_S:
            self._shown_s = now_s
            self._show(self._line(count, size, max(now_s - self._started_s, 1e-9)))

    def clear(self) -> None:
        """Take the line away; what follows starts at the left edge."""
        if self._width:
            self._show("")
            self._width = 0

    def _line(self, count: int, size: int, elapsed_s: float) -> str:
        share = f" {min(100, 100 * count // self.total)} %" if self.total else ""
        sizes = f", {human_bytes(size)}" if size else ""
        return f" {self.what}{share}  {counted(count, 'record')}{sizes}, {count / elapsed_s:,.0f}/s"

    def _show(self, line: str) -> None:
        print(f"\r{line:<{self._width}}\r{line}", end="", file=sys.stderr, flush=True)
        self._width = len(line)
