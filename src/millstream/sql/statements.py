"""The grammar of our statements. A SELECT is passed to Spark unchanged.

CREATE [OR REPLACE] STREAM|TABLE [IF NOT EXISTS] name [(columns)]
    [WITH (option = value, ...)] [AS SELECT ...]
CREATE FLOW [IF NOT EXISTS] name AS INSERT INTO target SELECT ...
INSERT INTO name SELECT ...
INSERT INTO name [(columns)] VALUES (...), ...
SELECT ... [EMIT CHANGES [LIMIT n]]
SHOW TABLES|STREAMS|TOPICS|FLOWS
DESCRIBE [FLOW] name
EXPLAIN SELECT ... | EXPLAIN FLOW name
DROP STREAM|TABLE|FLOW [IF EXISTS] name
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from millstream.pipelines.errors import nearest
from millstream.sql.errors import Span, SqlError
from millstream.sql.tokens import Token, names_in, tokens_of, unquoted

Kind = Literal["stream", "table"]
BEGINNINGS = (
    "CREATE",
    "INSERT",
    "SELECT",
    "WITH",
    "VALUES",
    "FROM",
    "SHOW",
    "DESCRIBE",
    "EXPLAIN",
    "DROP",
)
QUERIES = ("SELECT", "WITH", "VALUES", "FROM")
SHOWN = ("TABLES", "STREAMS", "TOPICS", "FLOWS")


@dataclass(frozen=True)
class Select:
    """A query over current records.

    A ``live`` query also returns future ones, until ``limit`` rows were shown.
    """

    query: str
    live: bool = False
    limit: int | None = None


@dataclass(frozen=True)
class Create:
    """Declare a topic as a stream or table; with a query, also the flow that fills it."""

    kind: Kind
    name: str
    columns: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    query: str | None = None
    if_not_exists: bool = False
    or_replace: bool = False


@dataclass(frozen=True)
class CreateFlow:
    """A query whose rows are written to a stream or table.

    By default it is named after its target.
    """

    name: str
    target: str
    query: str
    if_not_exists: bool = False


@dataclass(frozen=True)
class InsertValues:
    """Rows to write once."""

    target: str
    values: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Show:
    subject: str


@dataclass(frozen=True)
class Describe:
    name: str
    flow: bool = False


@dataclass(frozen=True)
class Explain:
    """Show the plan of a query or of a flow."""

    select: Select | None = None
    flow: str | None = None


@dataclass(frozen=True)
class Drop:
    kind: Literal["stream", "table", "flow"]
    name: str
    if_exists: bool = False


Statement = Select | Create | CreateFlow | InsertValues | Show | Describe | Explain | Drop


def parse(text: str) -> Statement:
    """Parse one statement, without its semicolon. Raise SqlError with the position of a mistake."""
    reader = _Reader(text)
    reader.reject_unclosed()
    first = reader.peek()
    if first is None:
        raise SqlError("the statement is empty", hint=f"start with {', '.join(BEGINNINGS)}")
    if first.is_word(*QUERIES) or first.text == "(":
        return _select(reader)
    forms = {
        "CREATE": _create,
        "INSERT": _insert,
        "SHOW": _show,
        "DESCRIBE": _describe,
        "DESC": _describe,
        "EXPLAIN": _explain,
        "DROP": _drop,
    }
    form = forms.get(first.text.upper()) if first.kind == "word" else None
    if form is None:
        close = nearest(first.text.upper(), BEGINNINGS)
        hint = close if close.startswith("did you") else f"start with {', '.join(BEGINNINGS)}"
        raise reader.error(f"no statement starts with {first.text!r}", first, hint)
    reader.next()
    return form(reader)


def _select(reader: _Reader) -> Select:
    """Parse a query up to its end, and whether it is live: [LIMIT n] EMIT CHANGES [LIMIT n]."""
    start, tokens = reader.position, reader.tokens
    end = len(tokens)
    limit, at = _trailing_limit(tokens, end)
    if at - start < 2 or not (tokens[at - 2].is_word("EMIT") and tokens[at - 1].is_word("CHANGES")):
        return Select(reader.rest())
    end = at - 2
    if limit is None:
        limit, end = _trailing_limit(tokens, end)
    if end <= start:
        raise reader.error("there is no query before EMIT CHANGES", tokens[at - 2])
    return Select(reader.text[tokens[start].start : tokens[end - 1].end], live=True, limit=limit)


def _trailing_limit(tokens: list[Token], end: int) -> tuple[int | None, int]:
    """Return the number of a LIMIT at the end of the tokens, and where they end without it."""
    if end > 1 and tokens[end - 2].is_word("LIMIT") and tokens[end - 1].text.isdigit():
        return int(tokens[end - 1].text), end - 2
    return None, end


def _create(reader: _Reader) -> Statement:
    or_replace = reader.accept("OR", "REPLACE")
    kind = reader.expect_any("STREAM", "TABLE", "FLOW")
    if_not_exists = reader.accept("IF", "NOT", "EXISTS")
    name = reader.name(f"the name of the {kind.lower()}")
    if kind == "FLOW":
        if or_replace:
            raise reader.error("a flow cannot be replaced", None, f"DROP FLOW {name} first")
        reader.expect("AS")
        reader.expect("INSERT")
        reader.expect("INTO")
        target = reader.name("the stream or table that it fills")
        return CreateFlow(name, target, _flow_query(reader), if_not_exists)
    columns = reader.inside_parentheses() if reader.at("(") else None
    options = _options(reader) if reader.accept("WITH") else {}
    query = _flow_query(reader) if reader.accept("AS") else None
    reader.expect_end()
    if columns is not None and query is not None:
        raise reader.error("columns come from the query", None, f"remove ({columns.strip()})")
    return Create(
        "stream" if kind == "STREAM" else "table",
        name,
        columns,
        options,
        query,
        if_not_exists,
        or_replace,
    )


def _flow_query(reader: _Reader) -> str:
    """Parse the query of a flow, which is always live: EMIT CHANGES is optional."""
    first = reader.peek()
    if first is None or not (first.is_word(*QUERIES) or first.text == "("):
        raise reader.error("a query is expected", first, "start with SELECT or WITH")
    select = _select(reader)
    if (
        select.limit is not None
        or _trailing_limit(reader.tokens, len(reader.tokens))[0] is not None
    ):
        raise reader.error("a flow has no end, so LIMIT is not allowed", None)
    reader.end()
    return select.query


def _options(reader: _Reader) -> dict[str, str]:
    """Parse (name = value, ...).

    A name may have dots; a value is a text, a number, a word or a list of words.
    """
    reader.mark("(")
    options: dict[str, str] = {}
    while not reader.at(")"):
        name = reader.word("the name of an option").lower()
        while reader.at("."):
            reader.next()
            name += "." + reader.word("the rest of the option's name")
        reader.mark("=")
        if name in options:
            raise reader.error(f"{name} is duplicated", reader.before())
        options[name] = _option(reader, name)
        if not reader.at(")"):
            reader.mark(",")
    reader.mark(")")
    return options


def _option(reader: _Reader, name: str) -> str:
    """Parse a value without its quotes.

    Names of a key keep theirs, since they may contain a comma.
    """
    if reader.at("("):
        return reader.inside_parentheses()
    token, value = reader.peek(), reader.value()
    return token.text if token is not None and name == "key" and token.kind == "quoted" else value


def _insert(reader: _Reader) -> Statement:
    reader.expect("INTO")
    target = reader.name("the stream or table to write")
    columns = tuple(names_in(reader.inside_parentheses())) if reader.at("(") else ()
    first = reader.peek()
    if first is not None and first.is_word("VALUES"):
        return InsertValues(target, reader.rest(), columns)
    if columns:
        raise reader.error(
            "a list of columns is allowed only with VALUES",
            None,
            "name the columns in the SELECT with AS",
        )
    return CreateFlow(target, target, _flow_query(reader))


def _show(reader: _Reader) -> Show:
    subject = reader.expect_any(*SHOWN)
    reader.expect_end()
    return Show(subject.lower())


def _describe(reader: _Reader) -> Describe:
    flow = reader.accept("FLOW")
    _ = flow or reader.accept("STREAM") or reader.accept("TABLE")
    name = reader.name("the name of a stream, table or flow")
    reader.expect_end()
    return Describe(name, flow)


def _explain(reader: _Reader) -> Explain:
    if reader.accept("FLOW"):
        name = reader.name("the name of the flow")
        reader.expect_end()
        return Explain(flow=name)
    first = reader.peek()
    if first is None or not (first.is_word(*QUERIES) or first.text == "("):
        raise reader.error("a query is expected", first, "EXPLAIN SELECT ..., or EXPLAIN FLOW name")
    return Explain(select=_select(reader))


def _drop(reader: _Reader) -> Drop:
    kind = reader.expect_any("STREAM", "TABLE", "FLOW")
    if_exists = reader.accept("IF", "EXISTS")
    name = reader.name(f"the name of the {kind.lower()}")
    reader.expect_end()
    return Drop(
        "flow" if kind == "FLOW" else "stream" if kind == "STREAM" else "table", name, if_exists
    )


class _Reader:
    """Reads the tokens of a statement in order."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokens_of(text)
        self.position = 0

    def peek(self) -> Token | None:
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def next(self) -> Token | None:
        token = self.peek()
        self.position += 1
        return token

    def before(self) -> Token | None:
        return self.tokens[self.position - 1] if self.position else None

    def at(self, mark: str) -> bool:
        token = self.peek()
        return token is not None and token.text == mark

    def accept(self, *words: str) -> bool:
        """Skip these words if they are next."""
        ahead = self.tokens[self.position : self.position + len(words)]
        if len(ahead) < len(words) or not all(
            token.is_word(word) for token, word in zip(ahead, words, strict=True)
        ):
            return False
        self.position += len(words)
        return True

    def expect(self, word: str) -> None:
        if not self.accept(word):
            raise self.expected(word)

    def expect_any(self, *words: str) -> str:
        token = self.peek()
        if token is None or not token.is_word(*words):
            raise self.expected(f"{', '.join(words[:-1])} or {words[-1]}")
        self.position += 1
        return token.text.upper()

    def mark(self, mark: str) -> None:
        if not self.at(mark):
            raise self.expected(repr(mark))
        self.position += 1

    def name(self, meaning: str) -> str:
        """Read a name; a name with dashes or dots must be in backticks."""
        word = self.word(meaning)
        token, following = self.tokens[self.position - 1], self.peek()
        if following is not None and following.text in "-." and following.start == token.end:
            raise self.error(
                f"{word!r} is not the whole name",
                following,
                "quote names with dashes or dots with `backticks`",
            )
        return word

    def word(self, meaning: str) -> str:
        token = self.peek()
        if token is None or token.kind not in ("word", "quoted"):
            raise self.error(
                f"{meaning} is expected", token, "quote unusual names with `backticks`"
            )
        self.position += 1
        return unquoted(token)

    def value(self) -> str:
        token = self.next()
        if token is None or token.kind == "mark":
            raise self.error("a value is expected", token, "a 'text', a number, or a word")
        return unquoted(token)

    def inside_parentheses(self) -> str:
        """Return the text inside a pair of parentheses."""
        start, depth = self.peek(), 0
        assert start is not None
        while (token := self.next()) is not None:
            depth += (token.text == "(") - (token.text == ")")
            if not depth:
                return self.text[start.end : token.start].strip()
        raise self.error("this is never closed", start)

    def rest(self) -> str:
        """Return the text from here on."""
        start = self.peek()
        assert start is not None
        self.end()
        return self.text[start.start : self.tokens[-1].end]

    def end(self) -> None:
        self.position = len(self.tokens)

    def expect_end(self) -> None:
        token = self.peek()
        if token is not None:
            raise self.error(f"{token.text!r} is not expected here", token)

    def expected(self, meaning: str) -> SqlError:
        return self.error(f"{meaning} is expected", self.peek())

    def error(self, message: str, token: Token | None, hint: str = "") -> SqlError:
        """Return an error at a token, or at the end of the text."""
        end = Span(len(self.text), len(self.text) + 1)
        return SqlError(
            message, hint=hint, text=self.text, span=end if token is None else token.span
        )

    def reject_unclosed(self) -> None:
        if self.tokens and self.tokens[-1].kind == "open":
            token = self.tokens[-1]
            raise SqlError(
                "this is never closed", text=self.text, span=Span(token.start, token.start + 1)
            )
