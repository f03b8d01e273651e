"""Tables as lines of text, and a block of lines that is redrawn at the bottom of a terminal.

rich does the same and more. It needs three more packages and 11 MB, and its import took longer than
a listing itself.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import unicodedata
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, TextIO, cast

BOLD, DIM, RED, YELLOW, GREEN = "1", "2", "31", "33", "32"
BOLD_RED = f"{BOLD};{RED}"

_MIN_COLUMN = 4
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_CLEAR_BELOW = "\x1b[J"


class Cell(NamedTuple):
    """A value with a style: the numbers of an ANSI escape sequence."""

    text: str
    style: str = ""


def styled(text: str, style: str) -> str:
    """Return the text with the style, unless the user or the terminal does not want colours."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{style}m{text}\x1b[0m" if style and text else text


def width_of(text: str) -> int:
    """Return the columns that a terminal uses for the text."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def _columns(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _padded(text: str, width: int, *, right: bool) -> str:
    space = " " * (width - width_of(text))
    return space + text if right else text + space


def wrapped(text: str, width: int) -> list[str]:
    """Return the text in lines of at most this width.

    Words that are longer end with an ellipsis.
    """
    lines: list[str] = []
    for word in text.split(" ") if width_of(text) > width else [text]:
        if lines and width_of(lines[-1]) + 1 + width_of(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(_shortened(word, width))
    return lines


def _shortened(word: str, width: int) -> str:
    if width_of(word) <= width:
        return word
    while width_of(word) >= width:
        word = word[:-1]
    return f"{word}…"


class Table:
    """Rows below column names. With ``ruled`` a line and margins set the names apart."""

    def __init__(self, *columns: str, ruled: bool = False, right: Iterable[str] = ()) -> None:
        self.columns = columns
        self.ruled = ruled
        self.right = [column in set(right) for column in columns]
        self.rows: list[Sequence[Cell]] = []

    def add(self, *cells: str | Cell, style: str = "") -> None:
        """Add a row. ``style`` is that of the cells that have none."""
        self.rows.append([cell if isinstance(cell, Cell) else Cell(cell, style) for cell in cells])

    def lines(self, width: int | None = None, *, colour: bool = False) -> list[str]:
        """Return the lines, at most ``width`` columns wide. Cells that do not fit are wrapped."""
        gap = "   " if self.ruled else "  "
        margin = " " if self.ruled else ""
        widths = self._widths(width, len(gap), len(margin))
        head = [Cell(column, BOLD) for column in self.columns]
        lines = self._row_lines(head, widths, gap, colour=colour)
        if self.ruled:
            lines.append("─" * (sum(widths) + len(gap) * (len(widths) - 1)))
        for row in self.rows:
            lines += self._row_lines(row, widths, gap, colour=colour)
        lines = [f"{margin}{line}".rstrip() for line in lines]
        return ["", *lines, ""] if self.ruled else lines

    def _widths(self, limit: int | None, gap: int, margin: int) -> list[int]:
        cells = zip(*([cell.text for cell in row] for row in self.rows), strict=True)
        widths = list(map(width_of, self.columns))
        widths = [
            max(widths[at], *map(width_of, column)) for at, column in enumerate(cells)
        ] or widths
        if limit is None:
            return widths
        room = max(limit - gap * (len(widths) - 1) - 2 * margin, _MIN_COLUMN * len(widths))
        while sum(widths) > room:
            widths[widths.index(max(widths))] -= 1
        return widths

    def _row_lines(
        self, row: Sequence[Cell], widths: list[int], gap: str, *, colour: bool
    ) -> list[str]:
        columns = [wrapped(cell.text, width) for cell, width in zip(row, widths, strict=True)]
        lines = []
        for at in range(max(map(len, columns), default=0)):
            parts = []
            for cell, width, texts, right in zip(row, widths, columns, self.right, strict=True):
                text = _padded(texts[at] if at < len(texts) else "", width, right=right)
                parts.append(styled(text, cell.style) if colour else text)
            lines.append(gap.join(parts))
        return lines


class Live:
    """Lines that are redrawn in place. Other output of the program appears above them.

    Lines beyond the height of the terminal are left out, because those could not be redrawn.
    """

    def __init__(self) -> None:
        self._terminal = sys.stdout
        self._error_output = sys.stderr
        self._lines: list[str] = []
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        self._terminal, self._error_output = sys.stdout, sys.stderr
        sys.stdout = cast(TextIO, _Above(self, sys.stdout))
        if sys.stderr.isatty():
            sys.stderr = cast(TextIO, _Above(self, sys.stderr))
        self._terminal.write(_HIDE_CURSOR)

    def stop(self) -> None:
        sys.stdout, sys.stderr = self._terminal, self._error_output
        self._terminal.write(_SHOW_CURSOR)
        self._terminal.flush()

    def update(self, lines: Sequence[str]) -> None:
        """Replace the lines."""
        with self._lock:
            self._draw("", lines[: max(1, terminal_size().lines - 1)])

    def print_above(self, text: str) -> None:
        with self._lock:
            self._draw(text, self._lines)

    def _draw(self, text: str, lines: Sequence[str]) -> None:
        back = f"\x1b[{len(self._lines)}F" if self._lines else ""
        block = "".join(f"{line}\n" for line in lines)
        self._lines = list(lines)
        self._terminal.write(f"{back}{_CLEAR_BELOW}{text}{block}")
        self._terminal.flush()


class _Above:
    """Stands in for stdout or stderr while a block is shown. Whole lines go above the block."""

    def __init__(self, live: Live, file: TextIO) -> None:
        self._live = live
        self._file = file
        self._unfinished = ""

    def write(self, text: str) -> int:
        whole, newline, rest = (self._unfinished + text).rpartition("\n")
        self._unfinished = rest
        if newline:
            self._live.print_above(whole + newline)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def terminal_size() -> os.terminal_size:
    return shutil.get_terminal_size()
