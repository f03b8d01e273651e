"""What is wrong with a statement, in one line, and where in it."""

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
    """A statement that cannot be carried out. ``span`` says which part of ``text`` is meant, where that is known."""

    def __init__(self, message: str, *, hint: str = "", text: str = "", span: Span | None = None) -> None:
        super().__init__(message, hint=hint)
        self.text = text
        self.span = span

    def marked(self) -> str:
        """The line that is meant, with a mark below it; nothing where no part is known."""
        return "" if self.span is None else mark(self.text, self.span)


def mark(text: str, span: Span) -> str:
    """The line of a text on which a part begins, and a mark below that part."""
    start = min(span.start, len(text))
    begins = text.rfind("\n", 0, start) + 1
    ends = text.find("\n", start)
    line = text[begins : len(text) if ends < 0 else ends]
    column = start - begins
    width = max(1, min(span.end - start, len(line) - column))
    lead = "".join("\t" if letter == "\t" else " " for letter in line[:column])
    return f"  {line}\n  {lead}{'^' * width}"


def from_spark(error: Any, text: str) -> SqlError:
    """Spark's refusal of a query: its reason in one line, and the part of the query that it is about."""
    from millstream.pipelines.run.failures import explain

    reason = _plain(explain(error, None).reason)
    span = _context(error, text) or _position(str(error), text) or _named(reason, text)
    return SqlError(reason, text=text, span=span)


def _plain(reason: str) -> str:
    """Without the class of the exception and the position, which is marked."""
    reason = reason.removeprefix("AnalysisException: ").removeprefix("ParseException: ")
    at = reason.find(" (line ")
    return (reason[:at] if at > 0 else reason).rstrip(".: ")


def _context(error: Any, text: str) -> Span | None:
    """Where Spark says the mistake is."""
    try:
        contexts = list(error.getQueryContext())
    except Exception:  # an error of another kind, or one whose context is not of SQL
        return None
    for one in contexts:
        try:
            start, stop = int(one.startIndex()), int(one.stopIndex())
        except Exception:  # each kind of context refuses what it has not, in its own way
            continue
        if 0 <= start < len(text):
            return Span(start, max(stop + 1, start + 1))
    return None


def _position(message: str, text: str) -> Span | None:
    """Where its parser stopped: (line 2, pos 7)."""
    found = _AT.search(message)
    if found is None:
        return None
    lines = text.splitlines(keepends=True) or [""]
    line = min(int(found[1]), len(lines)) - 1
    start = sum(map(len, lines[:line])) + int(found[2])
    word = _WORD.match(text, start)
    return Span(start, word.end() if word else start + 1)


def _named(reason: str, text: str) -> Span | None:
    """Where the first thing that the reason puts in quotes stands in the query."""
    for quoted in _QUOTED.findall(reason):
        found = re.search(rf"(?<![\w.]){re.escape(quoted)}(?!\w)", text, re.IGNORECASE)
        if found is not None:
            return Span(found.start(), found.end())
    return None
