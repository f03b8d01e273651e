"""Tokens of SQL with their positions: enough to split scripts and to parse our own statements."""

from __future__ import annotations

import re
from typing import NamedTuple

from millstream.sql.errors import Span

_TOKEN = re.compile(
    r"""
    (?P<skip>\s+|--[^\n]*|/\*.*?\*/)
  | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
  | (?P<quoted>`(?:[^`]|``)+`)
  | (?P<number>\d+(?:\.\d+)?)
  | (?P<word>[A-Za-z_]\w*)
  | (?P<open>['"`]|/\*)
  | (?P<mark>.)
    """,
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """A word, quoted name, text, number or mark; ``open`` starts one that is never closed."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def span(self) -> Span:
        return Span(self.start, self.end)

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.upper() in words


class ScriptStatement(NamedTuple):
    """A statement of a script, and the line on which it begins."""

    text: str
    line: int


def tokens_of(text: str) -> list[Token]:
    """Return all tokens except blanks and comments. An unclosed one is the last token."""
    tokens = []
    for match in _TOKEN.finditer(text):
        kind = str(match.lastgroup)
        if kind == "open":
            tokens.append(Token("open", text[match.start() :], match.start()))
            break
        if kind != "skip":
            tokens.append(Token(kind, match.group(), match.start()))
    return tokens


def split(script: str) -> tuple[list[ScriptStatement], str]:
    """Return the statements that end with a semicolon, and the text after the last of them."""
    statements, begin, first = [], 0, None
    for token in tokens_of(script):
        if (token.kind, token.text) != ("mark", ";"):
            first = token.start if first is None else first
            continue
        if first is not None:
            statements.append(_statement(script, first, token.start))
        begin, first = token.end, None
    return statements, "" if first is None else script[begin:]


def statements_of(script: str) -> list[ScriptStatement]:
    """Return all statements of a script; the last one needs no semicolon."""
    statements, rest = split(script)
    left = tokens_of(rest)
    if left:
        start = len(script) - len(rest) + left[0].start
        statements.append(_statement(script, start, len(script)))
    return statements


def _statement(script: str, start: int, end: int) -> ScriptStatement:
    return ScriptStatement(script[start:end].rstrip(), script.count("\n", 0, start) + 1)


def names_in(text: str) -> list[str]:
    """Parse a list of names with commas between them; unusual names are quoted."""
    ends = [token.start for token in tokens_of(text) if token.text == ","] + [len(text)]
    begins = [0, *(end + 1 for end in ends)]
    pieces = [text[begin:end].strip() for begin, end in zip(begins, ends, strict=False)]
    return [_name(piece) for piece in pieces if piece]


def _name(piece: str) -> str:
    tokens = tokens_of(piece)
    return unquoted(tokens[0]) if len(tokens) == 1 else piece


def unquoted(token: Token) -> str:
    """Return a name or a text without its quotes."""
    if token.kind == "quoted":
        return token.text[1:-1].replace("``", "`")
    if token.kind == "text":
        quote = token.text[0]
        inside = token.text[1:-1].replace(quote * 2, quote)
        return re.sub(r"\\(.)", r"\1", inside, flags=re.DOTALL)
    return token.text
