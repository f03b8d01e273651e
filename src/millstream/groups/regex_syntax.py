"""The syntax of regular expressions that the broker resolves: that of RE2, which KIP-848 prescribes.

No back references and no look-around, so that every expression can be matched in one pass over the text. Topic names are ASCII, so
sets of characters are sets of ASCII characters; whatever else an expression names matches no topic.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

_ALL = frozenset(map(chr, range(128)))
_DIGITS = frozenset(string.digits)
_WORD = frozenset(string.ascii_letters + string.digits + "_")
_SPACE = frozenset("\t\n\f\r ")
_MOST_REPEATS = 1000
_MOST_NESTING = 100


class InvalidRegex(Exception):
    """Says what is wrong with an expression."""


class Chars(NamedTuple):
    """One character out of a set."""

    chars: frozenset[str]


class Boundary(NamedTuple):
    """A place rather than a character: ``start``, ``end``, ``word`` or ``inside`` (not at a word's edge)."""

    kind: str


class Sequence(NamedTuple):
    parts: tuple[Node, ...]


class Choice(NamedTuple):
    parts: tuple[Node, ...]


class Repeat(NamedTuple):
    """``most`` None: any number."""

    part: Node
    least: int
    most: int | None


Node = Chars | Boundary | Sequence | Choice | Repeat


class _Flags(NamedTuple):
    ignore_case: bool = False
    dot_is_all: bool = False


_CLASSES: dict[str, frozenset[str]] = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CLASSES |= {name.upper(): _ALL - chars for name, chars in _CLASSES.items()}
_POSIX: dict[str, frozenset[str]] = {
    "alnum": _WORD - {"_"},
    "alpha": frozenset(string.ascii_letters),
    "ascii": _ALL,
    "blank": frozenset("\t "),
    "cntrl": frozenset(char for char in _ALL if ord(char) < 32 or ord(char) == 127),
    "digit": _DIGITS,
    "graph": frozenset(char for char in _ALL if 32 < ord(char) < 127),
    "lower": frozenset(string.ascii_lowercase),
    "print": frozenset(char for char in _ALL if 31 < ord(char) < 127),
    "punct": frozenset(string.punctuation),
    "space": _SPACE | {"\v"},
    "upper": frozenset(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": frozenset(string.hexdigits),
}
_CONTROLS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_BOUNDARIES = {"A": "start", "z": "end", "b": "word", "B": "inside"}
_CATEGORIES = frozenset("CLMNPSZ")
_SCRIPTS = frozenset({"Latin", "Common", "Greek", "Cyrillic", "Han", "Arabic", "Hebrew"})


def parse(pattern: str) -> Node:
    """Raises InvalidRegex."""
    parser = _Parser(pattern)
    node = parser.choice(_Flags(), 0)
    if parser.more:
        raise InvalidRegex("unexpected )")
    return node


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.at = 0

    # ---- the text -------------------------------------------------------------------------------------------

    @property
    def more(self) -> bool:
        return self.at < len(self.text)

    def peek(self, what: str) -> bool:
        return self.text.startswith(what, self.at)

    def take(self, what: str) -> bool:
        if not self.peek(what):
            return False
        self.at += len(what)
        return True

    def next(self, missing: str) -> str:
        if not self.more:
            raise InvalidRegex(missing)
        self.at += 1
        return self.text[self.at - 1]

    def until(self, end: str, missing: str) -> str:
        found = self.text.find(end, self.at)
        if found < 0:
            raise InvalidRegex(missing)
        start, self.at = self.at, found + len(end)
        return self.text[start:found]

    # ---- the grammar ----------------------------------------------------------------------------------------

    def choice(self, flags: _Flags, depth: int) -> Node:
        if depth > _MOST_NESTING:
            raise InvalidRegex("nested too deeply")
        branches: list[Node] = []
        parts: list[Node] = []
        while self.more and not self.peek(")"):
            if self.take("|"):
                branches.append(Sequence(tuple(parts)))
                parts = []
            elif self.peek("(?"):
                flags = self._special_group(flags, depth, parts)
            else:
                self._term(flags, depth, parts)
        branches.append(Sequence(tuple(parts)))
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def _term(self, flags: _Flags, depth: int, parts: list[Node]) -> None:
        if self.take("\\Q"):
            end = self.text.find("\\E", self.at)
            quoted = self.text[self.at :] if end < 0 else self.text[self.at : end]
            self.at = len(self.text) if end < 0 else end + 2
            parts += [_chars(char, flags) for char in quoted]
            if quoted:
                parts.append(self._repeated(parts.pop()))
            return
        parts.append(self._repeated(self._atom(flags, depth)))

    def _atom(self, flags: _Flags, depth: int) -> Node:
        char = self.next("")
        if char in "*+?":
            raise InvalidRegex(f"nothing to repeat before {char}")
        if char == "(":
            return self._group(flags, depth)
        if char == "[":
            return Chars(_fold(self._set(), flags))
        if char == "\\":
            return self._escape(flags)
        if char == ".":
            return Chars(_ALL if flags.dot_is_all else _ALL - {"\n"})
        if char in "^$":
            return Boundary("start" if char == "^" else "end")
        return _chars(char, flags)

    def _group(self, flags: _Flags, depth: int) -> Node:
        node = self.choice(flags, depth + 1)
        if not self.take(")"):
            raise InvalidRegex("missing )")
        return node

    def _special_group(self, flags: _Flags, depth: int, parts: list[Node]) -> _Flags:
        """(?:…), (?i:…), (?P<name>…) are groups; (?i) holds for what follows."""
        self.at += 2
        if self.take("P<") or (
            self.peek("<") and not self.peek("<=") and not self.peek("<!") and self.take("<")
        ):
            name = self.until(">", "a name of a group without end")
            if not name or not set(name) <= _WORD:
                raise InvalidRegex(f"invalid name of a group: {name}")
            parts.append(self._repeated(self._group(flags, depth)))
            return flags
        inner, ends_group = self._flags(flags)
        if ends_group:
            return inner
        parts.append(self._repeated(self._group(inner, depth)))
        return flags

    def _flags(self, flags: _Flags) -> tuple[_Flags, bool]:
        on = True
        while True:
            char = self.next("missing )")
            if char in ":)":
                return flags, char == ")"
            if char == "-" and on:
                on = False
            elif char == "i":
                flags = flags._replace(ignore_case=on)
            elif char == "s":
                flags = flags._replace(dot_is_all=on)
            elif char not in "mU":
                # m is about line ends and U about greed: neither changes which names match.
                raise InvalidRegex(f"unknown group (?{char}")

    def _repeated(self, node: Node) -> Node:
        bounds = self._quantifier()
        if bounds is None:
            return node
        self.take("?")
        if self._quantifier() is not None:
            raise InvalidRegex("a repetition of a repetition")
        return Repeat(node, *bounds)

    def _quantifier(self) -> tuple[int, int | None] | None:
        if self.take("*"):
            return 0, None
        if self.take("+"):
            return 1, None
        if self.take("?"):
            return 0, 1
        return self._counted() if self.peek("{") else None

    def _counted(self) -> tuple[int, int | None] | None:
        """{n}, {n,} or {n,m}; a brace that opens none of these is a brace."""
        end = self.text.find("}", self.at)
        first, comma, last = self.text[self.at + 1 : end].partition(",") if end >= 0 else ("", "", "")
        if not _is_number(first) or (last and not _is_number(last)):
            return None
        self.at = end + 1
        least = int(first)
        most = (int(last) if last else None) if comma else least
        if max(least, most or 0) > _MOST_REPEATS or (most is not None and most < least):
            raise InvalidRegex("invalid number of repetitions")
        return least, most

    # ---- characters -----------------------------------------------------------------------------------------

    def _escape(self, flags: _Flags) -> Node:
        char = self.next("a backslash at the end")
        if char in _BOUNDARIES:
            return Boundary(_BOUNDARIES[char])
        if char == "C":
            return Chars(_ALL)
        return Chars(_fold(self._escaped_set(char), flags))

    def _escaped_set(self, char: str) -> frozenset[str]:
        if char in _CLASSES:
            return _CLASSES[char]
        if char in "pP":
            return self._property(char == "P")
        return frozenset(self._escaped_char(char))

    def _escaped_char(self, char: str) -> str:
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "x":
            braced = self.take("{")
            digits = self.until("}", "missing }") if braced else self.next("\\x") + self.next("\\x")
            return _code(digits, 16)
        if char in "01234567":
            return self._octal(char)
        if ord(char) < 128 and not char.isalnum():
            return char
        raise InvalidRegex(f"unknown escape \\{char}")

    def _octal(self, first: str) -> str:
        digits = first
        while len(digits) < 3 and self.more and self.text[self.at] in "01234567":
            digits += self.next("")
        if first != "0" and len(digits) == 1:
            raise InvalidRegex("back references are not supported")
        return _code(digits, 8)

    def _property(self, negated: bool) -> frozenset[str]:
        char = self.next("\\p without a name")
        name = self.until("}", "missing }") if char == "{" else char
        if name.startswith("^"):
            negated, name = not negated, name[1:]
        return _ALL - _category(name) if negated else _category(name)

    def _set(self) -> frozenset[str]:
        negated = self.take("^")
        chars: set[str] = set()
        first = True
        while first or not self.peek("]"):
            first = False
            chars |= self._set_item()
        self.at += 1
        return _ALL - chars if negated else frozenset(chars)

    def _set_item(self) -> frozenset[str]:
        if self.take("[:"):
            name = self.until(":]", "missing ]")
            known = _POSIX.get(name.removeprefix("^"))
            if known is None:
                raise InvalidRegex(f"unknown class [:{name}:]")
            return _ALL - known if name.startswith("^") else known
        char = self.next("missing ]")
        if char == "\\":
            char = self.next("missing ]")
            if char in _CLASSES or char in "pP":
                return self._escaped_set(char)
            char = self._escaped_char(char)
        if not self.peek("-") or self.text[self.at + 1 : self.at + 2] in ("]", ""):
            return frozenset(char)
        self.at += 1
        last = self.next("missing ]")
        if last == "\\":
            last = self._escaped_char(self.next("missing ]"))
        if last < char:
            raise InvalidRegex(f"invalid range {char}-{last}")
        return frozenset(other for other in _ALL if char <= other <= last)


def _chars(char: str, flags: _Flags) -> Chars:
    return Chars(_fold(frozenset(char), flags))


def _fold(chars: frozenset[str], flags: _Flags) -> frozenset[str]:
    if not flags.ignore_case:
        return chars
    change: Callable[[str], str] = str.swapcase
    return chars | frozenset(map(change, chars))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6


def _code(digits: str, base: int) -> str:
    try:
        return chr(int(digits, base))
    except (ValueError, OverflowError):
        raise InvalidRegex(f"invalid character code {digits}") from None


def _category(name: str) -> frozenset[str]:
    if name in _SCRIPTS:
        latin = frozenset(string.ascii_letters)
        return latin if name == "Latin" else _ALL - latin if name == "Common" else frozenset()
    if name == "Any":
        return _ALL
    if not name or name[0] not in _CATEGORIES or len(name) > 2:
        raise InvalidRegex(f"unknown property {name}")
    return frozenset(char for char in _ALL if unicodedata.category(char).startswith(name))
