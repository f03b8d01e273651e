"""What is wrong with a statement, in one line, and where in it."""

from __future__ import annotations

from typing import Any, NamedTuple

from millstream.client.errors import ClientError


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
    from millstream.pipelines.failures import explain

    return SqlError(_plain(explain(error, None).reason), text=text, span=_span(error, text))


def _plain(reason: str) -> str:
    """Without the class of the exception and the position, which is marked."""
    reason = reason.removeprefix("AnalysisException: ").removeprefix("ParseException: ")
    at = reason.find(" (line ")
    return (reason[:at] if at > 0 else reason).rstrip(".: ")


def _span(error: Any, text: str) -> Span | None:
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
