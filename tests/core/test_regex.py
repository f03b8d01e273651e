"""Regular expressions over names: RE2's syntax, whole names, and no expression
that takes for ever.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.errors import ApiError, ErrorCode
from millstream.core.regex import Automaton, compiled
from millstream.core.regex_syntax import InvalidRegex

MATCHES = [
    ("orders", "orders", True),
    ("orders", "orders-eu", False),
    ("order", "orders", False),
    ("orders.*", "orders-eu", True),
    ("orders-(eu|us)", "orders-us", True),
    ("orders-(?:eu|us)", "orders-asia", False),
    ("^orders$", "orders", True),
    ("(?i)ORDERS", "orders", True),
    ("(?i:ORD)ers", "ordERS", False),
    ("(?P<name>a+)b", "aab", True),
    ("(?<name>a+)b", "aab", True),
    ("[a-c]+", "abc", True),
    ("[^a-c]+", "abc", False),
    ("[]a]+", "a", True),
    ("[a-]+", "a-a", True),
    ("[[:digit:]]{3}", "123", True),
    ("[[:^digit:]]+", "12", False),
    (r"\d{2,3}", "1", False),
    (r"\d{2,}", "12345", True),
    (r"a{0}b", "b", True),
    (r"v\.\w+", "v.x_1", True),
    (r"\Qa.b\E", "a.b", True),
    (r"\Qa.b\E", "axb", False),
    (r"\x61\x{62}\143", "abc", True),
    (r"\pL+\p{Nd}", "ab1", True),
    (r"\PN+", "ab1", False),
    (r"\bab\b.c", "ab-c", True),
    (r"a\Bb", "ab", True),
    (r"a\bb", "ab", False),
    (r"\Aab\z", "ab", True),
    ("a|", "", True),
    ("", "", True),
    ("", "a", False),
    ("a{,2}", "a{,2}", True),
    ("a*?b+?", "aab", True),
    ("(a*)*", "aaa", True),
    ("é", "e", False),
    ("é", "é", True),
    ("(?i)É+", "éÉ", True),
    (".*", "zahlung-ä-支付", True),
    ("[^a]", "ä", True),
    ("(?i)[^a]", "A", False),
    ("[а-я]+", "платеж", True),
    ("[а-я]+", "Платеж", False),
    ("(?i)[а-я]+", "Платеж", True),
    (r"\w+", "ä", False),
    (r"\W", "ä", True),
    (r"\pL+", "äя支", True),
    (r"\P{L}", "ä", False),
    (r"\p{Cyrillic}+", "платеж", True),
    (r"\p{Greek}", "я", False),
    (r"\p{Common}+", "12-_", True),
    (r"\p{Common}", "a", False),
    (r"\x{1F600}", "\U0001f600", True),
]

INVALID = [
    "(",
    ")",
    "a)",
    "[",
    "[a",
    "[z-a]",
    "*",
    "a**",
    "a+*",
    "+a",
    "?",
    "\\",
    r"\1",
    r"(a)\1",
    r"\k",
    r"\Z",
    "(?=a)",
    "(?!a)",
    "(?<=a)",
    "(?<!a)",
    "(?P=name)",
    "(?P<>a)",
    "(?x)a",
    "[[:nothing:]]",
    r"\p{Nothing}",
    r"\x{zz}",
    "a{1001}",
    "a{3,2}",
    "((a{100}){100}){100}",
    "(" * 200 + ")" * 200,
]


@pytest.mark.parametrize(("pattern", "name", "expected"), MATCHES)
def test_whole_names_match(pattern: str, name: str, expected: bool) -> None:
    assert Automaton(pattern).matches(name) is expected


@pytest.mark.parametrize("pattern", INVALID)
def test_what_is_no_expression_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegex):
        Automaton(pattern)
    with pytest.raises(ApiError) as refused:
        compiled(pattern)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|aa)+b", "(.*a){12}b", "(a?){30}a{30}b"])
def test_wicked_expressions_end(pattern: str) -> None:
    """A backtracking matcher would not within a lifetime."""
    assert not Automaton(pattern).matches("a" * 240)


_PIECES = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", "(a|b)", "(ab)?", "a*", "b+", "(a|bb){1,2}", "^", "$", "a{2}"]
)


@settings(deadline=None, max_examples=300)
@given(st.lists(_PIECES, max_size=6), st.lists(st.text("abc", max_size=6), max_size=8))
def test_as_python_has_it(pieces: list[str], names: list[str]) -> None:
    pattern = "".join(pieces)
    automaton = Automaton(pattern)
    for name in names:
        assert automaton.matches(name) == (re.fullmatch(pattern, name) is not None), (pattern, name)


@settings(deadline=None, max_examples=300)
@given(st.text("ab()[]{}*+?|\\^$.-,:dpQE<>=!i12", max_size=20))
def test_any_text_is_an_expression_or_is_refused(pattern: str) -> None:
    try:
        Automaton(pattern).matches("ab-1")
    except InvalidRegex:
        pass
