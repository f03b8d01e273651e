"""The words of SQL with their places; enough to cut a script into statements and to read the forms that are ours."""

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
    """A word, a quoted name, a text, a number or a mark; ``open`` is the beginning of one that never ends."""

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


class Piece(NamedTuple):
    """A statement of a script, and the line on which it begins."""

    text: str
    line: int


def tokens_of(text: str) -> list[Token]:
    """All but blanks and comments. What is opened and never closed is the last token."""
    found = []
    for one in _TOKEN.finditer(text):
        kind = str(one.lastgroup)
        if kind == "open":
            found.append(Token("open", text[one.start() :], one.start()))
            break
        if kind != "skip":
            found.append(Token(kind, one.group(), one.start()))
    return found


def split(script: str) -> tuple[list[Piece], str]:
    """The statements that a semicolon ends, and what is left behind the last of them."""
    pieces, begin, first = [], 0, None
    for token in tokens_of(script):
        if (token.kind, token.text) != ("mark", ";"):
            first = token.start if first is None else first
            continue
        if first is not None:
            pieces.append(_piece(script, first, token.start))
        begin, first = token.end, None
    return pieces, "" if first is None else script[begin:]


def statements_of(script: str) -> list[Piece]:
    """All statements of a script; the last one needs no semicolon."""
    pieces, rest = split(script)
    left = tokens_of(rest)
    if left:
        start = len(script) - len(rest) + left[0].start
        pieces.append(_piece(script, start, len(script)))
    return pieces


def _piece(script: str, start: int, end: int) -> Piece:
    return Piece(script[start:end].rstrip(), script.count("\n", 0, start) + 1)


def names_in(text: str) -> list[str]:
    """A list of names, with commas between them; odd ones stand between backticks or quotes."""
    ends = [one.start for one in tokens_of(text) if one.text == ","] + [len(text)]
    begins = [0, *(end + 1 for end in ends)]
    pieces = [text[begin:end].strip() for begin, end in zip(begins, ends, strict=False)]
    return [_name(one) for one in pieces if one]


def _name(piece: str) -> str:
    tokens = tokens_of(piece)
    return unquoted(tokens[0]) if len(tokens) == 1 else piece


def unquoted(token: Token) -> str:
    """A name or a text without its quotes."""
    if token.kind == "quoted":
        return token.text[1:-1].replace("``", "`")
    if token.kind == "text":
        quote = token.text[0]
        inside = token.text[1:-1].replace(quote * 2, quote)
        return re.sub(r"\\(.)", r"\1", inside, flags=re.DOTALL)
    return token.text
