"""Errors of statements: one line, and the position of the mistake."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from millstream.client.errors import ClientError

_AT = re.compile(r"\(line (\d+), pos (\d+)\)")
_WORD = re.compile(r"\w+")
_QUOTED = re.compile(r"[\"`]([^\"`]+)[\"`]")


class Span(NamedTuple):
    """A part of a text, from one character up to another."""

    start: int
    end: int


class SqlError(ClientError):
    """A statement that cannot be run.

    ``span`` is the part of ``text`` that is wrong, if it is known.
    """

    def __init__(
        self, message: str, *, hint: str = "", text: str = "", span: Span | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.text = text
        self.span = span

    def marked(self) -> str:
        """Return the line of the mistake with a mark below it, or nothing if it is not known."""
        return "" if self.span is None else mark(self.text, self.span)


def mark(text: str, span: Span) -> str:
    """Return the line of a text on which a part begins, and a mark below that part."""
    start = min(span.start, len(text))
    begins = text.rfind("\n", 0, start) + 1
    ends = text.find("\n", start)
    line = text[begins : len(text) if ends < 0 else ends]
    column = start - begins
    width = max(1, min(span.end - start, len(line) - column))
    lead = "".join("\t" if letter == "\t" else " " for letter in line[:column])
    return f"  {line}\n  {lead}{'^' * width}"


def from_spark(error: Any, text: str) -> SqlError:
    """Convert Spark's error: its reason in one line, and the part of the query that it concerns."""
    from millstream.pipelines.run.failures import explain

    reason = _plain(explain(error, None).reason)
    span = _context(error, text) or _position(str(error), text) or _named(reason, text)
    return SqlError(reason, text=text, span=span)


def _plain(reason: str) -> str:
    """Remove the class of the exception and the position, which is marked."""
    reason = reason.removeprefix("AnalysisException: ").removeprefix("ParseException: ")
    at = reason.find(" (line ")
    return (reason[:at] if at > 0 else reason).rstrip(".: ")


def _context(error: Any, text: str) -> Span | None:
    """Return where Spark says the mistake is."""
    try:
        contexts = list(error.getQueryContext())
    # An error of another kind, or one whose context is not SQL.
    except Exception:
        return None
    for context in contexts:
        try:
            start, stop = int(context.startIndex()), int(context.stopIndex())
        # Each kind of context raises its own error for a missing value.
        except Exception:
            continue
        if 0 <= start < len(text):
            return Span(start, max(stop + 1, start + 1))
    return None


def _position(message: str, text: str) -> Span | None:
    """Return where the parser stopped: (line 2, pos 7)."""
    match = _AT.search(message)
    if match is None:
        return None
    lines = text.splitlines(keepends=True) or [""]
    line = min(int(match[1]), len(lines)) - 1
    start = sum(map(len, lines[:line])) + int(match[2])
    word = _WORD.match(text, start)
    return Span(start, word.end() if word else start + 1)


def _named(reason: str, text: str) -> Span | None:
    """Return where the query has the first name that the reason quotes."""
    for quoted in _QUOTED.findall(reason):
        match = re.search(rf"(?<![\w.]){re.escape(quoted)}(?!\w)", text, re.IGNORECASE)
        if match is not None:
            return Span(match.start(), match.end())
    return None
