"""The syntax of regular expressions that the broker resolves: RE2, as KIP-848 prescribes.

No back references and no look-around, so every expression can be matched in one pass over the text.
A set of characters is a predicate, because a negated set is too large to list.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

_ASCII = frozenset(map(chr, range(128)))
_DIGITS = frozenset(string.digits)
_WORD = frozenset(string.ascii_letters + string.digits + "_")
_SPACE = frozenset("\t\n\f\r ")
_MAX_REPEATS = 1000
_MAX_NESTING = 100


# Returns whether a character is in a set.
CharSet = Callable[[str], bool]


class InvalidRegex(Exception):
    """An invalid expression; the message has the reason."""


class Chars(NamedTuple):
    """A character of a set."""

    has: CharSet


class Boundary(NamedTuple):
    """A position: ``start``, ``end``, ``word`` (a word boundary) or ``inside`` (not at one)."""

    kind: str


class Sequence(NamedTuple):
    parts: tuple[Node, ...]


class Choice(NamedTuple):
    parts: tuple[Node, ...]


class Repeat(NamedTuple):
    """A repetition; ``most`` None means unlimited."""

    part: Node
    least: int
    most: int | None


Node = Chars | Boundary | Sequence | Choice | Repeat


class _Flags(NamedTuple):
    ignore_case: bool = False
    dot_is_all: bool = False


_CLASSES: dict[str, frozenset[str]] = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_POSIX: dict[str, frozenset[str]] = {
    "alnum": _WORD - {"_"},
    "alpha": frozenset(string.ascii_letters),
    "ascii": _ASCII,
    "blank": frozenset("\t "),
    "cntrl": frozenset(char for char in _ASCII if ord(char) < 32 or ord(char) == 127),
    "digit": _DIGITS,
    "graph": frozenset(char for char in _ASCII if 32 < ord(char) < 127),
    "lower": frozenset(string.ascii_lowercase),
    "print": frozenset(char for char in _ASCII if 31 < ord(char) < 127),
    "punct": frozenset(string.punctuation),
    "space": _SPACE | {"\v"},
    "upper": frozenset(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": frozenset(string.hexdigits),
}
_CONTROLS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_BOUNDARIES = {"A": "start", "z": "end", "b": "word", "B": "inside"}
_CATEGORIES = frozenset("CLMNPSZ")
# Scripts, with the prefix of their character names.
_SCRIPTS = {
    "Latin": "LATIN ",
    "Greek": "GREEK ",
    "Cyrillic": "CYRILLIC ",
    "Han": "CJK ",
    "Arabic": "ARABIC ",
    "Hebrew": "HEBREW ",
    "Common": "",
}


def parse(pattern: str) -> Node:
    """Return the syntax tree of a pattern, or raise InvalidRegex."""
    parser = _Parser(pattern)
    node = parser.choice(_Flags(), 0)
    if parser.more:
        raise InvalidRegex("unexpected )")
    return node


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.at = 0

    # ---- the text ----

    @property
    def more(self) -> bool:
        return self.at < len(self.text)

    def peek(self, token: str) -> bool:
        return self.text.startswith(token, self.at)

    def take(self, token: str) -> bool:
        if not self.peek(token):
            return False
        self.at += len(token)
        return True

    def next(self, missing: str) -> str:
        if not self.more:
            raise InvalidRegex(missing)
        self.at += 1
        return self.text[self.at - 1]

    def until(self, end: str, missing: str) -> str:
        position = self.text.find(end, self.at)
        if position < 0:
            raise InvalidRegex(missing)
        start, self.at = self.at, position + len(end)
        return self.text[start:position]

    # ---- the grammar ----

    def choice(self, flags: _Flags, depth: int) -> Node:
        if depth > _MAX_NESTING:
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
            return Chars(self._set(flags))
        if char == "\\":
            return self._escape(flags)
        if char == ".":
            return Chars(_any if flags.dot_is_all else _not(frozenset("\n").__contains__))
        if char in "^$":
            return Boundary("start" if char == "^" else "end")
        return _chars(char, flags)

    def _group(self, flags: _Flags, depth: int) -> Node:
        node = self.choice(flags, depth + 1)
        if not self.take(")"):
            raise InvalidRegex("missing )")
        return node

    def _special_group(self, flags: _Flags, depth: int, parts: list[Node]) -> _Flags:
        """Parse (?:…), (?i:…) and (?P<name>…), which are groups, or (?i), which applies to the
        rest.
        """
        self.at += 2
        if self.take("P<") or (
            self.peek("<") and not self.peek("<=") and not self.peek("<!") and self.take("<")
        ):
            name = self.until(">", "missing > after the name of a group")
            if not name or not set(name) <= _WORD:
                raise InvalidRegex(f"invalid group name: {name}")
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
                # m affects line ends and U greediness; neither changes which names match.
                raise InvalidRegex(f"unknown group (?{char}")

    def _repeated(self, node: Node) -> Node:
        bounds = self._quantifier()
        if bounds is None:
            return node
        self.take("?")
        if self._quantifier() is not None:
            raise InvalidRegex("nested repetition")
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
        """Parse {n}, {n,} or {n,m}; any other brace is a literal."""
        end = self.text.find("}", self.at)
        first, comma, last = (
            self.text[self.at + 1 : end].partition(",") if end >= 0 else ("", "", "")
        )
        if not _is_number(first) or (last and not _is_number(last)):
            return None
        self.at = end + 1
        least = int(first)
        most = (int(last) if last else None) if comma else least
        if max(least, most or 0) > _MAX_REPEATS or (most is not None and most < least):
            raise InvalidRegex("invalid number of repetitions")
        return least, most

    # ---- characters ----

    def _escape(self, flags: _Flags) -> Node:
        char = self.next("trailing backslash")
        if char in _BOUNDARIES:
            return Boundary(_BOUNDARIES[char])
        if char == "C":
            return Chars(_any)
        return Chars(self._escaped_set(char, flags))

    def _escaped_set(self, char: str, flags: _Flags) -> CharSet:
        if char in _CLASSES:
            return _CLASSES[char].__contains__
        if char.lower() in _CLASSES:
            return _not(_CLASSES[char.lower()].__contains__)
        if char in "pP":
            return self._property(char == "P", flags)
        return _fold(frozenset(self._escaped_char(char)).__contains__, flags)

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

    def _property(self, negated: bool, flags: _Flags) -> CharSet:
        char = self.next("\\p without a name")
        name = self.until("}", "missing }") if char == "{" else char
        if name.startswith("^"):
            negated, name = not negated, name[1:]
        has = _fold(_category(name), flags)
        return _not(has) if negated else has

    def _set(self, flags: _Flags) -> CharSet:
        negated = self.take("^")
        parts: list[CharSet] = []
        while not parts or not self.peek("]"):
            parts.append(self._set_item(flags))
        self.at += 1
        return _not(_any_of(parts)) if negated else _any_of(parts)

    def _set_item(self, flags: _Flags) -> CharSet:
        if self.take("[:"):
            return self._posix(flags)
        char = self.next("missing ]")
        if char == "\\":
            char = self.next("missing ]")
            if char.lower() in _CLASSES or char in "pP":
                return self._escaped_set(char, flags)
            char = self._escaped_char(char)
        if not self.peek("-") or self.text[self.at + 1 : self.at + 2] in ("]", ""):
            return _fold(frozenset(char).__contains__, flags)
        self.at += 1
        last = self.next("missing ]")
        if last == "\\":
            last = self._escaped_char(self.next("missing ]"))
        if last < char:
            raise InvalidRegex(f"invalid range {char}-{last}")
        return _fold(_range(char, last), flags)

    def _posix(self, flags: _Flags) -> CharSet:
        name = self.until(":]", "missing ]")
        known = _POSIX.get(name.removeprefix("^"))
        if known is None:
            raise InvalidRegex(f"unknown class [:{name}:]")
        has = _fold(known.__contains__, flags)
        return _not(has) if name.startswith("^") else has


# ---- sets of characters ----


def _any(char: str) -> bool:
    return True


def _not(has: CharSet) -> CharSet:
    return lambda char: not has(char)


def _any_of(parts: list[CharSet]) -> CharSet:
    return lambda char: any(has(char) for has in parts)


def _range(first: str, last: str) -> CharSet:
    return lambda char: len(char) == 1 and first <= char <= last


def _chars(char: str, flags: _Flags) -> Chars:
    return Chars(_fold(frozenset(char).__contains__, flags))


def _fold(has: CharSet, flags: _Flags) -> CharSet:
    """Apply ignore_case; call this before negating a set: (?i)[^a] matches neither a nor A."""
    if not flags.ignore_case:
        return has
    return lambda char: has(char) or has(char.lower()) or has(char.upper())


def _category(name: str) -> CharSet:
    if name == "Any":
        return _any
    if name in _SCRIPTS:
        return _script(name)
    if not name or name[0] not in _CATEGORIES or len(name) > 2:
        raise InvalidRegex(f"unknown property {name}")
    return lambda char: len(char) == 1 and unicodedata.category(char).startswith(name)


def _script(name: str) -> CharSet:
    """Match by character name, because the standard library has no table of scripts."""
    if name == "Common":
        others = [_script(other) for other in _SCRIPTS if other != name]
        return _not(_any_of(others))
    prefix = _SCRIPTS[name]
    return lambda char: len(char) == 1 and unicodedata.name(char, "").startswith(prefix)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6


def _code(digits: str, base: int) -> str:
    try:
        return chr(int(digits, base))
    except (ValueError, OverflowError):
        raise InvalidRegex(f"invalid character code {digits}") from None
