"""The statements there are. What is ours is read here; a SELECT stays as it is, for Spark.

CREATE [OR REPLACE] STREAM|TABLE [IF NOT EXISTS] name [(columns)] [WITH (option = value, ...)] [AS SELECT ...]
INSERT INTO name SELECT ...                       CREATE FLOW [IF NOT EXISTS] name AS INSERT INTO target SELECT ...
INSERT INTO name [(columns)] VALUES (...), ...
SELECT ... [EMIT CHANGES [LIMIT n]]
SHOW TABLES|STREAMS|TOPICS|FLOWS                  DESCRIBE [FLOW] name
EXPLAIN SELECT ... | EXPLAIN FLOW name            DROP STREAM|TABLE|FLOW [IF EXISTS] name
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from millstream.pipelines.errors import nearest
from millstream.sql.errors import Span, SqlError
from millstream.sql.tokens import Token, names_in, tokens_of, unquoted

Kind = Literal["stream", "table"]
BEGINNINGS = ("CREATE", "INSERT", "SELECT", "WITH", "VALUES", "FROM", "SHOW", "DESCRIBE", "EXPLAIN", "DROP")
QUERIES = ("SELECT", "WITH", "VALUES", "FROM")
SHOWN = ("TABLES", "STREAMS", "TOPICS", "FLOWS")


@dataclass(frozen=True)
class Select:
    """A query: what is there now, or ``live`` as it comes, until so many rows were shown."""

    query: str
    live: bool = False
    limit: int | None = None


@dataclass(frozen=True)
class Create:
    """A topic by the name of a stream or table; with a query, also the flow that fills it."""

    kind: Kind
    name: str
    columns: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    query: str | None = None
    if_not_exists: bool = False
    or_replace: bool = False


@dataclass(frozen=True)
class CreateFlow:
    """A query whose rows go to a stream or table, from now on; without a name of its own it has that of its target."""

    name: str
    target: str
    query: str
    if_not_exists: bool = False


@dataclass(frozen=True)
class InsertValues:
    """Rows, once."""

    target: str
    values: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Show:
    what: str


@dataclass(frozen=True)
class Describe:
    name: str
    flow: bool = False


@dataclass(frozen=True)
class Explain:
    """How Spark would carry out a query, or does a flow."""

    select: Select | None = None
    flow: str | None = None


@dataclass(frozen=True)
class Drop:
    kind: Literal["stream", "table", "flow"]
    name: str
    if_exists: bool = False


Statement = Select | Create | CreateFlow | InsertValues | Show | Describe | Explain | Drop


def parse(text: str) -> Statement:
    """One statement, without its semicolon. SqlError with the place of the mistake."""
    reader = _Reader(text)
    reader.refuse_unclosed()
    first = reader.peek()
    if first is None:
        raise SqlError("there is no statement", hint=f"one begins with {', '.join(BEGINNINGS)}")
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
        hint = close if close.startswith("did you") else f"one begins with {', '.join(BEGINNINGS)}"
        raise reader.error(f"{first.text!r} begins no statement", first, hint)
    reader.next()
    return form(reader)


def _select(reader: _Reader) -> Select:
    """A query up to its end, and whether it is live: [LIMIT n] EMIT CHANGES [LIMIT n]."""
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
    """The number of a LIMIT that ends the tokens, and where they end without it."""
    if end > 1 and tokens[end - 2].is_word("LIMIT") and tokens[end - 1].text.isdigit():
        return int(tokens[end - 1].text), end - 2
    return None, end


def _create(reader: _Reader) -> Statement:
    or_replace = reader.accept("OR", "REPLACE")
    kind = reader.one_of("STREAM", "TABLE", "FLOW")
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
        raise reader.error("columns come from the query", None, f"leave out ({columns.strip()})")
    return Create(
        "stream" if kind == "STREAM" else "table", name, columns, options, query, if_not_exists, or_replace
    )


def _flow_query(reader: _Reader) -> str:
    """The query of a flow, which is always live: EMIT CHANGES may be said."""
    first = reader.peek()
    if first is None or not (first.is_word(*QUERIES) or first.text == "("):
        raise reader.error("a query is expected", first, "it begins with SELECT or WITH")
    found = _select(reader)
    if found.limit is not None or _trailing_limit(reader.tokens, len(reader.tokens))[0] is not None:
        raise reader.error("a flow has no end, so it takes no LIMIT", None)
    reader.end()
    return found.query


def _options(reader: _Reader) -> dict[str, str]:
    """(name = value, ...); a name may have dots, and a value is a text, a number, a word or a list of words."""
    reader.mark("(")
    found: dict[str, str] = {}
    while not reader.at(")"):
        name = reader.word("the name of an option").lower()
        while reader.at("."):
            reader.next()
            name += "." + reader.word("the rest of the option's name")
        reader.mark("=")
        if name in found:
            raise reader.error(f"{name} is given twice", reader.before())
        found[name] = _option(reader, name)
        if not reader.at(")"):
            reader.mark(",")
    reader.mark(")")
    return found


def _option(reader: _Reader, name: str) -> str:
    """A value without its quotes; the names of a key keep theirs, since a comma may be part of one."""
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
            "a list of columns goes with VALUES only", None, "name the columns in the SELECT with AS"
        )
    return CreateFlow(target, target, _flow_query(reader))


def _show(reader: _Reader) -> Show:
    what = reader.one_of(*SHOWN)
    reader.expect_end()
    return Show(what.lower())


def _describe(reader: _Reader) -> Describe:
    flow = reader.accept("FLOW")
    _ = flow or reader.accept("STREAM") or reader.accept("TABLE")
    name = reader.name("what is to be described")
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
    kind = reader.one_of("STREAM", "TABLE", "FLOW")
    if_exists = reader.accept("IF", "EXISTS")
    name = reader.name(f"the name of the {kind.lower()}")
    reader.expect_end()
    return Drop("flow" if kind == "FLOW" else "stream" if kind == "STREAM" else "table", name, if_exists)


class _Reader:
    """The tokens of a statement, one after the other."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokens_of(text)
        self.position = 0

    def peek(self) -> Token | None:
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def next(self) -> Token | None:
        found = self.peek()
        self.position += 1
        return found

    def before(self) -> Token | None:
        return self.tokens[self.position - 1] if self.position else None

    def at(self, mark: str) -> bool:
        token = self.peek()
        return token is not None and token.text == mark

    def accept(self, *words: str) -> bool:
        """Take these words if they are next."""
        ahead = self.tokens[self.position : self.position + len(words)]
        if len(ahead) < len(words) or not all(
            one.is_word(word) for one, word in zip(ahead, words, strict=True)
        ):
            return False
        self.position += len(words)
        return True

    def expect(self, word: str) -> None:
        if not self.accept(word):
            raise self.expected(word)

    def one_of(self, *words: str) -> str:
        token = self.peek()
        if token is None or not token.is_word(*words):
            raise self.expected(f"{', '.join(words[:-1])} or {words[-1]}")
        self.position += 1
        return token.text.upper()

    def mark(self, mark: str) -> None:
        if not self.at(mark):
            raise self.expected(repr(mark))
        self.position += 1

    def name(self, what: str) -> str:
        """The name of something; one with dashes or dots stands between backticks."""
        found = self.word(what)
        token, following = self.tokens[self.position - 1], self.peek()
        if following is not None and following.text in "-." and following.start == token.end:
            raise self.error(
                f"{found!r} is not the whole name",
                following,
                "put one with dashes or dots between `backticks`",
            )
        return found

    def word(self, what: str) -> str:
        token = self.peek()
        if token is None or token.kind not in ("word", "quoted"):
            raise self.error(f"{what} is expected", token, "quote odd names with `backticks`")
        self.position += 1
        return unquoted(token)

    def value(self) -> str:
        token = self.next()
        if token is None or token.kind == "mark":
            raise self.error("a value is expected", token, "a 'text', a number, or a word")
        return unquoted(token)

    def inside_parentheses(self) -> str:
        """What stands between a pair of them."""
        start, depth = self.peek(), 0
        assert start is not None
        while (token := self.next()) is not None:
            depth += (token.text == "(") - (token.text == ")")
            if not depth:
                return self.text[start.end : token.start].strip()
        raise self.error("this is never closed", start)

    def rest(self) -> str:
        """The text from here on."""
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

    def expected(self, what: str) -> SqlError:
        return self.error(f"{what} is expected", self.peek())

    def error(self, message: str, token: Token | None, hint: str = "") -> SqlError:
        """A mistake at a token, or at the end of the text."""
        end = Span(len(self.text), len(self.text) + 1)
        return SqlError(message, hint=hint, text=self.text, span=end if token is None else token.span)

    def refuse_unclosed(self) -> None:
        if self.tokens and self.tokens[-1].kind == "open":
            token = self.tokens[-1]
            raise SqlError("this is never closed", text=self.text, span=Span(token.start, token.start + 1))
